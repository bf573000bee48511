"""The circuit breaker of one build of a model: stop asking what fails, and ask again carefully.

              failing                       reset_s over
    CLOSED ─────────────> OPEN ───────────────────────────> HALF_OPEN
       ^                   ^                                 │   │
       │                   └─────────── probes failed ───────┘   │
       └────────────────────── enough probes answered ───────────┘

What counts are the answers of replicas, a whole bundle each, by their `Verdict`. An input can make a model fail, and
whoever sends such inputs must not lock everybody out; so replicas tell whether the model still runs a known good input
after a failure. It is *failing*

    consecutive_failures   after so many faults without an answer between them
    failure_ratio          where so large a part of the answers within ``window_s`` were faults, of ``min_samples``
    nothing answered       after ``min_samples`` failures over ``window_s`` or longer, faults or not, and no answer

Failures that the input may be to blame for, suspects, count for the last only, and among probes, where one fault opens
it again, or ``probes`` suspects in a row. Where one input of many fails, others are answered and nothing ever opens.

Sources: the states are those of M. Nygard, Release It! (2007), the window in slices is resilience4j's time-based one,
and limited probes are its ``permittedNumberOfCallsInHalfOpenState``. The verdicts are ours.
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
"""When to try again what found no place among the probes."""


class State(Enum):
    """Where a breaker is."""

    CLOSED = "closed"
    HALF_OPEN = "half_open"
    OPEN = "open"


class Event(Enum):
    """What moves a breaker."""

    FAILING = "failing"
    WAITED = "waited"
    RECOVERED = "recovered"


class Verdict(Enum):
    """What one answer of a replica says of the model.

    Attributes:
        ANSWERED: At least one entry has its answer: the model works.
        FAULT: None has, and the model or its replica is to blame: a known good input fails as well, or what came is
            no answer to what was asked.
        SUSPECT: None has, and the inputs may be to blame.
        NEITHER: Nothing was executed, or failed in the model: bad requests, deadlines, cancellations, no capacity.
    """

    ANSWERED = "answered"
    FAULT = "fault"
    SUSPECT = "suspect"
    NEITHER = "neither"


TRANSITIONS = MappingProxyType(
    {
        (State.CLOSED, Event.FAILING): State.OPEN,
        (State.OPEN, Event.WAITED): State.HALF_OPEN,
        (State.HALF_OPEN, Event.FAILING): State.OPEN,
        (State.HALF_OPEN, Event.RECOVERED): State.CLOSED,
    }
)
"""Every legal move. Any other is a bug, and raises KeyError."""

_ANSWERED, _FAULT, _SUSPECT, _NEITHER = Verdict.ANSWERED, Verdict.FAULT, Verdict.SUSPECT, Verdict.NEITHER


class CircuitBreaker:
    """The breaker of one build of a model.

    Args:
        settings: When it opens and closes.
        now: Seconds.

    Attributes:
        state: Where it is.
        since: Since when, seconds.
        reason: Why it left CLOSED last, for people; empty when it never has.
        faults: Faults in a row.
        moves: How often it has come to each state.
    """

    __slots__ = (
        "_answered", "_failed", "_probes", "_settings", "_unanswered", "_unanswered_since", "_window",
        "faults", "moves", "reason", "since", "state",
    )  # fmt: skip

    def __init__(self, settings: BreakerSettings, now: float) -> None:
        self._settings = settings
        self.state = State.CLOSED
        self.since = now
        self.reason = ""
        self.moves = dict.fromkeys(State, 0)
        self._probes: list[Entry] = []
        self._window = _Window(settings.window_s)
        self.faults = 0
        self._unanswered = 0
        self._unanswered_since = now
        self._answered = 0
        self._failed = 0

    def __repr__(self) -> str:
        return f"<CircuitBreaker {self.state.value} faults={self.faults}>"

    def observe(self, verdict: Verdict, now: float) -> None:
        """Take the verdict on one answer of a replica. While it is open they tell nothing new, and are ignored."""
        if verdict is _NEITHER or self.state is State.OPEN:
            return
        if self.state is State.HALF_OPEN:
            self._observe_probe(verdict, now)
            return
        if verdict is not _SUSPECT:
            self._window.add(verdict is _FAULT, now)
        if verdict is _ANSWERED:
            self.faults = self._unanswered = 0
            return
        self.faults += verdict is _FAULT
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
        """When `poll` lets probes through, seconds; ``inf`` where it is not open."""
        return self.since + self._settings.reset_s if self.state is State.OPEN else inf

    def places(self) -> int:
        """How many entries `admit` would let through now."""
        if self.state is not State.HALF_OPEN:
            return ALL if self.state is State.CLOSED else 0
        self._probes = [entry for entry in self._probes if entry.state is not EntryState.DONE]
        return self._settings.probes - len(self._probes)

    def has_room(self) -> bool:
        """Whether `admit` would let an entry through."""
        return self.places() > 0

    def admit(self, entry: Entry) -> bool:
        """Whether an entry may pass. In HALF_OPEN it has a probe's place then, until it has ended in whatever way."""
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
        """Forget what came of a replica that is not asked any more. Only in CLOSED does it change anything."""
        if self.state is State.CLOSED:
            self._forget()

    def _observe_probe(self, verdict: Verdict, now: float) -> None:
        if verdict is _ANSWERED:
            self._answered += 1
            self._failed = 0
            if self._answered >= self._settings.probes:
                self._move(Event.RECOVERED, now)
            return
        # One bad input among the probes must not open the breaker again: then as many as there are probes have to fail.
        self._failed += self._settings.probes if verdict is _FAULT else 1
        if self._failed >= self._settings.probes:
            self._move(Event.FAILING, now)

    def _why_failing(self, now: float) -> str:
        settings = self._settings
        if self.faults >= settings.consecutive_failures:
            return f"{self.faults} failures in a row"
        faults, answers = self._window.totals(now)
        if answers >= settings.min_samples and faults >= settings.failure_ratio * answers:
            return f"{faults} failures in {answers} answers"
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
        self.faults = self._unanswered = self._answered = self._failed = 0


class _Window:
    """Faults and answers of the last ``window_s`` seconds, to a tenth of it, in constant memory."""

    __slots__ = ("_answers", "_faults", "_slice_s", "_slices")

    def __init__(self, window_s: float) -> None:
        self._slice_s = window_s / _SLICES
        self._slices: deque[list[int]] = deque()  # number of the slice, faults, answers
        self._faults = 0
        self._answers = 0

    def add(self, fault: bool, now: float) -> None:
        number = int(now / self._slice_s)
        slices = self._slices
        if not slices or slices[-1][0] < number:
            self._drop_before(number - _SLICES + 1)
            slices.append([number, 0, 0])
        last = slices[-1]
        last[2] += 1
        self._answers += 1
        if fault:
            last[1] += 1
            self._faults += 1

    def totals(self, now: float) -> tuple[int, int]:
        self._drop_before(int(now / self._slice_s) - _SLICES + 1)
        return self._faults, self._answers

    def _drop_before(self, number: int) -> None:
        while self._slices and self._slices[0][0] < number:
            _, faults, answers = self._slices.popleft()
            self._faults -= faults
            self._answers -= answers
