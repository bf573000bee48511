"""Nexus: planned batch sizes and early drop by a sliding window.

Source: Shen et al., "Nexus: A GPU Cluster Engine for Accelerating DNN-Based Video Analysis", SOSP 2019, sections 4.3
and 6.1; and uwsampl/nexus, ``backend/model_exec.cpp``, ``backend/gpu_executor.cpp`` and
``scheduler/backend_delegate.cpp``, as read there.

The planner gives every replica a target batch size b. At saturation it is the largest with 2 L(b) <= SLO, because a
request that has just missed a batch waits for one and is executed in the next. Below that it is the largest, up to the
same, that also gathers in time: L(b) + b / rate <= SLO. Requests are split evenly over the replicas, each of which has
a queue by deadline and executes without pause. Before a batch it slides a window over its queue: requests that could
not be in time in a batch of the target size (or of all that is left, if that is less) are dropped, so that those behind
them can have it.

Simplified: the rate is the mean of the last five seconds, and the plan follows it every second; Nexus plans in longer
epochs and also moves models. Each replica runs one model. There are no classes, and the SLO is the model's shortest
timeout.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Literal, get_args

from benchmarks.scheduling.baselines.serving import (
    ROUNDING_S,
    Baseline,
    ModelServer,
    Rate,
    Worker,
    known_latency,
    objective_s,
)
from serve_app_simulator.scenario import SimulatedModel
from serve_app_simulator.system import Request, World

Plan = Literal["rate", "saturated"]
"""Which target to use: the one for the measured rate, or always that of saturation."""
Balance = Literal["round_robin", "least_loaded"]
_RATE_INTERVAL_S = 1.0
_RATE_INTERVALS = 5


class Nexus(Baseline):
    """Nexus' replicas with its plan for one model each.

    Args:
        plan: How the target batch size is found.
        balance: How requests are split over the replicas.
    """

    name = "nexus"

    def __init__(self, plan: Plan = "rate", balance: Balance = "round_robin") -> None:
        super().__init__()
        if plan not in get_args(Plan) or balance not in get_args(Balance):
            raise ValueError(f"unknown plan {plan!r} or balance {balance!r}")
        self.plan: Plan = plan
        self.balance: Balance = balance

    def serve(self, world: World, model: SimulatedModel) -> ModelServer:
        """See `Baseline.serve`."""
        return _Server(world, model, self.plan, self.balance)


class _Replica(Worker):
    """A replica with its queue.

    Attributes:
        queue: A heap of (deadline, id, request).
        rows: Rows in it.
        load: Rows on the way to it, queued and running.
    """

    __slots__ = ("load", "queue", "rows")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.queue: list[tuple[float, int, Request]] = []
        self.rows = 0
        self.load = 0


class _Server(ModelServer):
    def __init__(self, world: World, model: SimulatedModel, plan: Plan, balance: Balance) -> None:
        self.latency = known_latency(world.scenario, model)
        super().__init__(world, model, self.latency)
        overheads = world.scenario.overheads
        self._slo_s = objective_s(world.scenario, model) - overheads.request_s * overheads.mean_factor - self.answer_s
        self._margin_s = self.answer_s - ROUNDING_S
        self._plan = plan
        self._least_loaded = balance == "least_loaded"
        self._rate = Rate(_RATE_INTERVAL_S, _RATE_INTERVALS)
        self._replicas: dict[str, _Replica] = {}
        self._usable: list[_Replica] = []
        self._turn = 0
        self._homeless: list[Request] = []
        self._target = self._target_rows()

    def enqueue(self, request: Request) -> None:
        if self._rate.count(request.rows, self.world.now):
            self._target = self._target_rows()
        self._split(request)

    def _split(self, request: Request) -> None:
        usable = self._usable
        if not usable:
            self._homeless.append(request)
            return
        if self._least_loaded:
            replica = min(usable, key=_load)
        else:
            self._turn = (self._turn + 1) % len(usable)
            replica = usable[self._turn]
        replica.load += request.rows
        self._put(replica, request)

    def _put(self, replica: _Replica, request: Request) -> None:
        if request.ended is not None:
            replica.load -= request.rows
            return
        if not replica.usable:
            self._split(request)
            return
        heappush(replica.queue, (request.deadline, request.id, request))
        replica.rows += request.rows
        if replica.running is None:
            self._run(replica)

    def joined(self, name: str) -> None:
        self._replicas[name] = _Replica(name)
        self._replan()

    def left(self, name: str) -> None:
        replica = self._replicas.pop(name)
        replica.listed = False
        self._empty(replica)

    def lost(self, worker: Worker) -> None:
        assert isinstance(worker, _Replica)
        self._empty(worker)

    def _empty(self, replica: _Replica) -> None:
        """What is queued there moves."""
        self._homeless += [request for _, _, request in replica.queue if request.ended is None]
        replica.queue.clear()
        replica.rows = 0
        self._replan()

    def _replan(self) -> None:
        self._usable = [replica for replica in self._replicas.values() if replica.usable]
        self._target = self._target_rows()
        homeless, self._homeless = self._homeless, []
        for request in homeless:
            if request.ended is None:
                self._split(request)

    def _target_rows(self) -> int:
        """The planned batch size."""
        latency, bucket = self.latency, max(self.latency.buckets, default=0)
        most = max(1, latency.rows_within(self._slo_s / 2.0, bucket, self.max_rows))
        rate = self._rate.per_s
        if self._plan == "saturated" or not rate or not latency.known:
            return most
        rate /= max(1, len(self._usable))
        if rate * latency.predict(most, bucket) >= most:
            return most
        for rows in range(most, 1, -1):
            if latency.predict(rows, bucket) + rows / rate <= self._slo_s:
                return rows
        return 1

    def finished(self, worker: Worker, requests: list[Request], rows: int, bucket: int, seconds: float) -> None:  # noqa: ARG002 - as the base says
        assert isinstance(worker, _Replica)
        self.latency.observe(rows, bucket, seconds)
        worker.load -= rows
        if worker.usable:
            self._run(worker)

    def _run(self, replica: _Replica) -> None:
        """The replica is idle."""
        if self.cancelled:
            self.cancelled = False
            for other in self._replicas.values():
                _forget_ended(other)
        queue, predict, target = replica.queue, self.latency.predict, self._target
        now = self.world.now + self._margin_s
        batch: list[Request] = []
        rows = bucket = expected = 0
        finish = now
        while queue:
            # What the batch will be if all that is left is in time.
            possible = min(target, rows + replica.rows)
            if rows >= possible or (batch and rows + queue[0][2].rows > target):
                break
            request = heappop(queue)[2]
            replica.rows -= request.rows
            bucket_of_both = max(bucket, request.bucket)
            size = max(possible, rows + request.rows)
            if size != expected or bucket_of_both != bucket:
                expected, bucket = size, bucket_of_both
                finish = now + predict(size, bucket)
            if request.deadline < finish:
                replica.load -= request.rows
                self.drop(request)
            else:
                batch.append(request)
                rows += request.rows
        if batch:
            self.execute(replica, batch)


def _forget_ended(replica: _Replica) -> None:
    kept = [waiting for waiting in replica.queue if waiting[2].ended is None]
    if len(kept) < len(replica.queue):
        gone = replica.rows - sum(request.rows for _, _, request in kept)
        replica.rows -= gone
        replica.load -= gone
        heapify(kept)
        replica.queue = kept


def _load(replica: _Replica) -> int:
    return replica.load
