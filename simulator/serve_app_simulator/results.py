"""What a simulation found out.

Every request that arrived in the counted time ends in exactly one way:

    offered = in_time + late + dropped + replaced + unfinished

*In time* means that the answer reached the client by its deadline. A rejection, an expiry and a replaced frame are all
misses. Server time is charged to the requests of a batch by their rows, padding included; what was charged to requests
that were not answered in time or had ended before their execution did, and what executions took that died with their
replica, is waste.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from serve_app.domain.priority import Priority
from serve_app_simulator.scalers import ScalingStep
from serve_app_simulator.scenario import Scenario
from serve_app_simulator.workloads import Arrivals

UNFINISHED, IN_TIME, LATE, DROPPED, REPLACED = range(5)
_MOST_SIZES = 16
_QUANTILES = (0.5, 0.9, 0.99)


class Records:
    """How every request ended, by its id.

    Attributes:
        outcome: One of the five ends.
        latency_s: From leaving the client to reaching it again; NaN without an answer.
        server_s: Server time charged to it.
        vain_s: The part of it charged after it had ended.
    """

    __slots__ = ("latency_s", "outcome", "server_s", "vain_s")

    def __init__(self, requests: int) -> None:
        self.outcome = bytearray(requests)
        self.latency_s = array("d", [math.nan]) * requests
        self.server_s = array("d", [0.0]) * requests
        self.vain_s = array("d", [0.0]) * requests


@dataclass(slots=True)
class Usage:
    """What replicas did in the counted time.

    Attributes:
        executions: Batches begun.
        rows: Their rows.
        busy_s: Replicas' time in executions.
        replica_s: Replicas' time on the list or at work.
        failed_s: Time of executions that died with their replica.
        waited_s: Replicas' time on the list while a request of their model waited.
        busy_waited_s: The part of it in executions.
    """

    executions: int = 0
    rows: int = 0
    busy_s: float = 0.0
    replica_s: float = 0.0
    failed_s: float = 0.0
    waited_s: float = 0.0
    busy_waited_s: float = 0.0


@dataclass(slots=True)
class PoolUsage:
    """What the hosts of a pool did in the counted time.

    Attributes:
        hits: Requests that arrived when their model was resident somewhere.
        misses: Those that did not.
        loads: Loads begun.
        evictions: Members unloaded.
        loaded_bytes: Of all loads.
        load_s: What all loads took, seconds.
        thrash: Loads within a second of the member's eviction from the same host.
    """

    hits: int = 0
    misses: int = 0
    loads: int = 0
    evictions: int = 0
    loaded_bytes: int = 0
    load_s: float = 0.0
    thrash: int = 0


class Waiting:
    """When requests of one model waited: they had reached the system, did not execute, and had not ended.

    Only the time from ``start_s`` to ``end_s`` counts.

    Attributes:
        requests: Waiting now.
        waited_s: How long at least one has waited.
        replicas: Listed now.
        replica_s: Time of listed replicas while at least one has waited.
        busy_s: The part of it in which they executed, which the world adds up.
    """

    __slots__ = ("_end_s", "_since", "_start_s", "busy_s", "replica_s", "replicas", "requests", "waited_s")

    def __init__(self, start_s: float, end_s: float) -> None:
        self.requests = 0
        self.replicas = 0
        self.waited_s = 0.0
        self.replica_s = 0.0
        self.busy_s = 0.0
        self._start_s = start_s
        self._end_s = end_s
        self._since = start_s

    def add(self, requests: int, now: float) -> None:
        """Add waiting requests, or remove some with a negative number."""
        if not (self.requests and self.requests + requests):
            self.note(now)
        self.requests += requests

    def list(self, replicas: int, now: float) -> None:
        """Set the number of listed replicas."""
        self.note(now)
        self.replicas = replicas

    def note(self, now: float) -> None:
        """Add up the time that has passed."""
        until = min(max(now, self._start_s), self._end_s)
        if self.requests:
            self.waited_s += until - self._since
            self.replica_s += (until - self._since) * self.replicas
        self._since = until


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of a group of requests.

    Attributes:
        offered: How many arrived.
        in_time: How many answers reached the client by the deadline.
        late: Answers that came after it.
        dropped: Rejected, expired or shed.
        replaced: Frames dropped for a newer one.
        unfinished: Neither answered nor dropped when the simulation ended.
        p50_s: Median latency of the answers, seconds; ``None`` without answers. ``p90_s``, ``p99_s`` likewise.
        server_s: Server time charged to the group, seconds.
        wasted_s: The part of it charged to requests that were not answered in time, or had ended already.
    """

    offered: int
    in_time: int
    late: int
    dropped: int
    replaced: int
    unfinished: int
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    server_s: float
    wasted_s: float

    @property
    def attainment(self) -> float:
        """In time / offered; 1 when nothing was offered."""
        return self.in_time / self.offered if self.offered else 1.0


