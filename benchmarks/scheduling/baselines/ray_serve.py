"""Plain Ray Serve: requests are routed one by one, and ``@serve.batch`` batches them in the replica.

Source: Ray 2.60.0, ``ray/serve/_private/request_router`` and ``ray/serve/batching.py``, as read there.

The router holds requests in one FIFO queue. At most two routing tasks per replica take from it. A task draws two
replicas and sends the oldest request to the one with fewer ongoing requests; while both have ``max_ongoing_requests``
it tries once more at once and then sleeps 25 ms, 50 ms ... up to 0.5 s. A replica that becomes free wakes nobody.

In the replica, ``@serve.batch`` is one FIFO queue and a loop. The loop takes the first request, collects more until the
batch is full or ``batch_wait_timeout_s`` has passed since then, and hands the batch to a task that waits for the
semaphore of ``max_concurrent_batches=1``. It does not wait for that task: while a batch executes it goes on, so that
under load a row of small batches forms whose sizes are fixed long before they run. That is Ray's real behaviour and
kept here.

Simplified: the router knows the replicas' ongoing requests exactly (Ray asks full ones by a call of about 1 ms); one
router; no multiplexing. A request that does not fit into the batch begins the next one, where Ray puts it at the back
of the queue.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from random import Random

from benchmarks.scheduling.baselines.serial import Serial
from benchmarks.scheduling.baselines.serving import Baseline, ModelServer, Worker
from serve_app_simulator.scenario import SimulatedModel
from serve_app_simulator.system import Request, Timer, World

_FIRST_BACKOFF_S = 0.025
_LONGEST_BACKOFF_S = 0.5
_TASKS_PER_REPLICA = 2
_MOST_TASKS = 50


class RayServeBatch(Baseline):
    """Ray Serve with ``@serve.batch`` in first-come, first-served order; knows neither deadlines nor classes.

    Args:
        batch_wait_timeout_s: As in ``@serve.batch``, whose default it has.
        max_batch_size: Most rows in a batch; ``None``: the model's ``max_rows``.
        max_ongoing_requests: Most requests at a replica at once; ``None``: twice ``max_batch_size``, because Ray's
            default of 5 would keep batches below it.
        disconnect: Whether clients close the connection at the deadline. Ray then drops what has not been executed;
            otherwise late requests are executed and their answers are late.
        seed: Of the router's draws.
    """

    name = "ray-serve"

    def __init__(
        self,
        batch_wait_timeout_s: float = 0.01,
        max_batch_size: int | None = None,
        max_ongoing_requests: int | None = None,
        *,
        disconnect: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if batch_wait_timeout_s < 0.0:
            raise ValueError(f"batch_wait_timeout_s must be at least 0, got {batch_wait_timeout_s}")
        self.batch_wait_timeout_s = batch_wait_timeout_s
        self.max_batch_size = max_batch_size
        self.max_ongoing_requests = max_ongoing_requests
        self.disconnect = disconnect
        self.seed = seed

    def serve(self, world: World, model: SimulatedModel) -> ModelServer:
        """See `Baseline.serve`."""
        most = model.scheduling.max_rows if self.max_batch_size is None else self.max_batch_size
        ongoing = 2 * most if self.max_ongoing_requests is None else self.max_ongoing_requests
        return _Server(
            world, model, self.batch_wait_timeout_s, most, ongoing, disconnect=self.disconnect, seed=self.seed
        )


class _Replica(Worker):
    """A replica with its batch queue.

    Attributes:
        ongoing: Requests routed there that have not ended.
        forming: The batch that collects; empty while the loop waits for a first request.
        rows: Rows of it.
        timer: Ends its collecting.
        batches: Batches that wait for the semaphore.
    """

    __slots__ = ("batches", "forming", "ongoing", "rows", "timer")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ongoing = 0
        self.forming: list[Request] = []
        self.rows = 0
        self.timer: Timer | None = None
        self.batches: deque[list[Request]] = deque()


class _Server(ModelServer):
    def __init__(
        self,
        world: World,
        model: SimulatedModel,
        wait_s: float,
        max_batch_size: int,
        max_ongoing: int,
        *,
        disconnect: bool,
        seed: int,
    ) -> None:
        super().__init__(world, model, remote=True)
        self._wait_s = wait_s
        self._max_batch_size = max_batch_size
        self._max_ongoing = max_ongoing
        self._disconnect = disconnect
        self._random = Random(f"{seed} {self.name}")
        self._replicas: dict[str, _Replica] = {}
        self._choices: list[_Replica] = []
        self._pending: deque[Request] = deque()
        self._tasks = 0
        self._processor = Serial(world, world.overheads.router_s)

    # ------------------------------------------------------------------ the router

    def enqueue(self, request: Request) -> None:
        self._processor.take(partial(self._queue, request))

    def _queue(self, request: Request) -> None:
        self._pending.append(request)
        self._start_tasks()

    def joined(self, name: str) -> None:
        self._replicas[name] = _Replica(name)
        self._list_choices()
        self._start_tasks()

    def left(self, name: str) -> None:
        self._replicas.pop(name).listed = False  # it drains: what is there is still executed
        self._list_choices()

    def _list_choices(self) -> None:
        self._choices = [replica for replica in self._replicas.values() if replica.usable]

    def _start_tasks(self) -> None:
        while self._choices and self._tasks < min(
            len(self._pending), _MOST_TASKS, _TASKS_PER_REPLICA * len(self._choices)
        ):
            self._tasks += 1
            self._route(0)

    def _route(self, attempt: int) -> None:
        """One routing task, from its beginning or after its ``attempt``-th sleep."""
        pending = self._pending
        while pending:
            if self._gone(pending[0]):
                pending.popleft()
                continue
            replica = self._choose()
            if replica is None and attempt == 0:
                replica = self._choose()
            if replica is None:
                sleep_s = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(attempt, 10))
                self.world.at(self.world.now + sleep_s, partial(self._route, attempt + 1))
                return
            attempt = 0
            replica.ongoing += 1
            request = pending.popleft()
            self.travel(partial(self._put, replica, request))
        self._tasks -= 1

    def _choose(self) -> _Replica | None:
        choices = self._choices
        if not choices:
            return None
        best = choices[0]
        if len(choices) > 1:
            first = int(self._random.random() * len(choices))
            second = int(self._random.random() * (len(choices) - 1))
            best, other = choices[first], choices[second + (second >= first)]
            if other.ongoing < best.ongoing:
                best = other
        return best if best.ongoing < self._max_ongoing else None

    def _gone(self, request: Request) -> bool:
        """Whether its client has left."""
        if request.ended is not None:
            return True
        if self._disconnect and request.deadline <= self.world.now:
            self.drop(request)
            return True
        return False

    # ------------------------------------------------------------------ the replica

    def _put(self, replica: _Replica, request: Request) -> None:
        """A request has reached its replica's batch queue."""
        if replica.lost:
            if request.ended is None:
                self.drop(request)
            return
        if replica.forming and replica.rows + request.rows > self._max_batch_size:
            self._close(replica)
        replica.forming.append(request)
        replica.rows += request.rows
        if replica.rows >= self._max_batch_size:
            self._close(replica)
        elif replica.timer is None:
            replica.timer = self.world.at(self.world.now + self._wait_s, partial(self._close, replica))

    def _close(self, replica: _Replica) -> None:
        """The forming batch takes no more; the loop goes on."""
        if replica.timer is not None:
            replica.timer.cancel()
            replica.timer = None
        replica.batches.append(replica.forming)
        replica.forming = []
        replica.rows = 0
        if replica.running is None:
            self._run(replica)

    def _run(self, replica: _Replica) -> None:
        """The semaphore is free."""
        while replica.batches:
            batch = replica.batches.popleft()
            wanted = [request for request in batch if not self._gone(request)]
            replica.ongoing -= len(batch) - len(wanted)
            if wanted:
                self.execute(replica, wanted)
                return

    def finished(self, worker: Worker, requests: list[Request], rows: int, bucket: int, seconds: float) -> None:  # noqa: ARG002 - as the base says
        assert isinstance(worker, _Replica)
        worker.ongoing -= len(requests)
        self._run(worker)

    def lost(self, worker: Worker) -> None:
        assert isinstance(worker, _Replica)
        self._list_choices()
        if worker.timer is not None:
            worker.timer.cancel()
            worker.timer = None
        for request in [request for batch in (*worker.batches, worker.forming) for request in batch]:
            if request.ended is None:
                self.drop(request)
        worker.batches.clear()
        worker.forming = []
