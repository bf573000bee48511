"""Clockwork: predict every execution, refuse what cannot finish, and keep each worker one action ahead.

Source: Gujarati et al., "Serving DNNs like Clockwork: Performance Predictability from the Bottom Up", OSDI 2020; and
``src/clockwork/controller/infer5/infer5_scheduler.cpp``, as read there.

A batch size is predicted to take the 99th percentile of its last 10 executions (as `LatencyModel` counts, the second
longest). The controller sends the next action to
a worker when it is predicted to be free within ``schedule_ahead_s``. For every batch size the requests at the front
that could not be in time in a batch of that size are passed over; of the sizes for which enough requests remain, the
largest is taken, and what it has passed over is dropped. A worker refuses an action that it would begin more than
``latest_delta_s`` late. On arrival a request is refused when it could not finish even alone on the worker that is free
first.

Simplified: every batch size up to the model's is available, where Clockwork compiles a few; weights are always loaded;
with one model per worker, choosing among models by latest start, deadline - L(b), is no choice. The queue is ordered by
deadline, where Clockwork's is by arrival: the same where all requests of a model have one objective, and better for it
where they have not. There are no classes.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from math import inf

from benchmarks.scheduling.baselines.planned import PlannedServer
from benchmarks.scheduling.baselines.serving import ROUNDING_S, Baseline, ModelServer, known_latency
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app_simulator.scenario import SimulatedModel
from serve_app_simulator.system import Request, World

_QUANTILE = 0.99
_WINDOW = 10


class Clockwork(Baseline):
    """Clockwork's controller.

    Args:
        buffer_s: How much earlier than at the deadline it aims to finish. Clockwork's own is 5 ms, made for objectives
            of 100 ms.
        schedule_ahead_s: How long before a worker is free its next action is sent.
        latest_delta_s: How late a worker may begin an action.
    """

    name = "clockwork"

    def __init__(self, buffer_s: float = 0.0, schedule_ahead_s: float = 0.005, latest_delta_s: float = 0.01) -> None:
        super().__init__()
        if min(buffer_s, schedule_ahead_s, latest_delta_s) < 0.0:
            raise ValueError("buffer_s, schedule_ahead_s and latest_delta_s must be at least 0")
        self.buffer_s = buffer_s
        self.schedule_ahead_s = schedule_ahead_s
        self.latest_delta_s = latest_delta_s

    def serve(self, world: World, model: SimulatedModel) -> ModelServer:
        """See `Baseline.serve`."""
        latency = known_latency(world.scenario, model, _QUANTILE, _WINDOW)
        return _Server(world, model, latency, self.buffer_s, self.schedule_ahead_s, self.latest_delta_s)


class _Server(PlannedServer):
    def __init__(
        self,
        world: World,
        model: SimulatedModel,
        latency: LatencyModel,
        buffer_s: float,
        ahead_s: float,
        slip_s: float,
    ) -> None:
        super().__init__(world, model, latency)
        self._margin_s = buffer_s + self.answer_s - ROUNDING_S
        self._ahead_s = ahead_s
        self._slip_s = slip_s
        self._queue: list[tuple[float, int, Request]] = []
        self._rows = 0

    def enqueue(self, request: Request) -> None:
        start = self.world.now + self.send_s
        if self.workers:
            start = max(start, min([worker.free_at for worker in self.workers.values()]))
            if start + self.latency.predict(request.rows, request.bucket) > request.deadline - self._margin_s:
                self.drop(request)
                return
        heappush(self._queue, (request.deadline - self._margin_s, request.id, request))
        self._rows += request.rows
        self.plan()

    def plan(self) -> None:
        while self._queue:
            worker = self.next_worker()
            if worker is None:
                self.set_alarm(inf)
                return
            earliest = self.world.now + self.send_s
            if worker.free_at - earliest > self._ahead_s + ROUNDING_S:
                self.set_alarm(worker.free_at - self.send_s - self._ahead_s)
                return
            batch, rows, bucket = self._dequeue(max(earliest, worker.free_at))
            if not batch:
                return
            self.send(worker, batch, rows, bucket, self._slip_s)

    def _dequeue(self, start: float) -> tuple[list[Request], int, int]:
        """The batch to begin at ``start``, its rows and bucket. Empty when nothing in the queue can be in time."""
        queue, predict, most = self._queue, self.latency.predict, self.max_rows
        if self.cancelled:
            self._forget_ended()
        while queue and queue[0][0] < start + predict(queue[0][2].rows, queue[0][2].bucket):
            self._pass_over(heappop(queue)[2])
        if not queue:
            return [], 0, 0
        heads = [heappop(queue)]
        if len(self.latency.buckets) > 1:
            heads += [heappop(queue) for _ in range(min(most - 1, len(queue)))]
        bucket = max(request.bucket for _, _, request in heads)
        due, _, head = heads[0]
        available = self._rows
        size = min(available, max(head.rows, self.latency.rows_within(due - start, bucket, most)))
        passed = at = 0
        for larger in range(size + 1, min(available, most) + 1):
            finish = start + predict(larger, bucket)
            while heads[at][0] < finish and available - heads[at][2].rows >= larger:
                available -= heads[at][2].rows
                at += 1
                if at == len(heads):
                    heads.append(heappop(queue))
            if heads[at][0] < finish:
                break
            if heads[at][2].rows <= larger:
                size, passed = larger, at
        for _, _, request in heads[:passed]:
            self._pass_over(request)
        batch: list[Request] = []
        rows = widest = 0
        remaining = deque(heads[passed:])
        while remaining or queue:
            request = remaining[0][2] if remaining else queue[0][2]
            if batch and (rows + request.rows > size or request.bucket > bucket):
                break
            if remaining:
                remaining.popleft()
            else:
                heappop(queue)
            batch.append(request)
            rows += request.rows
            widest = max(widest, request.bucket)
        for waiting in remaining:
            heappush(queue, waiting)
        self._rows -= rows
        return batch, rows, widest

    def _pass_over(self, request: Request) -> None:
        self._rows -= request.rows
        self.drop(request)

    def _forget_ended(self) -> None:
        self.cancelled = False
        self._queue[:] = [waiting for waiting in self._queue if waiting[2].ended is None]
        heapify(self._queue)
        self._rows = sum(request.rows for _, _, request in self._queue)
