"""Relief: what the steps of the overload ladder do to the models of one device, and the signals that move it.

    batches       Bundles may take longer than ``slo_s`` where larger ones are clearly cheaper per row, up to a part of
                  the time that more urgent classes have.
    variant       Entries of `normal` and `low` run on the first fallback that is known to be cheaper than the exact
                  model. Those that name a variant or forbid fallbacks do not, and `high` does not. They ride along
                  in bundles of `high`, and so run exact, only where `high` comes so often that its bundles alone would
                  take half of the time: small ones waste more than the variant saves.
    shed          A class that is shed is accepted only up to its *ration*: while it has less queued than one full
                  batch per usable replica, or would wait for less than a part of its usual time. So there is always
                  something for its guaranteed share to run, a device never idles because of the ladder, and nobody
                  queues who would wait for nothing.

Besides the ladder, a replica whose device's memory is nearly full has one bundle in flight instead of several.

Signals are gathered every 50 ms while there are events; what requests ask for is summed up as they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import exp
from typing import Any, NamedTuple

from serve_app.errors import QueueFull
from serve_app.scheduling.admission import drain_s, retry_s, wait_s
from serve_app.scheduling.decisions import Rejection
from serve_app.scheduling.devices import Device
from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.model_state import ModelState
from serve_app.scheduling.overload import OverloadLadder, OverloadSettings, Signals, Step

_INTERVAL_S = 0.05
_DEMAND_S = 1.0
"""Time constant of what is asked for, seconds."""
_TYPICAL = 0.05
"""Weight of one interval's requests in what is typical of their class."""
_LATE = 0.2
"""Weight of one bundle in how late answers are."""
_STALE_S = 2.0
"""After so long without news, what answers and devices told counts no more."""
_LEAST_SLACK = 0.1
_LEAST_BUDGET_S = 1e-3
_WORTH = 0.9
"""A batch twice as large is worth waiting for where a row costs less than this part of what it did."""
_BLOCKING = 0.25
"""Part of the tightest claim of `high` and `normal` that such a batch may take: they may have to wait for one and then
be part of another, and either may take twice as long as predicted."""
_SELDOM = 0.5
"""Part of the time that bundles of one `high` entry each may take for others to stay out of them."""
_EVER = 1e9
_PRIORITIES = tuple(Priority)


class DeviceLoad(NamedTuple):
    """What a replica tells of its device, about once per second; ``None`` where it cannot tell.

    Attributes:
        busy: Part of the device's time that was used since it was last told, 0 to 1.
        memory: Part of the device's memory that is taken, 0 to 1.
    """

    busy: float | None
    memory: float | None


class _Asked:
    """What the requests of one class ask for."""

    __slots__ = (
        "budgets",
        "cost_s",
        "entries",
        "light_cost_s",
        "light_load",
        "load",
        "mean_s",
        "per_budget",
        "rate",
        "unread",
    )

    def __init__(self) -> None:
        # Since the last update: requests refused before they were read; entries, what they cost, the same on the
        # light variant, and the sum of 1 / budget.
        self.unread = 0
        self.entries = 0
        self.cost_s = 0.0
        self.light_cost_s = 0.0
        self.budgets = 0.0
        # Smoothed: parts of the device's time, entries per second; of one entry, its cost and 1 / budget.
        self.load = 0.0
        self.light_load = 0.0
        self.rate = 0.0
        self.mean_s = (0.0, 0.0)
        self.per_budget = 0.0

    def update(self, elapsed: float, servers: int) -> None:
        """Take what was summed up into the smoothed numbers."""
        kept = exp(-elapsed / _DEMAND_S)
        per_s = (1.0 - kept) / (max(elapsed, 1e-9) * servers)
        self.rate = kept * self.rate + per_s * servers * self.entries
        mean, light = self.mean_s
        self.load = kept * self.load + per_s * (self.cost_s + self.unread * mean)
        self.light_load = kept * self.light_load + per_s * (self.light_cost_s + self.unread * light)
        if self.entries:
            share = _TYPICAL if self.per_budget else 1.0
            self.per_budget += share * (self.budgets / self.entries - self.per_budget)
            self.mean_s = (
                mean + share * (self.cost_s / self.entries - mean),
                light + share * (self.light_cost_s / self.entries - light),
            )
        self.entries = self.unread = 0
        self.cost_s = self.light_cost_s = self.budgets = 0.0


