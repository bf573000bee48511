"""The overload ladder: what is given up first when there is more work than time.

    none -> batches -> variant -> shed-low -> shed-normal -> shed-high

Every step costs somebody something, so the cheap ones come first and the class ``high`` is hurt last: larger batches
cost latency, the light variant costs exactness, and only then are requests refused, the least urgent class first. What
the steps do stands in `serve_app.scheduling.relief`; here is only when.

*Lateness* drives it: the predicted time until what is queued in a class and above it is done, over the time that its
requests usually have. At 1 what comes now is late. The ladder climbs one step whenever the smoothed lateness of a class
that it still takes is over ``climb_at``, and ``climb_s`` have passed since the last step, in which that could act. A
class that is shed counts no longer: that `low` is late is no reason to shed `normal`.

It descends one step when ``dwell_s`` have passed in which that was possible: when the lateness of all classes that the
lower step takes is under ``descend_at``, and what they lately *asked for*, refused or not, would fit. Lateness alone
cannot tell that: what is refused is never late, and a ladder that goes by it swings between refusing and drowning.

Sources: the order of steps by criticality is that of the Google SRE book ("Handling overload") and of Netflix'
prioritized load shedding; admission by the time that is waited, and not by CPU use, is DAGOR's (WeChat, SoCC 2018),
which lowers the admitted class step by step too; lighter variants before refusals are INFaaS' (ATC 2021) and Proteus'
(ASPLOS 2024).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import exp
from typing import NamedTuple

from serve_app.scheduling.entry import Priority

_REMEMBERED = 64
_FITS = 0.95
"""Part of the device's time that may be asked for where the ladder descends."""


class Step(IntEnum):
    """The steps, in the order in which they are taken. A step includes those before it."""

    NONE = 0
    BATCHES = 1
    VARIANT = 2
    SHED_LOW = 3
    SHED_NORMAL = 4
    SHED_HIGH = 5

    @property
    def label(self) -> str:
        """As in headers, metrics and the configuration."""
        return _LABELS[self]

    @property
    def takes(self) -> int:
        """The least urgent class that it takes without limits, as a number; 0 for none."""
        return min(int(Priority.LOW), int(Priority.LOW) + int(Step.VARIANT) - self)


_LABELS = {step: step.name.lower().replace("_", "-") for step in Step}


@dataclass(frozen=True, slots=True)
class OverloadSettings:
    """When the ladder moves.

    Attributes:
        steps: The steps that may be taken, ascending, without `Step.NONE`.
        climb_at: Lateness over which it climbs.
        descend_at: Lateness under which it may descend, less than ``climb_at``.
        climb_s: Least time between two steps up, seconds.
        dwell_s: How long a descent must have been possible before it happens, seconds.
        smoothing_s: Time constant of the smoothed lateness, seconds.
        ration: Part of its usual time that a class that is shed may still wait for.
        late_at: Part of the time that they had for waiting that the first entries of answered bundles may lately have
            waited before the light variant is brought, however short the predicted waits are.
        busy: Part of a device's time; where less is used although more than a batch waits, batches may grow.
        memory: Part of a device's memory; where more is used, a replica has a single bundle in flight.
    """

    steps: tuple[Step, ...] = tuple(Step)[1:]
    climb_at: float = 0.8
    descend_at: float = 0.4
    climb_s: float = 0.2
    dwell_s: float = 1.0
    smoothing_s: float = 0.2
    ration: float = 0.7
    late_at: float = 0.9
    busy: float = 0.85
    memory: float = 0.9


class Signals(NamedTuple):
    """What the ladder goes by.

    Attributes:
        lateness: Per class, the most urgent first: see the module's docstring; 0.0 where nothing waits.
        demand: Per class: part of the device's time that requests lately asked for, refused or not, on what they ask
            for.
        light_demand: The same where requests that may run on the light variant do.
        late: Part of the time that they had for waiting that the first entries of answered bundles lately waited.
        starved: Whether more than a batch waits although the device is not busy.
    """

    lateness: tuple[float, float, float]
    demand: tuple[float, float, float]
    light_demand: tuple[float, float, float]
    late: float = 0.0
    starved: bool = False


class Transition(NamedTuple):
    """The ladder moved.

    Attributes:
        at: When, seconds.
        step: To where.
    """

    at: float
    step: Step


