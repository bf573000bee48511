"""How long the next batch may execute, and how long it may wait for more rows.

The formulas, their sources and the worth of each part: docs/scheduling.md.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

from serve_app.scheduling.batching.arrivals import ArrivalPattern
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.settings import ModelScheduling

_BURST = 1.5
"""Without bursts, a batch waits only for requests due at this multiple of the mean rate."""


class PendingBatch(NamedTuple):
    """The state of a batch that may wait for more rows.

    Attributes:
        rows: Waiting rows of all classes.
        limit: Rows that can execute before the head's deadline, within the model's limits.
        bucket: Cost bucket of the head.
        latest_end: Latest end of the execution for the head to be in time, seconds.
        latency: Of the variant that the head asks for.
        arrivals: Of the model.
    """

    now: float
    rows: int
    limit: int
    head_rows: int
    bucket: int
    latest_end: float
    latency: LatencyModel
    arrivals: ArrivalPattern


def dispatch_at(waiting: PendingBatch) -> float:
    """When the batch shall go if nothing changes until then, seconds; now or the past: at once.

    It goes when no reason to wait (`REASONS`) holds it any more. It never waits past the moment when another row would
    make the head late, nor for more rows than the head allows.
    """
    if waiting.rows >= waiting.limit:
        return waiting.now
    together_s = waiting.latency.predict(waiting.rows + waiting.head_rows, waiting.bucket)
    latest = waiting.latest_end - together_s
    if latest <= waiting.now:
        return waiting.now
    return min(max([reason(waiting, together_s) for reason in REASONS]), latest)


def save_a_run(waiting: PendingBatch, together_s: float) -> float:
    """Wait for the next request if that is likely to come so soon that it saves server time.

    One more entry in the batch saves ``S = L(b) + L(1) - L(b+1)``: its cost alone less its addition. That is so for two
    reasons, whose probabilities are added. It may be alone: after it nothing comes for the duration of the batch. Or
    there may be no room for it: with less of the same deadline left, this batch and the next one hold fewer rows than
    one that is full, by the fraction ``1 - (b + b') / limit``. Otherwise it goes with the next batch for the same cost.
    Waiting costs one server second per second. So the batch waits as long as the expected gain grows, by the hazard of
    the gaps between arrivals (`ArrivalPattern.worth_waiting_until`): in a burst, for the burst and not longer. Without
    bursts, it waits only for requests due at over one and a half times the mean rate. A model without fixed cost saves
    nothing by batching and never waits.
    """
    now, rows, bucket = waiting.now, waiting.rows, waiting.bucket
    latency, arrivals = waiting.latency, waiting.arrivals
    run_s = latency.predict(rows, bucket)
    saved = run_s + latency.predict(waiting.head_rows, bucket) - together_s
    if saved <= 0.0:
        return now
    alone = 1.0 if arrivals.last is None else 1.0 - arrivals.probability_within(arrivals.last, run_s)
    later = latency.rows_within(waiting.latest_end - now - run_s, bucket, waiting.limit)
    without_room = max(0.0, 1.0 - (rows + later) / waiting.limit)
    worth = saved * min(1.0, alone + without_room)
    if not arrivals.in_bursts and arrivals.rate > 0.0:
        worth = min(worth, 1.0 / (_BURST * arrivals.rate))
    return arrivals.worth_waiting_until(now, worth)


REASONS: Final[tuple[Callable[[PendingBatch, float], float], ...]] = (save_a_run,)
"""Each returns until when it would wait if nothing changes, seconds; now or the past: not at all.

Its arguments are the pending batch, and the predicted time of that and one more entry like the head. The result must
not move while nothing arrives: it is counted from an arrival, and not from now.
"""


def target_s(latency: LatencyModel, settings: ModelScheduling, rows: int, bucket: int, left_s: float) -> float:
    """The longest predicted execution that a bundle may have, seconds (``inf``: only rows bound it).

    It is bounded by ``left_s`` and the model's latency target. A target that the head alone cannot keep is
    dropped, the latency target before the deadline: a late head does not make the batch behind it small.

    Args:
        rows: Of the head, like ``bucket``.
        left_s: Time that the head has left for execution.
    """
    alone = latency.predict(rows, bucket)
    if alone <= left_s:
        return min(left_s, settings.slo_s) if alone <= settings.slo_s else left_s
    return settings.slo_s if alone <= settings.slo_s else inf