class Relief:
    """Keeps the ladder of one device, and does what its steps say.

    Args:
        device: Whose models these are.
        settings: When the ladder moves.

    Attributes:
        ladder: The state.
        due: When `update` wants to be called next, seconds.
        shed: Requests refused because their class was shed, per class, the most urgent first.
        taken: The least urgent class that is taken without limits now, as a number; 0 for none.
    """

    __slots__ = (
        "_asked",
        "_costs",
        "_device",
        "_late",
        "_late_at",
        "_settings",
        "_told",
        "_updated",
        "due",
        "ladder",
        "shed",
        "taken",
    )

    def __init__(self, device: Device, settings: OverloadSettings) -> None:
        self._device = device
        self._settings = settings
        can_fall_back = any(model.settings.fallbacks for model in device.models)
        self.ladder = OverloadLadder(
            settings, [step for step in settings.steps if step is not Step.VARIANT or can_fall_back]
        )
        self.due = 0.0
        self.shed = [0, 0, 0]
        self.taken = self.ladder.step.takes
        self._costs: dict[tuple[ModelState, str, int], float] = {}
        self._asked = [_Asked() for _ in _PRIORITIES]
        self._updated: float | None = None
        self._late, self._late_at = 0.0, 0.0
        # Of each replica that told anything lately: how busy its device is, and when it said so.
        self._told: dict[tuple[str, str], tuple[float, float]] = {}

    # ---------------------------------------------------------------- events

    def arrived(self, entry: Entry, model: ModelState, now: float) -> None:
        """Somebody asks for something, whether it is accepted or not."""
        asked, rows = self._asked[entry.priority - 1], entry.rows
        variant = light = entry.variant
        if model.cheaper and not entry.lane and entry.priority is not _HIGH:
            light = model.cheaper
        per_row = self._costs.get((model, variant, entry.bucket)) or self._per_row(model, variant, entry.bucket)
        asked.entries += 1
        asked.cost_s += rows * per_row
        asked.light_cost_s += rows * (per_row if light is variant else self._per_row(model, light, entry.bucket))
        budget = entry.deadline - now
        asked.budgets += 1.0 / budget if budget > _LEAST_BUDGET_S else 1.0 / _LEAST_BUDGET_S

    def _per_row(self, model: ModelState, variant: str, bucket: int) -> float:
        """What a row costs in a good batch, seconds, as of the last `update`: every answer moves predictions a bit."""
        key = (model, variant, bucket)
        cost_s = self._costs.get(key)
        if cost_s is None:
            settings = model.settings
            latency = model.latencies.of(variant)
            cost_s = self._costs[key] = latency.best(bucket, settings.max_rows, settings.slo_s)[1]
        return cost_s

    def refuse(self, priority: Priority, model: ModelState, now: float, *, early: bool = False) -> Rejection | None:
        """Refuse an entry of a class that is shed and has its ration queued, or return ``None``.

        Args:
            priority: The class that it would queue in.
            model: Its model.
            now: Seconds.
            early: Whether the entry is not known yet: then it is counted as a usual one of its class.
        """
        if priority <= self.taken:
            return None
        step, settings = self.ladder.step, model.settings
        queued = model.queue.fresh[priority - 1].rows
        full = model.latencies.exact.best(0, settings.max_rows, settings.slo_s)[0]
        if queued < full * max(1, model.slots.usable):
            return None
        asked = self._asked[priority - 1]
        wait = drain_s(model, self._device, priority, now)
        if wait is None or wait * asked.per_budget < self._settings.ration:
            return None
        if early:
            asked.unread += 1
        self.shed[priority - 1] += 1
        retry = max(self._settings.dwell_s, retry_s(wait))
        return Rejection(
            QueueFull.code,
            f"model {settings.name} is overloaded and takes only a ration of class {priority.label}"
            f" (step {step.label}); try again in {retry:.1f} s",
            retry,
        )

    def answered(self, entries: Sequence[Entry], executed_s: float, now: float) -> None:
        """A bundle was answered: how much of the time that its first entry had for waiting it waited."""
        if not entries:
            return
        first = entries[0]
        budget = first.deadline - first.arrival
        slack = max(budget - executed_s, _LEAST_SLACK * budget)
        late = (now - first.arrival - executed_s) / slack if slack > 0.0 else 1.0
        self._late += _LATE * (min(2.0, late) - self._late)
        self._late_at = now

    def told(self, model: ModelState, replica: str, load: DeviceLoad, now: float) -> None:
        """A replica told of its device."""
        if load.busy is not None:
            self._told = {who: told for who, told in self._told.items() if now - told[1] <= _STALE_S}
            self._told[model.settings.name, replica] = (load.busy, now)
        if load.memory is not None:
            model.slots.limit(replica, 1 if load.memory > self._settings.memory else model.settings.window)

    def update(self, now: float) -> bool:
        """Look at how things stand, and move. Returns whether the step has changed."""
        self.due = now + _INTERVAL_S
        self._costs.clear()
        device, asked = self._device, self._asked
        elapsed = _INTERVAL_S if self._updated is None else now - self._updated
        self._updated = now
        servers = device.concurrency or max(1, sum(model.slots.usable for model in device.models))
        for of_class in asked:
            of_class.update(elapsed, servers)
        for model in device.models:
            if model.settings.fallbacks:
                model.cheaper = _cheaper(model)
                alone = asked[0].rate * model.latencies.exact.predict(1) / servers
                model.keeps_apart = model.prefers_light and bool(model.cheaper) and alone < _SELDOM
        if now - self._late_at > _STALE_S:
            self._late = 0.0
        moved = self.ladder.update(
            Signals(
                self._lateness(now),
                (asked[0].load, asked[1].load, asked[2].load),
                (asked[0].light_load, asked[1].light_load, asked[2].light_load),
                self._late,
                self._starved(now),
            ),
            now,
        )
        if moved or self.ladder.step:
            self._apply(now)
        return moved

    # ------------------------------------------------------------- questions

    def picture(self, now: float) -> dict[str, Any]:
        """A JSON-able picture.

        Returns:
            ``step`` (its label), ``level`` (its number), ``for_s`` (how long it has been there), ``lateness`` and
            ``demand`` per class, ``late`` (of answers), ``busy`` (of devices that told so lately; ``None`` without
            any), ``shed`` per class, ``seconds`` per step, ``climbs``, ``descents``, and ``recent``: the last moves,
            how long ago and to where.
        """
        ladder = self.ladder
        return {
            "step": ladder.step.label,
            "level": int(ladder.step),
            "for_s": now - ladder.since if self._updated is not None else 0.0,
            "lateness": _by_class(ladder.lateness),
            "demand": _by_class(asked.load for asked in self._asked),
            "late": self._late,
            "busy": self._busy(now),
            "shed": _by_class(self.shed),
            "seconds": {step.label: seconds for step, seconds in ladder.seconds(now).items()},
            "climbs": ladder.climbs,
            "descents": ladder.descents,
            "recent": [{"ago_s": now - at, "step": step.label} for at, step in ladder.recent],
        }

    # --------------------------------------------------------------- signals

    def _lateness(self, now: float) -> tuple[float, float, float]:
        latest = [0.0, 0.0, 0.0]
        for model in self._device.models:
            if not model.queue or not model.slots.usable or not model.latencies.exact.known:
                continue
            for priority in _PRIORITIES:
                fresh = model.queue.fresh[priority - 1]
                per_budget = self._asked[priority - 1].per_budget
                if not fresh.rows or not per_budget:
                    continue
                wait = wait_s(model, self._device, priority, now + _EVER, now)[0]
                budget = 1.0 / per_budget
                bucket = fresh.row_buckets // fresh.rows
                own = model.latencies.exact.predict(1, bucket) + model.overhead.seconds
                late = wait / max(budget - own, _LEAST_SLACK * budget)
                latest[priority - 1] = max(latest[priority - 1], late)
        return latest[0], latest[1], latest[2]

    def _busy(self, now: float) -> float | None:
        told = [busy for busy, at in self._told.values() if now - at <= _STALE_S]
        return sum(told) / len(told) if told else None

    def _starved(self, now: float) -> bool:
        """Whether more than a full batch waits, for a device that has time left."""
        if not self._told:
            return False
        busy = self._busy(now)
        if busy is None or busy >= self._settings.busy:
            return False
        return any(
            model.slots.usable and model.queue.rows > model.settings.max_rows * model.slots.usable
            for model in self._device.models
        )

    # ----------------------------------------------------------------- steps

    def _apply(self, now: float) -> None:
        step = self.ladder.step
        steps = self.ladder.steps
        self.taken = step.takes
        grows = step >= Step.BATCHES and Step.BATCHES in steps
        blocking_s = _BLOCKING * self._device.claims.bounds_s(now)[-1] if grows else 0.0
        for model in self._device.models:
            longest_s = max(model.usual.slo_s, min(_longest_s(model), blocking_s)) if grows else model.usual.slo_s
            if longest_s != model.settings.slo_s:
                model.settings = replace(model.usual, slo_s=longest_s)
            model.prefers_light = step >= Step.VARIANT and Step.VARIANT in steps
            model.keeps_apart = model.keeps_apart and model.prefers_light


