"""Central planners: one scheduler plans executions at replicas whose future it predicts, and sends batches ahead."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from functools import partial
from math import inf
from typing import NamedTuple

from benchmarks.scheduling.baselines.serving import ROUNDING_S, ModelServer, Worker
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app_simulator.scenario import SimulatedModel
from serve_app_simulator.system import Request, Timer, World


class Action(NamedTuple):
    """A batch that was sent.

    Attributes:
        requests: Its requests.
        expected_s: Predicted execution time, seconds.
        latest: A replica that could not begin by then refuses it.
    """

    requests: list[Request]
    expected_s: float
    latest: float


class PlannedWorker(Worker):
    """A replica as its planner sees it.

    Attributes:
        free_at: When everything sent to it is predicted to be done.
        staged: Actions that have arrived and wait.
        unstarted_s: Predicted time of each action that has not begun and the pause after it, in the order sent.
    """

    __slots__ = ("free_at", "staged", "unstarted_s")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.free_at = -inf
        self.staged: deque[Action] = deque()
        self.unstarted_s: deque[float] = deque()


class PlannedServer(ModelServer):
    """Serves one model from a central queue.

    Args:
        world: Of the simulation.
        model: The model.
        latency: Predicts its executions, and learns from them.

    Attributes:
        workers: The listed replicas that have not failed.
    """

    def __init__(self, world: World, model: SimulatedModel, latency: LatencyModel) -> None:
        super().__init__(world, model, latency, remote=True)
        self.latency = latency
        overheads = world.overheads
        self._pause_s = overheads.between_s * overheads.mean_factor
        self.workers: dict[str, PlannedWorker] = {}
        self._timer: Timer | None = None
        self._timer_at = inf

    @abstractmethod
    def plan(self) -> None:
        """Something has changed: send what is due, and set the alarm for the rest."""

    def set_alarm(self, when: float) -> None:
        """Call `plan` at this time and no other; ``inf``: never."""
        if self._timer is not None:
            if self._timer_at == when:
                return
            self._timer.cancel()
            self._timer = None
        if when < inf:
            self._timer, self._timer_at = self.world.at(when, self._on_timer), when

    def _on_timer(self) -> None:
        self._timer = None
        self.plan()

    def next_worker(self) -> PlannedWorker | None:
        """The replica that is free first, of those at which every action has begun; an idle one before all others."""
        best, soonest, now = None, inf, self.world.now
        for worker in self.workers.values():
            if not worker.unstarted_s:
                free_at = max(now, worker.free_at) if worker.running is not None else -inf
                if free_at < soonest:
                    best, soonest = worker, free_at
        return best

    def send(self, worker: PlannedWorker, requests: list[Request], rows: int, bucket: int, slip_s: float = inf) -> None:
        """Send a batch.

        Args:
            worker: Where to.
            requests: The batch.
            rows: Of it.
            bucket: Of it.
            slip_s: How much later than planned the replica may begin it, seconds.
        """
        arrives = self.world.now + self.send_s
        begins = max(arrives, worker.free_at)
        action = Action(requests, self.latency.predict(rows, bucket), begins + slip_s)
        worker.free_at = begins + action.expected_s + self._pause_s
        worker.unstarted_s.append(action.expected_s + self._pause_s)
        if self.send_s > 0.0:
            self.travel(partial(self._arrived, worker, action))
        else:
            worker.staged.append(action)
            if worker.running is None:
                self._begin(worker)

    def _arrived(self, worker: PlannedWorker, action: Action) -> None:
        worker.staged.append(action)
        if worker.running is None:
            self._begin(worker)
            self.plan()

    def _begin(self, worker: PlannedWorker) -> None:
        """The replica is idle."""
        while worker.staged and worker.running is None:
            action = worker.staged.popleft()
            worker.unstarted_s.popleft()
            wanted = [request for request in action.requests if request.ended is None]
            if worker.lost or action.latest + ROUNDING_S < self.world.now:
                for request in wanted:
                    self.drop(request)
            elif wanted:
                worker.free_at = self.world.now + action.expected_s + self._pause_s + sum(worker.unstarted_s)
                self.execute(worker, wanted)
        if worker.running is None:
            worker.free_at = self.world.now + sum(worker.unstarted_s)

    def joined(self, name: str) -> None:
        """See `ModelServer.joined`."""
        self.workers[name] = PlannedWorker(name)
        self.plan()

    def left(self, name: str) -> None:
        """See `ModelServer.left`."""
        worker = self.workers.pop(name, None)
        if worker is not None:
            worker.listed = False

    def lost(self, worker: Worker) -> None:
        """What was sent there is lost too."""
        assert isinstance(worker, PlannedWorker)
        self.workers.pop(worker.name, None)
        self._begin(worker)
        self.plan()

    def finished(self, worker: Worker, requests: list[Request], rows: int, bucket: int, seconds: float) -> None:  # noqa: ARG002 - as the base says
        """See `ModelServer.finished`."""
        assert isinstance(worker, PlannedWorker)
        self.latency.observe(rows, bucket, seconds)
        self._begin(worker)
        self.plan()