@dataclass(frozen=True, slots=True)
class Series:
    """What happened over time, in steps of ``step_s`` from virtual second 0, warm-up included.

    Attributes:
        step_s: Length of a step, seconds.
        offered: Per class's label, requests that arrived in each step.
        in_time: Of those, how many were answered in time.
        queued_rows: Rows waiting for an execution at the beginning of each step, and one more at the end.
        replicas: Replicas listed at those moments.
    """

    step_s: float
    offered: dict[str, list[int]]
    in_time: dict[str, list[int]]
    queued_rows: list[int]
    replicas: list[int]

    def goodput(self, start_s: float, end_s: float) -> float:
        """Answers in time per second to what arrived from one moment to another, rounded to steps (one at least)."""
        first = round(start_s / self.step_s)
        part = slice(first, max(first + 1, round(end_s / self.step_s)))
        return sum(sum(met[part]) for met in self.in_time.values()) / ((part.stop - part.start) * self.step_s)


@dataclass(frozen=True, slots=True)
class Result:
    """One simulation of one system.

    Attributes:
        scenario: Its name.
        system: The system's name.
        seed: Of arrivals and noise.
        duration_s: Counted time, seconds: the scenario's duration less its warm-up.
        total: All requests.
        classes: Per class's label.
        models: Per model's name.
        tenants: Per tenant; empty where there are none.
        sizes: Per rows and cost bucket, as ``8x2048``; empty where all requests are alike.
        goodput: Answers in time per second.
        weighted_goodput: The same, each worth the weight of its class.
        offered_weight: Weights of all that was offered, per second: the most that ``weighted_goodput`` could be.
        server_s: Server time of all executions charged to counted requests, failed ones included, seconds.
        wasted_s: The part of it that was waste.
        server_share: Per class's label, its part of the server time charged to requests.
        batch_rows: Mean rows of a batch, padding included.
        utilisation: Part of the replicas' time in which they executed.
        busy_part: The same of the time in which a request of their model waited: at a router, on a way to a replica, or
            there; 1 where none ever did. Pauses between executions count as not executing.
        series: What happened over time.
        wall_s: How long the simulation took.
        events_per_s: Arrivals and actions per second of ``wall_s``.
        pools: What the hosts of each pool did, by its name.
        replica_s: Replicas' time on the list or at work, seconds.
        scaling: By model, how autoscaling changed its number of replicas.
    """

    scenario: str
    system: str
    seed: int
    duration_s: float
    total: Tally
    classes: dict[str, Tally]
    models: dict[str, Tally]
    tenants: dict[str, Tally]
    sizes: dict[str, Tally]
    goodput: float
    weighted_goodput: float
    offered_weight: float
    server_s: float
    wasted_s: float
    server_share: dict[str, float]
    batch_rows: float
    utilisation: float
    busy_part: float
    series: Series
    wall_s: float
    events_per_s: float
    pools: dict[str, PoolUsage] = field(default_factory=dict)
    replica_s: float = 0.0
    scaling: dict[str, list[ScalingStep]] = field(default_factory=dict)

    @property
    def attainment(self) -> float:
        """In time / offered, over all requests."""
        return self.total.attainment

    @property
    def wasted(self) -> float:
        """Part of the server time that was waste, 0 to 1."""
        return self.wasted_s / self.server_s if self.server_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, computed ones included."""
        found = asdict(self)
        if not self.pools:
            del found["pools"]
        found["attainment"] = self.attainment
        found["wasted"] = self.wasted
        found["total"]["attainment"] = self.total.attainment
        groups_of = {"classes": self.classes, "models": self.models, "tenants": self.tenants, "sizes": self.sizes}
        for name, groups in groups_of.items():
            for key, tally in groups.items():
                found[name][key]["attainment"] = tally.attainment
        return found

    def recovery_s(self, after_s: float, *, rows: int | None = None, before_s: float = 10.0) -> float | None:
        """Seconds from a moment until the queue was as short as before it, for two steps; ``None`` if it never was.

        Args:
            after_s: The moment: the end of a surge or a failure, virtual seconds.
            rows: Length of a short queue; by default the most rows that waited in the first ``before_s`` seconds.
            before_s: See ``rows``.
        """
        queued, step_s = self.series.queued_rows, self.series.step_s
        if rows is None:
            rows = max(queued[: max(1, int(before_s / step_s))], default=0)
        first = math.ceil(after_s / step_s - 1e-9)
        for step in range(first, len(queued)):
            if max(queued[step : step + 2]) <= rows:
                return max(0.0, step * step_s - after_s)
        return None


def make_result(
    scenario: Scenario,
    system: str,
    seed: int,
    arrivals: Arrivals,
    records: Records,
    usage: Usage,
    queued_rows: list[int],
    replicas: list[int],
    step_s: float,
    wall_s: float,
    events: int,
    pools: Mapping[str, PoolUsage],
    scaling: Mapping[str, Sequence[ScalingStep]],
) -> Result:
    """Sum up a finished simulation."""
    outcome = np.frombuffer(records.outcome, dtype=np.uint8)
    latency_s = np.frombuffer(records.latency_s, dtype=np.float64)
    server_s = np.frombuffer(records.server_s, dtype=np.float64)
    wasted_s = np.where(outcome == IN_TIME, np.frombuffer(records.vain_s, dtype=np.float64), server_s)
    counted = arrivals.arrival >= scenario.warm_up_s

    def tally(group: npt.NDArray[np.bool_]) -> Tally:
        ends = np.bincount(outcome[group], minlength=5).tolist()
        answered = latency_s[group]
        answered = answered[~np.isnan(answered)]
        quantiles = [float(value) for value in np.quantile(answered, _QUANTILES)] if len(answered) else [None] * 3
        return Tally(
            int(group.sum()),
            ends[IN_TIME],
            ends[LATE],
            ends[DROPPED],
            ends[REPLACED],
            ends[UNFINISHED],
            quantiles[0],
            quantiles[1],
            quantiles[2],
            float(server_s[group].sum()),
            float(wasted_s[group].sum()),
        )

    total = tally(counted)
    by_class = {priority: counted & (arrivals.priority == priority) for priority in Priority}
    classes = {priority.label: tally(group) for priority, group in by_class.items() if group.any()}
    models = {name: tally(counted & (arrivals.model == place)) for place, name in enumerate(arrivals.models)}
    tenants = {name: tally(counted & (arrivals.tenant == place)) for place, name in enumerate(arrivals.tenants) if name}
    kinds = sorted(set(zip(arrivals.rows.tolist(), arrivals.bucket.tolist(), strict=True)))
    sizes = {
        f"{rows}x{bucket}": tally(counted & (arrivals.rows == rows) & (arrivals.bucket == bucket))
        for rows, bucket in kinds[:_MOST_SIZES] if len(kinds) > 1
    }  # fmt: skip
    duration_s = scenario.duration_s - scenario.warm_up_s
    weights: Mapping[Priority, float] = scenario.weights
    present = [priority for priority in Priority if priority.label in classes]
    worth = sum(weights[priority] * classes[priority.label].in_time for priority in present)
    offered = sum(weights[priority] * classes[priority.label].offered for priority in present)
    return Result(
        scenario.name,
        system,
        seed,
        duration_s,
        total,
        classes,
        models,
        tenants,
        sizes,
        total.in_time / duration_s,
        worth / duration_s,
        offered / duration_s,
        total.server_s + usage.failed_s,
        total.wasted_s + usage.failed_s,
        {label: part.server_s / total.server_s if total.server_s else 0.0 for label, part in classes.items()},
        usage.rows / usage.executions if usage.executions else 0.0,
        usage.busy_s / usage.replica_s if usage.replica_s else 0.0,
        usage.busy_waited_s / usage.waited_s if usage.waited_s else 1.0,
        _series(scenario, arrivals, outcome, queued_rows, replicas, step_s),
        wall_s,
        events / wall_s if wall_s else 0.0,
        dict(pools),
        usage.replica_s,
        {name: list(steps) for name, steps in scaling.items() if steps},
    )


def _series(
    scenario: Scenario,
    arrivals: Arrivals,
    outcome: npt.NDArray[np.uint8],
    queued_rows: list[int],
    replicas: list[int],
    step_s: float,
) -> Series:
    steps = max(1, math.ceil(scenario.duration_s / step_s - 1e-9))
    step = np.minimum((arrivals.arrival / step_s).astype(np.int64), steps - 1)
    offered: dict[str, list[int]] = {}
    in_time: dict[str, list[int]] = {}
    for priority in Priority:
        group = arrivals.priority == priority
        if group.any():
            offered[priority.label] = np.bincount(step[group], minlength=steps).tolist()
            met = group & (outcome == IN_TIME)
            in_time[priority.label] = np.bincount(step[met], minlength=steps).tolist()
    return Series(step_s, offered, in_time, queued_rows, replicas)
