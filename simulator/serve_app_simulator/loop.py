"""The event loop of a simulation: a virtual clock and what happens when.

Requests do not pass through the heap of events: they are sorted already and merged with its top, so that a million of
them cost no more memory than the few that are alive. Where times are equal, arrivals come first and events follow in
the order they were asked for, so that a run depends on nothing but its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import isnan

from serve_app_simulator.system import Request


class Event:
    """A scheduled action; a `serve_app_simulator.system.Timer`. ``action`` is ``None`` once it ran or was cancelled."""

    __slots__ = ("action", "when")

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Do not run the action. No-op if it has run."""
        self.action = None


class Loop:
    """Runs actions in the order of their times.

    Attributes:
        now: Virtual seconds.
        events: Arrivals and actions so far.
    """

    __slots__ = ("_heap", "_last", "_stopped", "events", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Event]] = []
        self._last = 0
        self._stopped = False

    def at(self, when: float, action: Callable[[], None]) -> Event:
        """Run ``action`` at ``when``; times in the past mean now. Raises ValueError for NaN."""
        if not when > self.now:
            if isnan(when):
                raise ValueError("an action needs a time, got NaN")
            when = self.now
        event = Event(when, action)
        self._last += 1
        heappush(self._heap, (when, self._last, event))
        return event

    def stop(self) -> None:
        """End `run` after the present action."""
        self._stopped = True

    def run(self, arrivals: Iterator[Request], arrive: Callable[[Request], None], until: float) -> None:
        """Process arrivals, ascending in time, and actions.

        Ends when none is left, `stop` is called, or the next one is later than ``until``.
        """
        heap = self._heap
        following = next(arrivals, None)
        while not self._stopped:
            if following is not None and (not heap or following.arrival <= heap[0][0]):
                if following.arrival > until:
                    break
                self.now = following.arrival
                self.events += 1
                arrive(following)
                following = next(arrivals, None)
            elif heap:
                when, _, event = heappop(heap)
                action = event.action
                if action is None:
                    continue
                if when > until:
                    self.now = until
                    break
                self.now = when
                self.events += 1
                event.action = None
                action()
            else:
                break
