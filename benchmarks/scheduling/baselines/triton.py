"""Triton Inference Server's dynamic batcher with priority levels and a queue policy (emulated).

Source: triton-inference-server/core, ``src/dynamic_batch_scheduler.cc`` and ``src/scheduler_utils.cc``, as read there.

One queue per model with one level per class: strict order of levels, first come, first served inside a level. When an
instance is free, the requests at the front form a batch as large as possible. With ``max_queue_delay_microseconds`` it
leaves when it is full or its oldest request has waited that long, otherwise at once. Levels and timeouts switch off
the forming of batches ahead of a free instance.

The queue policy rejects what has waited longer than its timeout. Only the time in the queue counts, not the execution.
A request's own timeout is honoured only where ``allow_timeout_override`` is set and it is smaller than a default that
is not 0; here the default is large, and every client sends a timeout made of its deadline (`Timeout`).

Simplified: a timeout is noticed when the batch is formed, as in Triton, and at no other time. One process holds queue
and instances. A request of more rows than a batch goes alone instead of being refused.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Literal, NamedTuple, get_args

from benchmarks.scheduling.baselines.serving import ROUNDING_S, Baseline, ModelServer, Worker, known_latency
from serve_app.domain.priority import Priority
from serve_app_simulator.scenario import Scenario, SimulatedModel
from serve_app_simulator.system import Request, Timer, World

Timeout = Literal["none", "budget", "one", "full", "half"]
"""How long clients let a request wait in the queue: for ever, as long as they wait themselves, less the overheads and
the execution of one row or of a full batch, or half as long."""
_SHORTEST_S = 1e-6


class Triton(Baseline):
    """Triton's dynamic batcher.

    Args:
        delay_s: ``max_queue_delay_microseconds``, in seconds.
        timeout: Queue timeouts that clients send; the action is REJECT.
        max_batch_size: Most rows in a batch; ``None``: the model's ``max_rows``.
        levels: Whether classes are priority levels; otherwise there is one queue.
    """

    name = "triton"

    def __init__(
        self,
        delay_s: float = 0.0,
        timeout: Timeout = "none",
        max_batch_size: int | None = None,
        *,
        levels: bool = True,
    ) -> None:
        super().__init__()
        if delay_s < 0.0:
            raise ValueError(f"delay_s must be at least 0, got {delay_s}")
        if timeout not in get_args(Timeout):
            raise ValueError(f"unknown timeout {timeout!r}; there are: {', '.join(get_args(Timeout))}")
        self.delay_s = delay_s
        self.timeout: Timeout = timeout
        self.max_batch_size = max_batch_size
        self.levels = levels

    def serve(self, world: World, model: SimulatedModel) -> ModelServer:
        """See `Baseline.serve`."""
        most = model.scheduling.max_rows if self.max_batch_size is None else self.max_batch_size
        return _Server(world, model, self.delay_s, self.timeout, most, levels=self.levels)


class _Waiting(NamedTuple):
    request: Request
    enqueued: float
    expires: float


class _Server(ModelServer):
    def __init__(
        self,
        world: World,
        model: SimulatedModel,
        delay_s: float,
        timeout: Timeout,
        max_batch_size: int,
        *,
        levels: bool,
    ) -> None:
        super().__init__(world, model)
        self._delay_s = delay_s
        self._most = max_batch_size
        self._fraction, self._margin_s = _timeout(world.scenario, model, timeout, max_batch_size)
        self._queues: list[deque[_Waiting]] = [deque() for _ in range(len(Priority) if levels else 1)]
        self._workers: dict[str, Worker] = {}
        self._free: dict[Worker, None] = {}
        self._rows = 0
        self._timer: Timer | None = None
        self._timer_at = inf

    def enqueue(self, request: Request) -> None:
        now = self.world.now
        waits_s = max(_SHORTEST_S, (request.deadline - request.arrival) * self._fraction - self._margin_s)
        queue = self._queues[request.priority - 1 if len(self._queues) > 1 else 0]
        queue.append(_Waiting(request, now, now + waits_s))
        self._rows += request.rows
        if self._free:
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
        if worker.listed:
            self._free[worker] = None
            self._serve()

    def lost(self, worker: Worker) -> None:
        """Other instances go on; they would have been woken by what has arrived meanwhile."""

    def _serve(self) -> None:
        """Let batches leave while there are free instances and batches that need not wait."""
        while self._free and self._rows:
            if self._delay_s > 0.0 and self._rows < self._most and self._wait_for_more():
                return
            batch = self._form()
            if not batch:
                return
            worker = next(iter(self._free))
            del self._free[worker]
            self.execute(worker, batch)

    def _wait_for_more(self) -> bool:
        """Whether the oldest request has not waited as long as the delay, and a timer has been set for when it has."""
        oldest = inf
        for queue in self._queues:
            while queue and self._expired(queue[0]):
                self._pop(queue)
            if queue and queue[0].enqueued < oldest:
                oldest = queue[0].enqueued
        if oldest == inf:
            return True
        due = oldest + self._delay_s
        if due <= self.world.now:
            return False
        if self._timer is None or self._timer_at != due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = self.world.at(due, self._on_timer), due
        return True

    def _on_timer(self) -> None:
        self._timer = None
        self._serve()

    def _form(self) -> list[Request]:
        """Take the next batch from the front. Empty when all have timed out, or it shall grow."""
        taken: list[tuple[deque[_Waiting], _Waiting]] = []
        rows, oldest, full = 0, inf, False
        for queue in self._queues:
            while queue and not full:
                if self._expired(queue[0]):
                    self._pop(queue)
                elif rows and rows + queue[0].request.rows > self._most:
                    full = True
                else:
                    waiting = self._pop(queue)
                    taken.append((queue, waiting))
                    rows += waiting.request.rows
                    oldest = min(oldest, waiting.enqueued)
                    full = rows >= self._most
            if full:
                break
        if taken and not full and self._delay_s > 0.0 and oldest + self._delay_s > self.world.now:
            # What was counted as full had timed out in part.
            for queue, waiting in reversed(taken):
                queue.appendleft(waiting)
            self._rows += rows
            self._wait_for_more()
            return []
        return [waiting.request for _, waiting in taken]

    def _expired(self, waiting: _Waiting) -> bool:
        """Whether the queue policy drops it, or its client has cancelled it."""
        if waiting.request.ended is not None:
            return True
        if waiting.expires + ROUNDING_S < self.world.now:
            self.drop(waiting.request)
            return True
        return False

    def _pop(self, queue: deque[_Waiting]) -> _Waiting:
        waiting = queue.popleft()
        self._rows -= waiting.request.rows
        return waiting


def _timeout(scenario: Scenario, model: SimulatedModel, timeout: Timeout, max_rows: int) -> tuple[float, float]:
    """What part of its deadline a client waits, and how many seconds less."""
    if timeout == "none":
        return inf, 0.0
    if timeout == "half":
        return 0.5, 0.0
    overheads = scenario.overheads
    around_s = (overheads.request_s + overheads.direct_s) * overheads.mean_factor
    if timeout == "budget":
        return 1.0, around_s
    latency = known_latency(scenario, model)
    return 1.0, around_s + (latency.predict(1 if timeout == "one" else max_rows) if latency.known else 0.0)
