"""Symphony: deferred batch scheduling from one central queue, without classes.

Source: Chen et al., "Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling", arXiv 2308.07470; and
abcdabcd987/nexuslb, ``dispatcher/batch_policy.cpp``, ``dispatcher/batch_size_estimator.cpp`` and
``dispatcher/rankmt/{model,rank}_thread.cpp``, as read there.

Of the queue, ordered by deadline, a candidate batch is kept. It grows towards the target size, and requests that could
not be in time in it are dropped; above the target it takes what costs no one his deadline. The candidate of b rows with
the earliest deadline d may begin in the window [d - L(b + 1), d - L(b)]: before that there is time for one more request
and it is deferred, after that it is too late. At the beginning of the window it goes to the replica that is free first.

The target is the largest b with L(b) (1 + 1 / n) <= SLO, where n = rate L(b) / b replicas are kept busy at this size.
The rate is the mean of the last five seconds.

Simplified: each model has its own replicas, so candidates of several models do not compete; `Symphony.jitter_s` stands
for all of its safety margins. There are no classes, and the SLO is the model's shortest timeout.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf

from benchmarks.scheduling.baselines.planned import PlannedServer
from benchmarks.scheduling.baselines.serving import ROUNDING_S, Baseline, ModelServer, Rate, known_latency, objective_s
from serve_app_simulator.scenario import SimulatedModel
from serve_app_simulator.system import Request, World

_RATE_INTERVAL_S = 0.05
_RATE_INTERVALS = 100


class Symphony(Baseline):
    """Symphony's scheduler.

    Args:
        jitter_s: How much earlier than at the deadline it aims to finish.
        eager_at_target: Whether a candidate of the target size goes at once instead of being deferred.
    """

    name = "symphony"

    def __init__(self, jitter_s: float = 0.0001, *, eager_at_target: bool = False) -> None:
        super().__init__()
        if jitter_s < 0.0:
            raise ValueError(f"jitter_s must be at least 0, got {jitter_s}")
        self.jitter_s = jitter_s
        self.eager_at_target = eager_at_target

    def serve(self, world: World, model: SimulatedModel) -> ModelServer:
        """See `Baseline.serve`."""
        return _Server(world, model, self.jitter_s, eager_at_target=self.eager_at_target)


class _Server(PlannedServer):
    """The candidate and the queue behind it are heaps of (deadline, id, request)."""

    def __init__(self, world: World, model: SimulatedModel, jitter_s: float, *, eager_at_target: bool) -> None:
        super().__init__(world, model, known_latency(world.scenario, model))
        overheads = world.scenario.overheads
        self._margin_s = self.answer_s + jitter_s - ROUNDING_S
        around_s = overheads.request_s * overheads.mean_factor + self.send_s + self.answer_s
        self._slo_s = objective_s(world.scenario, model) - around_s - jitter_s
        self._eager_at_target = eager_at_target
        self._rate = Rate(_RATE_INTERVAL_S, _RATE_INTERVALS)
        self._candidate: list[tuple[float, int, Request]] = []
        self._rows = 0
        self._bucket = 0
        self._waiting: list[tuple[float, int, Request]] = []
        self._waiting_rows = 0
        self._target = self._target_rows()

    def enqueue(self, request: Request) -> None:
        if self._rate.count(request.rows, self.world.now):
            self._target = self._target_rows()
        heappush(self._waiting, (request.deadline - self._margin_s, request.id, request))
        self._waiting_rows += request.rows
        self.plan()

    def plan(self) -> None:
        """See `PlannedServer.plan`."""
        while True:
            worker = self.next_worker()
            earliest = self.world.now + self.send_s
            if worker is None or (self.send_s <= 0.0 and worker.running is not None):
                self._refresh(earliest)
                self.set_alarm(inf)
                return
            self._refresh(earliest)
            if worker.running is not None and worker.free_at > earliest:
                self.set_alarm(worker.free_at - self.send_s if self._candidate else inf)
                return
            if not self._candidate:
                self.set_alarm(inf)
                return
            begin = self._window()
            if begin > earliest + ROUNDING_S:
                self.set_alarm(begin - self.send_s)
                return
            batch = [request for _, _, request in sorted(self._candidate)]
            rows, bucket = self._rows, self._bucket
            self._candidate = []
            self._rows = self._bucket = 0
            self.send(worker, batch, rows, bucket)

    def _window(self) -> float:
        """When the candidate's window opens."""
        if self._eager_at_target and self._rows >= self._target:
            return -inf
        if self._rows >= self.max_rows:
            return -inf
        return self._candidate[0][0] - self.latency.predict(self._rows + 1, self._bucket)

    def _refresh(self, start: float) -> None:
        """Bring the candidate up to date for an execution that begins at ``start`` or later."""
        predict, target, most = self.latency.predict, self._target, self.max_rows
        if self.cancelled:
            self._forget_ended()
        candidate, waiting = self._candidate, self._waiting
        while candidate and candidate[0][0] < start + predict(self._rows, self._bucket):
            self._drop_first()
        while waiting:
            deadline, _, request = waiting[0]
            rows = self._rows + request.rows
            if candidate and rows > most:
                break
            bucket = max(self._bucket, request.bucket)
            if self._rows < target:
                # The size that it will have if no more need be dropped.
                expected = max(rows, min(target, self._rows + self._waiting_rows))
                self._take(rows, bucket)
                if candidate[0][0] < start + predict(expected, bucket):
                    self._drop_first()
            elif min(deadline, candidate[0][0]) >= start + predict(rows, bucket):
                self._take(rows, bucket)
            else:
                break

    def _take(self, rows: int, bucket: int) -> None:
        first = heappop(self._waiting)
        heappush(self._candidate, first)
        self._waiting_rows -= first[2].rows
        self._rows = rows
        self._bucket = bucket

    def _drop_first(self) -> None:
        request = heappop(self._candidate)[2]
        self._rows -= request.rows
        if not self._candidate:
            self._bucket = 0
        self.drop(request)

    def _forget_ended(self) -> None:
        self.cancelled = False
        self._candidate = [item for item in self._candidate if item[2].ended is None]
        self._waiting = [item for item in self._waiting if item[2].ended is None]
        heapify(self._candidate)
        heapify(self._waiting)
        self._rows = sum(item[2].rows for item in self._candidate)
        self._bucket = max((item[2].bucket for item in self._candidate), default=0)
        self._waiting_rows = sum(item[2].rows for item in self._waiting)

    def _target_rows(self) -> int:
        """The size that keeps just as many replicas busy as the rate needs."""
        latency, bucket = self.latency, max(self.latency.buckets, default=0)
        rate = self._rate.per_s
        if not latency.known:
            return self.max_rows
        if not rate:
            return max(1, latency.rows_within(self._slo_s / 2.0, bucket, self.max_rows))
        for rows in range(2, self.max_rows + 1):
            if latency.predict(rows, bucket) + rows / rate > self._slo_s:
                return rows - 1
        return self.max_rows
