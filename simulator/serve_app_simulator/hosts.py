"""Hosts of pools: processes that load some of many models, and execute what they have loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

import numpy as np

from serve_app_simulator.loop import Loop
from serve_app_simulator.machine import Machine, SharedComputeDevice
from serve_app_simulator.results import PoolUsage
from serve_app_simulator.scenario import Device, SimulatedModel, SimulatedPool
from serve_app_simulator.system import Loaded

THRASH_S = 1.0
"""A member that is loaded again so soon after it was evicted from the same host was evicted in vain, seconds."""


class HostDevice(SharedComputeDevice):
    """The cores of a host, slower while it loads."""

    __slots__ = ("_loads", "_slowdown")

    def __init__(self, loop: Loop, pool: SimulatedPool) -> None:
        super().__init__(loop, Device(pool.scheduling.name, pool.cores))
        self._slowdown = pool.slowdown
        self._loads = 0

    def speed(self, running: int) -> float:
        """See `SharedComputeDevice.speed`."""
        return super().speed(running) / (self._slowdown if self._loads else 1.0)

    def loads(self, more: int) -> None:
        """Count loads that begin, or end with a negative number."""
        self._progress()
        self._loads += more
        self._plan()


@dataclass(slots=True, eq=False)
class _Host:
    """A process.

    Attributes:
        used_bytes: Memory of members that are loaded or loading.
        residents: What runs each loaded member.
        evicted: Time of each member's last eviction.
    """

    name: str
    device: HostDevice
    used_bytes: int
    residents: dict[str, Machine]
    loading: set[str]
    evicted: dict[str, float]


class Hosts:
    """The processes of one pool.

    Attributes:
        names: Their names.
        usage: What they did from ``warm_up_s`` on.
    """

    def __init__(
        self,
        pool: SimulatedPool,
        models: dict[str, SimulatedModel],
        loop: Loop,
        seed: int,
        make_machine: Callable[[str, str, HostDevice], Machine],
        retire: Callable[[Machine], None],
        warm_up_s: float,
    ) -> None:
        self._pool = pool
        self._models = models
        self._loop = loop
        self._make_machine = make_machine
        self._retire = retire
        self._warm_up_s = warm_up_s
        self._rng = np.random.default_rng((seed, 9))
        self.names = tuple(f"{pool.scheduling.name}#{number}" for number in range(1, pool.hosts + 1))
        self._hosts = {name: _Host(name, HostDevice(loop, pool), 0, {}, set(), {}) for name in self.names}
        self._copies = dict.fromkeys(models, 0)
        self.usage = PoolUsage()

    def asked(self, model: str) -> None:
        """Count a request for a member as a hit or a miss."""
        if self._loop.now >= self._warm_up_s:
            if self._copies[model]:
                self.usage.hits += 1
            else:
                self.usage.misses += 1

    def load(self, model: str, host: str, done: Callable[[Loaded], None]) -> None:
        """See `World.load_member`."""
        at, nbytes = self._hosts[host], self._models[model].scheduling.resident_bytes
        if model in at.residents or model in at.loading:
            raise ValueError(f"{host} has {model} already")
        if at.used_bytes + nbytes > self._pool.scheduling.memory_bytes:
            raise ValueError(f"{host} has no memory for {model}")
        at.used_bytes += nbytes
        at.loading.add(model)
        at.device.loads(1)
        seconds, spread = self._pool.load_s, self._pool.load_spread
        if spread > 0.0:
            seconds *= float(self._rng.lognormal(-spread * spread / 2.0, spread))
        now, usage = self._loop.now, self.usage
        if now >= self._warm_up_s:
            usage.loads += 1
            usage.loaded_bytes += nbytes
            usage.load_s += seconds
            usage.thrash += now - at.evicted.get(model, -inf) < THRASH_S
        self._loop.at(now + seconds, partial(self._loaded, model, at, seconds, nbytes, done))

    def _loaded(self, model: str, at: _Host, seconds: float, nbytes: int, done: Callable[[Loaded], None]) -> None:
        at.device.loads(-1)
        at.loading.remove(model)
        at.residents[model] = machine = self._make_machine(f"{model}@{at.name}", model, at.device)
        self._copies[model] += 1
        done(Loaded(machine.name, seconds, nbytes))

    def evict(self, model: str, host: str) -> None:
        """See `World.evict_member`."""
        at = self._hosts[host]
        machine = at.residents.get(model)
        if machine is None:
            raise ValueError(f"{host} has no {model}")
        if machine.running is not None:
            raise ValueError(f"{host} runs {model}")
        del at.residents[model]
        self._copies[model] -= 1
        at.used_bytes -= self._models[model].scheduling.resident_bytes
        at.evicted[model] = self._loop.now
        if self._loop.now >= self._warm_up_s:
            self.usage.evictions += 1
        self._retire(machine)
