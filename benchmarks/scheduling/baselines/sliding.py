"""Early drop in the server's process: a sliding window over one queue, as good as it gets without a scheduler.

The window is Nexus' (Shen et al., "Nexus: A GPU Cluster Engine for Accelerating DNN-Based Video Analysis", SOSP 2019,
section 4.3), in a batcher that is part of the process that answers clients, like Triton's. When a session can begin its
next batch, requests at the front of the queue that could not be in time in a batch of the size set, or of all that is
left, if that is less, are dropped, so that those behind them can have it. The queue is ordered by deadline; where all
are equal that is the order of arrival. A batch that is smaller than the size set may wait a little for more.

Classes are strict levels: a lower one fills up what is left of a batch, as far as nobody of a higher one becomes late.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from benchmarks.scheduling.baselines.serving import ROUNDING_S, Baseline, ModelServer, Worker, known_latency
from serve_app.domain.priority import Priority
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app_simulator.scenario import SimulatedModel
from serve_app_simulator.system import Request, Timer, World

_Heap = list[tuple[float, int, Request]]


class SlidingWindow(Baseline):
    """A batcher with early drop.

    Args:
        max_batch_size: Rows of a full batch; ``None``: the model's ``max_rows``.
        delay_s: How long a batch that is not full waits for more, from when a session is free and a request waits.
        levels: Whether classes are priority levels; otherwise there is one queue.
    """

    name = "sliding"

    def __init__(self, max_batch_size: int | None = None, delay_s: float = 0.0, *, levels: bool = True) -> None:
        super().__init__()
        if delay_s < 0.0:
            raise ValueError(f"delay_s must be at least 0, got {delay_s}")
        self.max_batch_size = max_batch_size
        self.delay_s = delay_s
        self.levels = levels

    def serve(self, world: World, model: SimulatedModel) -> ModelServer:
        """See `Baseline.serve`."""
        most = model.scheduling.max_rows if self.max_batch_size is None else self.max_batch_size
        levels = len(Priority) if self.levels else 1
        return _Server(world, model, known_latency(world.scenario, model), most, self.delay_s, levels)


class _Server(ModelServer):
    def __init__(
        self, world: World, model: SimulatedModel, latency: LatencyModel, most: int, delay_s: float, levels: int
    ) -> None:
        super().__init__(world, model, latency)
        self._predictions = latency
        self._most = most
        self._delay_s = delay_s
        self._queues: list[_Heap] = [[] for _ in range(levels)]
        self._rows = [0] * levels
        self._workers: dict[str, Worker] = {}
        self._free: dict[Worker, None] = {}
        self._timer: Timer | None = None

    def enqueue(self, request: Request) -> None:
        level = request.priority - 1 if len(self._queues) > 1 else 0
        heappush(self._queues[level], (request.deadline - self.answer_s + ROUNDING_S, request.id, request))
        self._rows[level] += request.rows
        self._serve()

    def joined(self, name: str) -> None:
        worker = self._workers[name] = Worker(name)
        self._free[worker] = None
        self._serve()

    def left(self, name: str) -> None:
        worker = self._workers.pop(name)
        worker.listed = False
        self._free.pop(worker, None)

    def finished(self, worker: Worker, requests: list[Request], rows: int, bucket: int, seconds: float) -> None:  # noqa: ARG002 - as the base says
        self._predictions.observe(rows, bucket, seconds)
        if worker.listed:
            self._free[worker] = None
            self._serve()

    def lost(self, worker: Worker) -> None:
        """Other sessions go on."""

    def _serve(self, waited: bool = False) -> None:
        """Let batches leave while there are free sessions."""
        if self.cancelled:
            self._forget_ended()
        while self._free and any(self._queues):
            if self._delay_s > 0.0 and not waited and sum(self._rows) < self._most:
                if self._timer is None:
                    self._timer = self.world.at(self.world.now + self._delay_s, self._on_timer)
                return
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            batch = self._form()
            if batch:
                worker = next(iter(self._free))
                del self._free[worker]
                self.execute(worker, batch)

    def _on_timer(self) -> None:
        self._timer = None
        self._serve(waited=True)

    def _form(self) -> list[Request]:
        """Slide the window over every level. Empty when all that waits is too late."""
        predict, now = self._predictions.predict, self.world.now
        batch: list[Request] = []
        rows = bucket = 0
        due = float("inf")
        for level, queue in enumerate(self._queues):
            while queue:
                deadline, _, request = queue[0]
                if batch and rows + request.rows > self._most:
                    break
                widest = max(bucket, request.bucket)
                if now + predict(rows + request.rows, widest) > due:
                    break
                # What the batch will be if all that is left of this level is in time and makes nobody late.
                possible = min(max(self._most, rows + request.rows), rows + self._rows[level])
                if rows and now + predict(possible, widest) > due:
                    possible = max(rows + request.rows, self._predictions.rows_within(due - now, widest, possible))
                heappop(queue)
                self._rows[level] -= request.rows
                if deadline < now + predict(possible, widest):
                    self.drop(request)
                    continue
                batch.append(request)
                rows += request.rows
                bucket = widest
                due = min(due, deadline)
            if rows >= self._most:
                break
        return batch

    def _forget_ended(self) -> None:
        self.cancelled = False
        for level, queue in enumerate(self._queues):
            kept = [waiting for waiting in queue if waiting[2].ended is None]
            if len(kept) < len(queue):
                heapify(kept)
                self._queues[level] = kept
                self._rows[level] = sum(request.rows for _, _, request in kept)
