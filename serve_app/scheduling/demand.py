"""What is asked of a model, in server-seconds: the load that replicas are sized for.

Requests that are refused for want of room, dropped or expired are demand like all others, or a server that keeps its
queue short would never grow. Those that would be late even alone on an idle replica are none: more replicas do not help
them. Neither are those that are refused since their model fails.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from serve_app.domain.priority import Priority
from serve_app.scheduling.batching.variants import VariantLatency
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.settings import ModelScheduling

BIN_S = 0.1
"""Demand is counted in bins of this length: their variance says how bursty it is."""
_MOST_BINS = 50
"""Older ones are dropped where nothing reads them."""
_LEAST = 1e-9
_FULL = 0.5
"""A batch may take this part of a deadline, since a request may just have missed the one before."""


class Demand(NamedTuple):
    """What was asked of a model in one class, per second. Those of several routers add up.

    Attributes:
        work: Server-seconds per second, each row at its price in the largest batch that deadline and `slo_ms` allow.
        variance: Of the work, in server-seconds squared per second.
        slack: Work times the seconds for which it may wait before it begins.
        requests: Their number.
    """

    work: float
    variance: float
    slack: float
    requests: float = 0.0

    def times(self, factor: float) -> Demand:
        """This many times as much."""
        return Demand(*[value * factor for value in self])


class ModelDemand(NamedTuple):
    """What was asked of a model since its demand was last read.

    Attributes:
        of_class: By class; classes without any are left out.
        turned_away_rows: Rows that were refused for want of room, dropped or have expired.
        backlog_s: Server-seconds of what is queued now.
        background: Work per second of requests that ask for no replicas.
    """

    of_class: Mapping[Priority, Demand] = MappingProxyType({})
    turned_away_rows: int = 0
    backlog_s: float = 0.0
    background: float = 0.0

    @classmethod
    def total(cls, of_routers: Collection[ModelDemand]) -> ModelDemand:
        """The demand at all routers."""
        classes = {priority for demand in of_routers for priority in demand.of_class}
        return cls(
            {
                each: add_up([router.of_class[each] for router in of_routers if each in router.of_class])
                for each in classes
            },
            sum([demand.turned_away_rows for demand in of_routers]),
            sum([demand.backlog_s for demand in of_routers]),
            sum([demand.background for demand in of_routers]),
        )


class DemandMeter:
    """Counts the demand for one model. `add` is for every request, so prices are looked up when it is read.

    Attributes:
        turned_away_rows: Rows that ended without an answer; the reader sets it to 0.
    """

    __slots__ = ("_asked", "_at", "_before", "_bins", "_read_to", "_unread", "_usual", "turned_away_rows")

    def __init__(self) -> None:
        self.turned_away_rows = 0
        self._at = self._read_to = -1
        # By bin, then by class (`None`: background), variant and cost bucket: rows, their budgets in seconds, requests.
        self._bins: dict[int, dict[tuple[Priority | None, str, int], list[float]]] = {}
        self._asked: dict[tuple[Priority | None, str, int], list[float]] = {}  # the present bin
        self._unread: dict[Priority | None, int] = {}
        self._before: dict[Priority | None, float] = {}  # work of the last bin that was read
        self._usual: dict[Priority | None, Demand] = {}  # of a request

    def add(self, entry: Entry, now: float, *, turned_away: bool = False) -> None:
        """Count a request that has arrived."""
        if turned_away:
            self.turned_away_rows += entry.rows
        at = int(now / BIN_S)
        if at != self._at:
            self._at = at
            if len(self._bins) >= (_MOST_BINS if self._read_to >= 0 else 1):
                del self._bins[next(iter(self._bins))]
            self._asked = self._bins.setdefault(at, {})
        key = None if entry.attributes.background else entry.priority, entry.variant, entry.bucket
        rows = entry.rows
        if (counted := self._asked.get(key)) is None:
            self._asked[key] = [rows, rows * (entry.deadline - now), 1]
        else:
            counted[0] += rows
            counted[1] += rows * (entry.deadline - now)
            counted[2] += 1

    def add_unread(self, priority: Priority) -> None:
        """Count a request that was refused before it was decoded: it counts as a usual one of its class."""
        self._unread[priority] = self._unread.get(priority, 0) + 1

    def read(
        self, now: float, latencies: VariantLatency, settings: ModelScheduling, overhead_s: float
    ) -> tuple[dict[Priority, Demand], float]:
        """The demand since the last call, none at the first, by class, and the work per second in the background.

        Classes without any, and the bin that has not ended, are left out.

        The variance is half the mean square of the difference of successive bins (von Neumann et al., 1941), which
        neither a trend nor a single jump spoils as it does the mean square around the mean.

        Args:
            latencies: Of the model. While they are unknown, there is no demand.
            settings: Of the model; they bound a batch's rows and time.
            overhead_s: Time of a bundle besides its execution.
        """
        end = int(now / BIN_S)
        begun, self._read_to = self._read_to, max(end, self._read_to)
        if begun < 0:
            self._bins = {at: asked for at, asked in self._bins.items() if at >= end}
        begun = max(begun, end - _MOST_BINS) if begun >= 0 else end
        if begun >= end:
            return {}, 0.0
        bins = [self._bins.pop(at, {}) for at in range(begun, end)]
        seconds = len(bins) * BIN_S
        found: dict[Priority, Demand] = {}
        background = 0.0
        before, self._before = self._before, {}
        for priority in {key[0] for asked in bins for key in asked} | set(self._unread):
            work = squares = slack = requests = 0.0
            last = before.get(priority)
            for asked in bins:
                of_bin = 0.0
                for (of, variant, bucket), (rows, budget_s, count) in asked.items():
                    if of is priority:
                        row_s, wait_s = price(latencies, variant, bucket, settings, budget_s / rows - overhead_s)
                        of_bin += rows * row_s
                        slack += rows * row_s * wait_s
                        requests += count
                work += of_bin
                squares += 0.0 if last is None else (of_bin - last) ** 2 / 2.0
                last = of_bin
            self._before[priority] = last or 0.0
            demand = Demand(work / seconds, squares / seconds, slack / seconds, requests / seconds)
            if requests:
                self._usual[priority] = demand.times(seconds / requests)
            if (unread := self._unread.get(priority, 0)) and (usual := self._usual.get(priority)) is not None:
                demand = add_up((demand, usual.times(unread / seconds)))
            if priority is None:
                background = demand.work
            elif demand.work > _LEAST:
                found[priority] = demand
        self._unread.clear()
        return found, background


def price(
    latencies: VariantLatency, variant: str, bucket: int, settings: ModelScheduling, budget_s: float
) -> tuple[float, float]:
    """Server-seconds of a row in the largest batch that ends in time, and the seconds for which it may wait."""
    latency = latencies.of(variant)
    longest_s = budget_s * _FULL
    if latency.predict(1, bucket) <= settings.slo_s:
        longest_s = min(longest_s, settings.slo_s)  # as batches are composed (`batching.policy.target_s`)
    rows = latency.rows_within(longest_s, bucket, settings.max_rows) or 1
    batch_s = latency.typical(rows, bucket)
    return batch_s / rows, max(0.0, budget_s - latency.predict(rows, bucket))


def add_up(demands: Iterable[Demand]) -> Demand:
    """The demand at several routers, or of several classes."""
    work = variance = slack = requests = 0.0
    for demand in demands:
        work += demand.work
        variance += demand.variance
        slack += demand.slack
        requests += demand.requests
    return Demand(work, variance, slack, requests)