def _longest_s(model: ModelState) -> float:
    """The longest that a batch may take under overload: as long as each doubling of its rows makes a row cheaper.

    By a tenth at least. What is saved less than that would be paid with how long a batch blocks everything else.
    """
    usual, latency = model.usual, model.latencies.exact
    buckets = latency.buckets
    if not buckets:
        return usual.slo_s
    bucket, most = buckets[-1], usual.max_rows
    rows, per_row_s = latency.best(bucket, most, usual.slo_s)
    longest_s = usual.slo_s
    while rows < most:
        rows = min(2 * rows, most)
        batch_s = latency.predict(rows, bucket)
        if batch_s / rows > _WORTH * per_row_s:
            break
        per_row_s = batch_s / rows
        longest_s = max(longest_s, batch_s)
    return longest_s


def _cheaper(model: ModelState) -> str:
    """The first fallback that is known to cost less per row than the exact model, or empty."""
    usual, latencies = model.usual, model.latencies
    if not latencies.exact.known:
        return ""
    buckets = latencies.exact.buckets
    bucket = buckets[-1] if buckets else 0
    exact = latencies.exact.best(bucket, usual.max_rows, usual.slo_s)[1]
    for name in usual.fallbacks:
        if latencies.has(name) and latencies.of(name).best(bucket, usual.max_rows, usual.slo_s)[1] < exact:
            return name
    return ""


def _by_class(numbers: Iterable[float]) -> dict[str, float]:
    return {priority.label: number for priority, number in zip(_PRIORITIES, numbers, strict=True)}


_HIGH = Priority.HIGH
