"""Machines: replicas that execute one batch at a time, and the devices that replicas share.

A replica with a device of its own runs at full speed. Replicas on one device share it like processes on a processor:
``n`` running executions progress at ``min(1, concurrency / n)`` of full speed each, less the interference, and what is
left of each is computed anew whenever ``n`` changes (processor sharing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from serve_app_simulator.loop import Event, Loop
from serve_app_simulator.scenario import Device, Failure, Noise
from serve_app_simulator.system import Execution, Request, Status

_CHUNK = 1024
_EPSILON_S = 1e-12


class NoiseSource:
    """Random factors, stalls and slow episodes of one replica's executions.

    Under one seed, every system meets the same noise at a replica's n-th execution, and the same episodes at the same
    times.
    """

    __slots__ = ("_drifts", "_episode", "_factors", "_noise", "_rng", "_stalls")

    def __init__(self, noise: Noise, seed: Sequence[int]) -> None:
        self._noise = noise
        self._rng = np.random.default_rng([*seed, 0])
        self._stalls = np.random.default_rng([*seed, 1])
        self._drifts = np.random.default_rng([*seed, 2])
        self._factors: list[float] = []
        self._episode = (-inf, 0.0)

    def factor(self, now: float) -> float:
        """The next execution's time as a multiple of its mean, if it begins now. Times must not fall."""
        return self._scattered() * (self._noise.drift if self._drifting(now) else 1.0)

    def _drifting(self, now: float) -> bool:
        every_s, lasts_s = self._noise.drift_every_s, self._noise.drift_s
        if every_s <= 0.0 or lasts_s <= 0.0:
            return False
        while self._episode[1] <= now:
            begins = self._episode[1] + self._drifts.exponential(every_s)
            self._episode = (begins, begins + self._drifts.exponential(lasts_s))
        return self._episode[0] <= now

    def _scattered(self) -> float:
        if not self._factors:
            if self._noise.kind == "none" or self._noise.spread == 0.0:
                return 1.0
            spread = self._noise.spread
            if self._noise.kind == "uniform":
                drawn = self._rng.uniform(1.0 - spread, 1.0 + spread, _CHUNK)
            else:
                drawn = self._rng.lognormal(-spread * spread / 2.0, spread, _CHUNK)
            self._factors = np.maximum(drawn, 1e-3).tolist()
        return self._factors.pop()

    def next_stall_s(self) -> float:
        """Seconds to the next stall; ``inf`` when there are none."""
        every = self._noise.stall_every_s
        return float(self._stalls.exponential(every)) if every > 0.0 and self._noise.stall_s > 0.0 else inf


class Running:
    """An execution that has begun.

    Attributes:
        rows: Rows, padding included.
        work_s: Work left, seconds at full speed. Only a shared device keeps it up to date.
        began: When it began to compute, or will.
        waited_s: How long requests of its model had waited by then; see `serve_app_simulator.results.Waiting`.
        raises: Whether the model will raise at its end.
    """

    __slots__ = ("began", "begun", "done", "raises", "requests", "rows", "waited_s", "work_s")

    def __init__(
        self,
        requests: Sequence[Request],
        rows: int,
        work_s: float,
        began: float,
        done: Callable[[Execution], None],
        *,
        raises: bool = False,
    ) -> None:
        self.raises = raises
        self.requests = requests
        self.rows = rows
        self.work_s = work_s
        self.began = began
        self.done = done
        self.begun = False
        self.waited_s = 0.0


class ComputeDevice:
    """Where executions make progress. A device of a single replica: nothing slows it down."""

    __slots__ = ("_event", "_loop")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._event: Event | None = None

    def add(self, running: Running, end: Callable[[], None]) -> None:
        """Compute the rest of an execution, then call ``end``."""
        self._event = self._loop.at(self._loop.now + running.work_s, end)

    def remove(self, running: Running) -> None:
        """Interrupt an execution."""
        if self._event is not None:
            running.work_s = max(0.0, self._event.when - self._loop.now)
            self._event.cancel()
            self._event = None


class SharedComputeDevice(ComputeDevice):
    """A device that several replicas compute on.

    Args:
        loop: Of the simulation.
        device: Its speed.
    """

    __slots__ = ("_device", "_running", "_since")

    def __init__(self, loop: Loop, device: Device) -> None:
        super().__init__(loop)
        self._device = device
        self._running: dict[Running, Callable[[], None]] = {}
        self._since = 0.0

    def speed(self, running: int) -> float:
        """How fast each of that many executions progresses, 1 being full speed."""
        if running <= 1:
            return 1.0
        return min(1.0, self._device.concurrency / running) * (1.0 - self._device.interference)

    def add(self, running: Running, end: Callable[[], None]) -> None:
        """See `ComputeDevice.add`."""
        self._progress()
        self._running[running] = end
        self._plan()

    def remove(self, running: Running) -> None:
        """See `ComputeDevice.remove`."""
        self._progress()
        self._running.pop(running, None)
        self._plan()

    def _progress(self) -> None:
        """Note what has been computed since the last change."""
        done_s = (self._loop.now - self._since) * self.speed(len(self._running))
        self._since = self._loop.now
        if done_s > 0.0:
            for running in self._running:
                running.work_s = max(0.0, running.work_s - done_s)

    def _plan(self) -> None:
        if self._event is not None:
            self._event.cancel()
            self._event = None
        if self._running:
            least_s = min(running.work_s for running in self._running)
            self._event = self._loop.at(self._loop.now + least_s / self.speed(len(self._running)), self._end)

    def _end(self) -> None:
        self._progress()
        least_s = min(running.work_s for running in self._running)
        ended = [running for running in self._running if running.work_s <= least_s + _EPSILON_S]
        ends = [self._running.pop(running) for running in ended]
        self._plan()
        for end in ends:
            end()