class OverloadLadder:
    """The state of one device, or of one model that has its own.

    Args:
        settings: When it moves.
        steps: Of ``settings.steps``, those that can do anything here.

    Attributes:
        step: Where it is.
        since: When it came there, seconds.
        lateness: Smoothed, per class, the most urgent first.
        climbs: Steps taken up so far.
        descents: Steps taken down so far.
        recent: The last transitions.
    """

    __slots__ = (
        "_possible_since",
        "_rungs",
        "_seconds",
        "_settings",
        "_updated",
        "climbs",
        "descents",
        "lateness",
        "recent",
        "since",
        "step",
    )

    def __init__(self, settings: OverloadSettings, steps: Sequence[Step] | None = None) -> None:
        self._settings = settings
        self._rungs = (Step.NONE, *(settings.steps if steps is None else steps))
        self.step = Step.NONE
        self.since = 0.0
        self.lateness = (0.0, 0.0, 0.0)
        self.climbs = 0
        self.descents = 0
        self.recent: deque[Transition] = deque(maxlen=_REMEMBERED)
        self._seconds = dict.fromkeys(self._rungs, 0.0)
        self._updated: float | None = None
        self._possible_since: float | None = None

    def __repr__(self) -> str:
        return f"<OverloadLadder {self._rungs.index(self.step)} of {len(self._rungs) - 1}: {self.step.label}>"

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps that it has, `Step.NONE` first."""
        return self._rungs

    def seconds(self, now: float) -> dict[Step, float]:
        """How long it has been on each of its steps so far, seconds; since the first update."""
        seconds = dict(self._seconds)
        if self._updated is not None:
            seconds[self.step] += max(0.0, now - self._updated)
        return seconds

    def update(self, signals: Signals, now: float) -> bool:
        """Take the signals in, and move by one step at most.

        Args:
            signals: As they are now.
            now: Seconds, never less than at the last call.

        Returns:
            Whether it moved.
        """
        settings = self._settings
        if self._updated is None:
            self._updated = self.since = now
        elapsed = now - self._updated
        self._seconds[self.step] += elapsed
        self._updated = now
        # What was not looked at for long is still smoothed: a single look at a burst says little.
        kept = exp(-min(elapsed, 0.5 * settings.smoothing_s) / settings.smoothing_s)
        smoothed = [new + kept * (old - new) for old, new in zip(self.lateness, signals.lateness, strict=True)]
        self.lateness = (smoothed[0], smoothed[1], smoothed[2])
        rung = self._rungs.index(self.step)
        floor = self._floor(signals)
        if rung + 1 < len(self._rungs):
            above = self._rungs[rung + 1]
            wanted = self._worst(self.step) > settings.climb_at or above <= floor
            if wanted and now - self.since >= settings.climb_s - _EARLY_S:
                self.climbs += 1
                self._move(above, now)
                return True
        if rung == 0 or not self._could_descend(self._rungs[rung - 1], floor, signals):
            self._possible_since = None
            return False
        if self._possible_since is None:
            self._possible_since = now
        if now - max(self.since, self._possible_since) < settings.dwell_s - _EARLY_S:
            return False
        self.descents += 1
        self._move(self._rungs[rung - 1], now)
        return True

    def _floor(self, signals: Signals) -> Step:
        """The step that resources and measured latencies ask for, whatever is predicted."""
        if signals.late > self._settings.late_at:
            return Step.VARIANT
        return Step.BATCHES if signals.starved else Step.NONE

    def _worst(self, step: Step) -> float:
        """The smoothed lateness of the latest of the classes that a step takes."""
        return max(self.lateness[: step.takes], default=0.0)

    def _could_descend(self, lower: Step, floor: Step, signals: Signals) -> bool:
        if self.step <= floor or self._worst(lower) >= self._settings.descend_at:
            return False
        demand = signals.light_demand if lower >= Step.VARIANT and Step.VARIANT in self._rungs else signals.demand
        return sum(demand[: lower.takes]) <= _FITS

    def _move(self, step: Step, now: float) -> None:
        self.step = step
        self.since = now
        self._possible_since = None
        self.recent.append(Transition(now, step))


_EARLY_S = 1e-6
"""Updates come at fixed intervals: what is due to a rounding error later is due."""
