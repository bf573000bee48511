"""Clipper: adaptive batch sizes by additive increase and multiplicative decrease.

Source: Crankshaw et al., "Clipper: A Low-Latency Online Prediction Serving System", NSDI 2017, section 4.3; and
ucbrise/clipper, ``task_executor.hpp``, for what the released code does with late queries.

Every replica has a queue and a batch size of its own. While a full batch executes within the latency objective its size
grows by one; when one takes longer it shrinks by a tenth. Delayed batching lets a batch that is not full wait a little.
Order is first come, first served, and nothing is dropped.

Simplified: a request goes to the replica with the fewest rows. The objective counts the execution alone.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from benchmarks.scheduling.baselines.serving import Baseline, ModelServer, Worker, objective_s
from serve_app_simulator.scenario import SimulatedModel
from serve_app_simulator.system import Request, Timer, World

_DECREASE = 0.9


class Clipper(Baseline):
    """Clipper's AIMD batching.

    Args:
        delay_s: How long a batch that is not full waits for more, counted from its oldest request's arrival.
        objective: The latency objective as a part of the model's shortest timeout.
        drop_late: Whether queries whose deadline has passed are removed, as the released code does and the paper does
            not describe.
    """

    name = "clipper"

    def __init__(self, delay_s: float = 0.0, objective: float = 1.0, *, drop_late: bool = False) -> None:
        super().__init__()
        if delay_s < 0.0 or objective <= 0.0:
            raise ValueError(f"delay_s must be at least 0 and objective above 0, got {delay_s} and {objective}")
        self.delay_s = delay_s
        self.objective = objective
        self.drop_late = drop_late

    def serve(self, world: World, model: SimulatedModel) -> ModelServer:
        """See `Baseline.serve`."""
        slo_s = objective_s(world.scenario, model) * self.objective
        return _Server(world, model, self.delay_s, slo_s, drop_late=self.drop_late)


class _Replica(Worker):
    """A replica with its queue.

    Attributes:
        queue: Requests and when they were queued.
        rows: Rows queued and running.
        limit: Most rows in a batch, a whole number and what the next ones add to it.
        timer: Ends the wait for more.
    """

    __slots__ = ("limit", "queue", "rows", "timer")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.queue: deque[tuple[Request, float]] = deque()
        self.rows = 0
        self.limit = 1.0
        self.timer: Timer | None = None


class _Server(ModelServer):
    def __init__(self, world: World, model: SimulatedModel, delay_s: float, slo_s: float, *, drop_late: bool) -> None:
        super().__init__(world, model)
        self._delay_s = delay_s
        self._slo_s = slo_s
        self._drop_late = drop_late
        self._replicas: dict[str, _Replica] = {}
        self._homeless: deque[Request] = deque()

    def enqueue(self, request: Request) -> None:
        usable = [replica for replica in self._replicas.values() if not replica.lost]
        if not usable:
            self._homeless.append(request)
            return
        replica = usable[0] if len(usable) == 1 else min(usable, key=_load)
        replica.rows += request.rows
        self._put(replica, request)

    def _put(self, replica: _Replica, request: Request) -> None:
        if not replica.usable:
            self._move(request)
            return
        replica.queue.append((request, self.world.now))
        if replica.running is None and (replica.timer is None or replica.rows >= int(replica.limit)):
            self._run(replica)

    def _move(self, request: Request) -> None:
        """A request whose replica has gone before it was executed."""
        if request.ended is None:
            self.enqueue(request)

    def joined(self, name: str) -> None:
        self._replicas[name] = _Replica(name)
        homeless, self._homeless = self._homeless, deque()
        for request in homeless:
            self._move(request)

    def left(self, name: str) -> None:
        replica = self._replicas.pop(name)
        replica.listed = False
        self._empty(replica)

    def lost(self, worker: Worker) -> None:
        assert isinstance(worker, _Replica)
        self._empty(worker)

    def _empty(self, replica: _Replica) -> None:
        queue, replica.queue = replica.queue, deque()
        for request, _ in queue:
            self._move(request)

    def finished(self, worker: Worker, requests: list[Request], rows: int, bucket: int, seconds: float) -> None:  # noqa: ARG002 - as the base says
        assert isinstance(worker, _Replica)
        worker.rows -= rows
        if seconds > self._slo_s:
            worker.limit = max(1.0, worker.limit * _DECREASE)
        elif rows >= int(worker.limit):
            worker.limit = min(float(self.max_rows), worker.limit + 1.0)
        self._run(worker)

    def _run(self, replica: _Replica) -> None:
        """The replica is idle."""
        now = self.world.now
        queue = replica.queue
        limit = int(replica.limit)
        taken: list[tuple[Request, float]] = []
        rows = 0
        full = False
        while queue and not full:
            request = queue[0][0]
            if request.ended is not None or (self._drop_late and request.deadline <= now):
                if request.ended is None:
                    self.drop(request)
                replica.rows -= request.rows
                queue.popleft()
            elif taken and rows + request.rows > limit:
                full = True
            else:
                taken.append(queue.popleft())
                rows += request.rows
                full = rows >= limit
        if not taken:
            return
        due = taken[0][1] + self._delay_s
        if full or due <= now:
            self.execute(replica, [request for request, _ in taken])
            return
        queue.extendleft(reversed(taken))
        if replica.timer is None:
            replica.timer = self.world.at(due, partial(self._on_timer, replica))

    def _on_timer(self, replica: _Replica) -> None:
        replica.timer = None
        if replica.running is None:
            self._run(replica)


def _load(replica: _Replica) -> int:
    return replica.rows
