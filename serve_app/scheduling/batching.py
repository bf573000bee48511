"""Batch policies: how long the next bundle may execute, and how long it may wait for more rows.

    eager      A free slot takes what is queued. Nothing waits, and a second bundle is staged at once.
    window     A bundle waits until it is full or its oldest entry has waited a window, which adapts to the latency.
    deferred   A bundle waits until its head could bear no further row.
    auto       Goes at once, unless waiting is likely to pay: see `Auto`.

All but ``eager`` stage the next bundle just before the running one is predicted to end, so that what arrives in the
meantime still counts. The formulas, their sources and what each part is worth: docs/scheduling.md.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple, Protocol

from serve_app.scheduling.arrivals import ArrivalPattern
from serve_app.scheduling.latency import LatencyModel
from serve_app.scheduling.settings import ModelScheduling


class Waiting(NamedTuple):
    """What a policy sees of what waits for a session.

    Attributes:
        now: Seconds.
        rows: Rows that wait, of all classes.
        limit: Rows that can execute before the head's deadline, within the model's limits.
        head_rows: Rows of the head.
        bucket: Cost bucket of the head.
        oldest: When the first of the classes' heads arrived, seconds.
        latest_end: When the execution must end for the head to be in time, seconds.
        latency: Of the variant that the head asks for.
        arrivals: Of the model.
        busy: Part of the last seconds in which the session ran, 0 to 1.
    """

    now: float
    rows: int
    limit: int
    head_rows: int
    bucket: int
    oldest: float
    latest_end: float
    latency: LatencyModel
    arrivals: ArrivalPattern
    busy: float = 0.0

    def frontier(self) -> float:
        """Until when one more entry like the head could still join, seconds (Symphony's window opens here)."""
        return self.latest_end - self.latency.predict(self.rows + self.head_rows, self.bucket)


class BatchPolicy(Protocol):
    """Decides when a bundle goes. Pure; what it learns, it learns per model.

    Attributes:
        stages_early: Whether a second bundle goes to a replica as soon as it has a slot, however long it is busy.
    """

    stages_early: bool

    def open_at(self, waiting: Waiting) -> float:
        """When the bundle shall go if nothing changes until then, seconds; now or the past: at once."""

    def on_batch(self, rows: int, latency_s: float) -> None:
        """A batch of so many rows begins; when it ends, its first entry has been here for ``latency_s`` seconds."""


class Eager:
    """A free slot takes what is queued."""

    stages_early = True

    def __init__(self, settings: ModelScheduling) -> None:
        pass

    def open_at(self, waiting: Waiting) -> float:
        """See `BatchPolicy.open_at`."""
        return waiting.now

    def on_batch(self, rows: int, latency_s: float) -> None:
        """See `BatchPolicy.on_batch`."""


class Window:
    """Waits for a full batch, at most for a window that adapts.

    The window starts at 50 ms and stays within 10 to 100 ms. Every 10 bundles the smoothed latency of their first
    entries is compared with the model's target: over 1.2 times the target the window shrinks by a quarter, under 0.8
    times it grows by a tenth, and in between it stays, so that it does not swing.

    Attributes:
        window_s: The window, seconds.
    """

    stages_early = False

    _SHORTEST_S = 0.01
    _LONGEST_S = 0.1
    _ADJUST_EVERY = 10
    _SMOOTHING = 0.2

    def __init__(self, settings: ModelScheduling) -> None:
        self.window_s = 0.05
        self._target_s = settings.slo_s
        self._max_rows = settings.max_rows
        self._smoothed_s: float | None = None
        self._batches = 0

    def open_at(self, waiting: Waiting) -> float:
        """See `BatchPolicy.open_at`."""
        if waiting.rows >= min(waiting.limit, self._max_rows):
            return waiting.now
        return min(waiting.oldest + self.window_s, waiting.frontier())

    def on_batch(self, rows: int, latency_s: float) -> None:  # noqa: ARG002 - see the protocol
        """See `BatchPolicy.on_batch`."""
        smoothed = self._smoothed_s
        self._smoothed_s = latency_s if smoothed is None else smoothed + self._SMOOTHING * (latency_s - smoothed)
        self._batches += 1
        if self._batches % self._ADJUST_EVERY == 0:
            ratio = self._smoothed_s / self._target_s
            if ratio > 1.2:
                self.window_s = max(self._SHORTEST_S, 0.75 * self.window_s)
            elif ratio < 0.8:
                self.window_s = min(self._LONGEST_S, 1.1 * self.window_s)


class Deferred:
    """Waits until the head could bear no further row: within [d - L(b+1), d - L(b)].

    Source: Symphony (arXiv 2308.07470), for one model and without its ranking of candidates over models.
    """

    stages_early = False

    def __init__(self, settings: ModelScheduling) -> None:
        pass

    def open_at(self, waiting: Waiting) -> float:
        """See `BatchPolicy.open_at`."""
        return waiting.now if waiting.rows >= waiting.limit else waiting.frontier()

    def on_batch(self, rows: int, latency_s: float) -> None:
        """See `BatchPolicy.on_batch`."""


class Auto:
    """Goes at once, unless the next request is likely to come so soon that waiting for it saves server time.

    One more entry in the batch saves ``S = L(b) + L(1) - L(b+1)``: what it would cost alone less what it adds. It
    would be alone only where the session has nothing else to do, so this counts by the part of the time in which the
    session is idle. Waiting costs one server second per second. So the batch waits as long as the expected gain grows,
    by the hazard of the gaps between arrivals (`ArrivalPattern.worth_waiting_until`): in a burst, for the burst and
    not longer. Where requests do not come in bursts, it waits only for what is due at over one and a half times the
    mean rate.

    It never waits past the moment when the head could bear no further row, nor for more rows than the head bears. A
    model without fixed cost saves nothing by batching and never waits.
    """

    stages_early = False

    _BURST = 1.5

    def __init__(self, settings: ModelScheduling) -> None:
        pass

    def open_at(self, waiting: Waiting) -> float:
        """See `BatchPolicy.open_at`."""
        now, rows, more = waiting.now, waiting.rows, waiting.head_rows
        if rows >= waiting.limit:
            return now
        latency, bucket = waiting.latency, waiting.bucket
        together = latency.predict(rows + more, bucket)
        frontier = waiting.latest_end - together
        if frontier <= now:
            return now
        saved = latency.predict(rows, bucket) + latency.predict(more, bucket) - together
        if saved <= 0.0:
            return now
        arrivals, worth = waiting.arrivals, saved * (1.0 - waiting.busy)
        if not arrivals.in_bursts and arrivals.rate > 0.0:
            worth = min(worth, 1.0 / (self._BURST * arrivals.rate))
        return min(arrivals.worth_waiting_until(now, worth), frontier)

    def on_batch(self, rows: int, latency_s: float) -> None:
        """See `BatchPolicy.on_batch`."""


_POLICIES: dict[str, Callable[[ModelScheduling], BatchPolicy]] = {
    "auto": Auto,
    "deferred": Deferred,
    "eager": Eager,
    "window": Window,
}


def batch_policy(settings: ModelScheduling) -> BatchPolicy:
    """A new policy for a model. Raises ValueError, listing the names there are, when there is none of that name."""
    try:
        return _POLICIES[settings.policy](settings)
    except KeyError:
        raise ValueError(
            f"unknown batch policy {settings.policy!r}; there are: {', '.join(sorted(_POLICIES))}"
        ) from None


def target_s(latency: LatencyModel, settings: ModelScheduling, rows: int, bucket: int, slack_s: float) -> float:
    """The longest predicted execution time that a bundle may have, seconds (``inf``: only rows bound it).

    The head's slack and the model's latency target. A target that the head alone cannot keep is given up, the latency
    target before the deadline: a head that is late anyway does not make the batch behind it small.

    Args:
        latency: Of the model.
        settings: Of the model.
        rows: Rows of the head.
        bucket: Cost bucket of the head.
        slack_s: Time that the head has left for execution, seconds.
    """
    alone = latency.predict(rows, bucket)
    if alone <= slack_s:
        return min(slack_s, settings.slo_s) if alone <= settings.slo_s else slack_s
    return settings.slo_s if alone <= settings.slo_s else inf