class Machine:
    """One replica: starting, listed, hanging, draining, or dead.

    Args:
        between_s: Draws the pause between two executions.
        luck: Draws from 0 to 1: which executions raise while a part of them do.
        on_begin: Called when an execution begins to compute.
        on_end: Called when it ends, with whether the replica died under it.

    Attributes:
        born: When it was first listed; ``None`` while it starts.
        gone: When it left the list or died.
        busy_until: End of its last execution.
        held_until: No execution makes progress before this: a pause, a stall, or a hang.
        hang_of: The failure that made it hang last.
        changed: Called when it goes on or dies.
    """

    __slots__ = (
        "_between_s",
        "_failing_share",
        "_failing_until",
        "_held",
        "_loop",
        "_luck",
        "_noise",
        "_processor",
        "_stall_s",
        "_stalls",
        "born",
        "busy_until",
        "changed",
        "dead",
        "gone",
        "hang_of",
        "hangs_until",
        "held_until",
        "model",
        "name",
        "on_begin",
        "on_end",
        "running",
    )

    def __init__(
        self,
        name: str,
        model: str,
        loop: Loop,
        processor: ComputeDevice,
        noise: NoiseSource,
        stall_s: float,
        between_s: Callable[[], float],
        luck: Callable[[], float],
        on_begin: Callable[[Running], None],
        on_end: Callable[[Machine, Running, bool], None],
    ) -> None:
        self.name = name
        self.model = model
        self.on_begin = on_begin
        self.on_end = on_end
        self.running: Running | None = None
        self.dead = False
        self.born: float | None = None
        self.gone: float | None = None
        self.busy_until = 0.0
        self._loop = loop
        self._processor = processor
        self._noise = noise
        self._stall_s = stall_s
        self._between_s = between_s
        self._luck = luck
        self._failing_until = -inf
        self.held_until = -inf
        self.hangs_until = -inf
        self._failing_share = 0.0
        self.hang_of: Failure | None = None
        self.changed: list[Callable[[], None]] = []
        self._held: Event | None = None
        self._stalls: Event | None = None

    def __repr__(self) -> str:
        return f"<Machine {self.name} {'dead' if self.dead else 'busy' if self.running else 'idle'}>"

    def listed(self) -> None:
        """Begin to serve."""
        self.born = self._loop.now
        self._await_stall()

    def execute(self, requests: Sequence[Request], rows: int, mean_s: float, done: Callable[[Execution], None]) -> None:
        """Begin an execution. The machine has to be idle and alive."""
        now = self._loop.now
        begins = max(now, self.held_until)
        work_s = mean_s * self._noise.factor(begins)
        self.running = Running(requests, rows, work_s, begins, done, raises=self.raises())
        if begins > now:
            self._held = self._loop.at(begins, self._resume)
        else:
            self._resume()

    @property
    def status(self) -> Status:
        """Whether its process runs."""
        return "dead" if self.dead else "hangs" if self.hangs_until > self._loop.now else "works"

    def raises(self) -> bool:
        """Whether the model raises on what is run now."""
        return self._loop.now < self._failing_until and self._luck() < self._failing_share

    def fail(self, failure: Failure) -> None:
        """From now on a part of the executions raise."""
        self._failing_share = failure.share
        self._failing_until = self._loop.now + failure.lasts_s

    def hang(self, failure: Failure) -> None:
        """Stop the process for as long as the failure lasts."""
        self.hang_of = failure
        self.hangs_until = self._loop.now + failure.lasts_s
        self._hold_until(self.hangs_until)
        self._loop.at(self.hangs_until, self._go_on)

    def die(self) -> None:
        """Die now. The running execution fails."""
        self.dead = True
        if self._stalls is not None:
            self._stalls.cancel()
        if self.running is not None:
            self._pause()
            self._end(failed=True)
        self._tell()

    def _go_on(self) -> None:
        if self.status == "works":
            self._tell()

    def _tell(self) -> None:
        for changed in self.changed:
            changed()

    def _end(self, failed: bool = False) -> None:
        running = self.running
        assert running is not None
        self.running = None
        self.held_until = max(self.held_until, self._loop.now + self._between_s())
        self.on_end(self, running, failed)

    def _await_stall(self) -> None:
        after_s = self._noise.next_stall_s()
        if after_s < inf:
            self._stalls = self._loop.at(self._loop.now + after_s, self._stall)

    def _stall(self) -> None:
        self._hold_until(self._loop.now + self._stall_s)
        if self.gone is None:
            self._await_stall()

    def _hold_until(self, until: float) -> None:
        """Nothing makes progress until then."""
        self.held_until = max(self.held_until, until)
        if self.running is not None:
            self._pause()
            self._held = self._loop.at(self.held_until, self._resume)

    def _pause(self) -> None:
        assert self.running is not None
        if self._held is not None:
            self._held.cancel()
            self._held = None
        else:
            self._processor.remove(self.running)

    def _resume(self) -> None:
        self._held = None
        assert self.running is not None
        if not self.running.begun:
            self.running.begun = True
            self.running.began = self._loop.now
            self.on_begin(self.running)
        self._processor.add(self.running, self._end)
