"""The circuit breaker of one build of a model: requests to a failing model stop, and are resumed step by step.

              failing                       reset_s over
    CLOSED ─────────────> OPEN ───────────────────────────> HALF_OPEN
       ^                   ^                                 │   │
       │                   └─────────── probes failed ───────┘   │
       └────────────────────── enough probes answered ───────────┘

Each answer of a replica, a whole bundle, counts by its `BundleOutcome`. An input can make a model fail, and a client
that sends such inputs must not lock other clients out. So after a failure replicas report whether the model still runs
a known good input. The model is *failing*

    consecutive_failures   after so many failures without an answer between them
    failure_ratio          if this fraction of at least ``min_samples`` answers within ``window_s`` failed
    nothing answered       after ``min_samples`` failures over ``window_s`` or longer, suspected ones included

Failures that the input may have caused, *suspected* ones, count for the last row only, and among probes: one failure
opens the breaker again, or ``probes`` suspected ones in a row. If one input of many fails, others are answered and
nothing ever opens.

Sources: the states are those of M. Nygard, Release It! (2007), the window in slices is resilience4j's time-based one,
and limited probes are its ``permittedNumberOfCallsInHalfOpenState``. The outcomes are ours.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from math import inf
from types import MappingProxyType

from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.settings import BreakerSettings

ALL = 2**31
"""Places for any number of entries."""
_SLICES = 10
_BETWEEN_PROBES_S = 1.0
"""Retry interval for entries that found no place among the probes, seconds."""


class State(Enum):
    """State of a breaker."""

    CLOSED = "closed"
    HALF_OPEN = "half_open"
    OPEN = "open"


class Event(Enum):
    """What moves a breaker."""

    FAILING = "failing"
    WAITED = "waited"
    RECOVERED = "recovered"


class BundleOutcome(Enum):
    """The verdict of one replica's answer on the model.

    Attributes:
        ANSWERED: At least one entry has its answer: the model works.
        FAILURE: None has, and the model or its replica is to blame: a known good input fails as well, or the answer
            does not fit the request.
        SUSPECTED: None has, and the inputs may be to blame.
        NOT_COUNTED: Nothing was executed, or failed in the model: bad requests, deadlines, cancellations, no capacity.
    """

    ANSWERED = "answered"
    FAILURE = "failure"
    SUSPECTED = "suspected"
    NOT_COUNTED = "not counted"


TRANSITIONS = MappingProxyType(
    {
        (State.CLOSED, Event.FAILING): State.OPEN,
        (State.OPEN, Event.WAITED): State.HALF_OPEN,
        (State.HALF_OPEN, Event.FAILING): State.OPEN,
        (State.HALF_OPEN, Event.RECOVERED): State.CLOSED,
    }
)
"""Every legal transition. Any other is a bug, and raises KeyError."""

_ANSWERED, _FAILURE, _SUSPECTED, _NOT_COUNTED = (
    BundleOutcome.ANSWERED,
    BundleOutcome.FAILURE,
    BundleOutcome.SUSPECTED,
    BundleOutcome.NOT_COUNTED,
)


class CircuitBreaker:
    """The breaker of one build of a model.

    Attributes:
        since: Start of the present state, seconds.
        reason: Why it left CLOSED last, for people; empty if it never has.
        failures: Failures in a row, suspected ones not counted.
        moves: Number of entries into each state.
    """

    __slots__ = (
        "_answered", "_failed", "_probes", "_settings", "_unanswered", "_unanswered_since", "_window",
        "failures", "moves", "reason", "since", "state",
    )  # fmt: skip

    def __init__(self, settings: BreakerSettings, now: float) -> None:
        self._settings = settings
        self.state = State.CLOSED
        self.since = now
        self.reason = ""
        self.moves = dict.fromkeys(State, 0)
        self._probes: list[Entry] = []
        self._window = _Window(settings.window_s)
        self.failures = 0
        self._unanswered = 0
        self._unanswered_since = now
        self._answered = 0
        self._failed = 0

    def __repr__(self) -> str:
        return f"<CircuitBreaker {self.state.value} failures={self.failures}>"

    def observe(self, outcome: BundleOutcome, now: float) -> None:
        """Count one answer of a replica. Ignored while the breaker is open."""
        if outcome is _NOT_COUNTED or self.state is State.OPEN:
            return
        if self.state is State.HALF_OPEN:
            self._observe_probe(outcome, now)
            return
        if outcome is not _SUSPECTED:
            self._window.add(outcome is _FAILURE, now)
        if outcome is _ANSWERED:
            self.failures = self._unanswered = 0
            return
        self.failures += outcome is _FAILURE
        if not self._unanswered:
            self._unanswered_since = now
        self._unanswered += 1
        if reason := self._why_failing(now):
            self.reason = reason
            self._move(Event.FAILING, now)

    def poll(self, now: float) -> None:
        """Let probes through once it has been open for ``reset_s``."""
        if now >= self.next_poll:
            self._move(Event.WAITED, now)

    @property
    def next_poll(self) -> float:
        """When `poll` lets probes through, seconds; ``inf`` if it is not open."""
        return self.since + self._settings.reset_s if self.state is State.OPEN else inf

    def places(self) -> int:
        """Number of entries that `admit` would let through now."""
        if self.state is not State.HALF_OPEN:
            return ALL if self.state is State.CLOSED else 0
        self._probes = [entry for entry in self._probes if entry.state is not EntryState.DONE]
        return self._settings.probes - len(self._probes)

    def has_room(self) -> bool:
        """Whether `admit` would let an entry through."""
        return self.places() > 0

    def admit(self, entry: Entry) -> bool:
        """Whether an entry may pass. In HALF_OPEN it then has a probe's place, until it has ended."""
        if not self.has_room():
            return False
        if self.state is State.HALF_OPEN:
            self._probes.append(entry)
        return True

    def retry_in_s(self, now: float) -> float:
        """Time until `admit` may let an entry through, seconds."""
        if self.state is State.OPEN:
            return max(0.0, self.since + self._settings.reset_s - now)
        return 0.0 if self.has_room() else _BETWEEN_PROBES_S

    def forgive(self) -> None:
        """Forget the answers of a replica that was ejected. Changes something in CLOSED only."""
        if self.state is State.CLOSED:
            self._forget()

    def _observe_probe(self, outcome: BundleOutcome, now: float) -> None:
        if outcome is _ANSWERED:
            self._answered += 1
            self._failed = 0
            if self._answered >= self._settings.probes:
                self._move(Event.RECOVERED, now)
            return
        # One bad input among the probes must not open the breaker again: then as many as there are probes have to fail.
        self._failed += self._settings.probes if outcome is _FAILURE else 1
        if self._failed >= self._settings.probes:
            self._move(Event.FAILING, now)

    def _why_failing(self, now: float) -> str:
        settings = self._settings
        if self.failures >= settings.consecutive_failures:
            return f"{self.failures} failures in a row"
        failures, answers = self._window.totals(now)
        if answers >= settings.min_samples and failures >= settings.failure_ratio * answers:
            return f"{failures} failures in {answers} answers"
        lasted_s = now - self._unanswered_since
        if self._unanswered >= settings.min_samples and lasted_s >= settings.window_s:
            return f"{self._unanswered} failures and no answer in {lasted_s:.0f} s"
        return ""

    def _move(self, event: Event, now: float) -> None:
        self.state = TRANSITIONS[self.state, event]
        self.since = now
        self.moves[self.state] += 1
        self._probes.clear()
        self._forget()

    def _forget(self) -> None:
        self._window = _Window(self._settings.window_s)
        self.failures = self._unanswered = self._answered = self._failed = 0


class _Window:
    """Faults and answers of the last ``window_s`` seconds, to a tenth of it, in constant memory."""

    __slots__ = ("_answers", "_failures", "_slice_s", "_slices")

    def __init__(self, window_s: float) -> None:
        self._slice_s = window_s / _SLICES
        self._slices: deque[list[int]] = deque()  # number of the slice, failures, answers
        self._failures = 0
        self._answers = 0

    def add(self, failure: bool, now: float) -> None:
        number = int(now / self._slice_s)
        slices = self._slices
        if not slices or slices[-1][0] < number:
            self._drop_before(number - _SLICES + 1)
            slices.append([number, 0, 0])
        last = slices[-1]
        last[2] += 1
        self._answers += 1
        if failure:
            last[1] += 1
            self._failures += 1

    def totals(self, now: float) -> tuple[int, int]:
        self._drop_before(int(now / self._slice_s) - _SLICES + 1)
        return self._failures, self._answers

    def _drop_before(self, number: int) -> None:
        while self._slices and self._slices[0][0] < number:
            _, failures, answers = self._slices.popleft()
            self._failures -= failures
            self._answers -= answers
