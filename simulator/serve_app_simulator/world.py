"""The world around a serving system: clock, clients, replicas, and what executions cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import exp, inf

import numpy as np

from serve_app.scheduling.demand import ModelDemand
from serve_app.scheduling.room import Claim, SharedRoom
from serve_app_simulator.delays import SampledDelays, request_delays
from serve_app_simulator.fleet import Fleet
from serve_app_simulator.hosts import HostDevice, Hosts
from serve_app_simulator.loop import Event, Loop
from serve_app_simulator.machine import ComputeDevice, Machine, NoiseSource, Running, SharedComputeDevice
from serve_app_simulator.results import DROPPED, IN_TIME, LATE, REPLACED, PoolUsage, Records, Usage, Waiting
from serve_app_simulator.scalers import ScalingStep
from serve_app_simulator.scenario import Overheads, Scenario, SimulatedPool
from serve_app_simulator.system import Execution, Hop, Loaded, Request, Status, System
from serve_app_simulator.workloads import Arrivals

_ROUNDING_S = 1e-9
"""Sums of virtual times differ by rounding: an answer this much after the deadline is still in time."""


_TAIL = 4.0
"""How many sigmas a late answer is waited for."""


class SimulatedWorld:
    """A `serve_app_simulator.system.World` of a checked scenario; samples queues every ``step_s`` virtual seconds."""

    def __init__(self, scenario: Scenario, seed: int, step_s: float) -> None:
        self._scenario = scenario
        self._seed = seed
        self._step_s = step_s
        self._loop = Loop()
        self._machines: dict[str, Machine] = {}
        self._devices = {device.name: SharedComputeDevice(self._loop, device) for device in scenario.devices}
        self._fleets = {
            model.scheduling.name: Fleet(
                model, self._loop, self._make_machine, self._tell, self._waiting_rows, self._read_demand
            )
            for model in scenario.models
        }
        self._places = {name: place for place, name in enumerate(self._fleets)}
        self._records = Records(0)
        self._open = 0
        overheads = scenario.overheads
        self._overheads = replace(overheads, request_s=0.0)
        self._request_s = request_delays(overheads, seed)
        medians: dict[Hop, float] = {
            "send": overheads.send_s,
            "answer": overheads.answer_s,
            "direct": overheads.direct_s,
            "timer": overheads.timer_s,
        }
        self._hops = {
            hop: SampledDelays(median_s, overheads.scatter, (seed, place, 8))
            for place, (hop, median_s) in enumerate(medians.items())
        }
        self._router_stalls = np.random.default_rng((seed, 0, 9))
        self._waiting = {name: Waiting(scenario.warm_up_s, scenario.duration_s) for name in self._fleets}
        self._hosts: dict[str, Hosts] = {pool.scheduling.name: self._make_hosts(pool) for pool in scenario.pools}
        self._hosts_of = {
            name: self._hosts[pool.scheduling.name] for pool in scenario.pools for name in pool.scheduling.models
        }
        self._loaded = 0
        self._shared_room = SharedRoom()
        self.usage = Usage()
        self.queued_rows: list[int] = []
        self.replicas: list[int] = []

    @property
    def now(self) -> float:
        """The time."""
        return self._loop.now

    @property
    def scenario(self) -> Scenario:
        """See `World.scenario`."""
        return self._scenario

    @property
    def overheads(self) -> Overheads:
        """See `World.overheads`."""
        return self._overheads

    @property
    def events(self) -> int:
        """Arrivals and actions so far."""
        return self._loop.events

    def run(self, system: System, arrivals: Arrivals) -> Records:
        """Serve the arrivals. Ends when all have ended, or when no answer can be in time any more."""
        self._records = Records(len(arrivals))
        self._open = len(arrivals)
        self._system = system
        system.start(self)
        for fleet in self._fleets.values():
            if fleet.name not in self._hosts_of:
                fleet.start()
        self._watch()
        for failure in self._scenario.failures:
            self._loop.at(failure.at_s, partial(self._fleets[failure.model].fail, failure))
        self._sample()
        overheads = self._scenario.overheads
        last = float(arrivals.deadline.max()) if len(arrivals) else 0.0
        around_s = overheads.request_s + overheads.send_s + overheads.answer_s
        end = max(self._scenario.duration_s, last) + around_s * exp(_TAIL * overheads.scatter)
        self._loop.run(arrivals.requests(), self._sent, end + _ROUNDING_S)
        for machine in self._machines.values():
            if machine.running is not None:
                self._charge(machine.running.requests, self._count(machine, machine.running))
            if machine.model not in self._hosts_of:
                self._count_replica(machine)
        hosts = sum(len(each.names) for each in self._hosts.values())
        self.usage.replica_s += hosts * (self._scenario.duration_s - self._scenario.warm_up_s)
        for waiting in self._waiting.values():
            waiting.note(self._loop.now)
            self.usage.waited_s += waiting.replica_s
            self.usage.busy_waited_s += min(waiting.replica_s, waiting.busy_s)
        return self._records

    # ------------------------------------------------------------------ as `World`

    def at(self, when: float, action: Callable[[], None]) -> Event:
        """See `World.at`."""
        return self._loop.at(when, action)

    def hop_s(self, hop: Hop) -> float:
        """See `World.hop_s`."""
        return self._hops[hop]()

    def next_stall_s(self) -> float:
        """See `World.next_stall_s`."""
        noise = self._scenario.noise
        stalls = noise.router_stall_every_s > 0.0 and noise.router_stall_s > 0.0
        return float(self._router_stalls.exponential(noise.router_stall_every_s)) if stalls else inf

    def execute(
        self,
        model: str,
        replica: str,
        requests: Sequence[Request],
        rows: int,
        bucket: int,
        done: Callable[[Execution], None],
        variant: str = "",
    ) -> None:
        """See `World.execute`. Raises ValueError also for an unknown replica or variant, and for no rows."""
        machine = self._machines.get(replica)
        if machine is None or machine.model != model:
            raise ValueError(f"model {model} has no replica {replica}")
        if machine.running is not None:
            raise ValueError(f"replica {replica} is busy")
        if rows < 1 or not requests:
            raise ValueError(f"a batch needs requests and rows, got {len(requests)} and {rows}")
        if machine.dead:
            self._loop.at(self._loop.now, partial(done, Execution(0.0, failed=True)))
            return
        fleet = self._fleets[model]
        if not variant:
            curve = fleet.model.curve
        elif variant in fleet.model.variants:
            curve = fleet.model.variants[variant]
        else:
            raise ValueError(f"model {model} has no variant {variant!r}")
        fleet.running_rows += rows
        for request in requests:
            if request.waits:
                self._stops_waiting(request)
        machine.execute(requests, rows, curve(rows, bucket), done)

    def idle(self, replica: str) -> bool:
        """See `World.idle`."""
        return self._machines[replica].running is None

    def ready_at(self, replica: str) -> float:
        """See `World.ready_at`."""
        return max(self._loop.now, self._machines[replica].held_until)

    def status(self, replica: str) -> Status:
        """See `World.status`."""
        return self._machines[replica].status

    def watch(self, replica: str, changed: Callable[[], None]) -> None:
        """See `World.watch`."""
        self._machines[replica].changed.append(changed)

    def kill(self, replica: str) -> None:
        """See `World.kill`."""
        machine = self._machines[replica]
        self._fleets[machine.model].kill(machine)

    def example_runs(self, replica: str) -> bool:
        """See `World.example_runs`."""
        return not self._machines[replica].raises()

    def answer(self, request: Request, left: float | None = None, hop: Hop = "answer") -> None:
        """See `World.answer`."""
        if request.ended is not None:
            return
        if request.raised:
            self.drop(request)
            return
        arrives = self._loop.now + (self._hops[hop]() if left is None else 0.0)
        request.answered = True
        self._records.latency_s[request.id] = arrives - request.arrival
        self._end(request, arrives, IN_TIME if arrives <= request.deadline + _ROUNDING_S else LATE)

    def drop(self, request: Request) -> None:
        """See `World.drop`."""
        if request.ended is None:
            self._end(request, self._loop.now, REPLACED if request.replaced else DROPPED)

    def load(self, model: str) -> int:
        """See `World.load`."""
        return self._fleets[model].running_rows

    def hosts(self, pool: str) -> Sequence[str]:
        """See `World.hosts`."""
        return self._hosts[pool].names

    def load_member(self, model: str, host: str, done: Callable[[Loaded], None]) -> None:
        """See `World.load_member`."""
        self._hosts_of[model].load(model, host, done)

    def evict_member(self, model: str, host: str) -> None:
        """See `World.evict_member`."""
        self._hosts_of[model].evict(model, host)

    @property
    def scaling(self) -> dict[str, list[ScalingStep]]:
        """By model, how autoscaling changed its number of replicas."""
        return {name: fleet.changes for name, fleet in self._fleets.items()}

    @property
    def pools(self) -> dict[str, PoolUsage]:
        """Usage of each pool's hosts, by its name."""
        return {name: hosts.usage for name, hosts in self._hosts.items()}

    # ------------------------------------------------------------------ autoscaling

    def _watch(self) -> None:
        """Look at the loads at equal intervals: of all models at once if they share room, else of each."""
        fleets = [fleet for fleet in self._fleets.values() if fleet.model.autoscaling is not None]
        for together in [fleets] if self._scenario.room and fleets else [[fleet] for fleet in fleets]:
            assert together[0].model.autoscaling is not None
            interval_s = together[0].model.autoscaling.interval_s
            self._loop.at(interval_s, partial(self._scale, together, interval_s))

    def _scale(self, fleets: Sequence[Fleet], interval_s: float) -> None:
        """Decide how many replicas models have."""
        self._loop.at(self._loop.now + interval_s, partial(self._scale, fleets, interval_s))
        decided = {fleet.name: fleet.decide() for fleet in fleets}
        if self._scenario.room:
            self._share_room(decided)
        # Replicas are stopped before others start in their room.
        for fleet in sorted(fleets, key=lambda fleet: decided[fleet.name][0] - fleet.target):
            fleet.resize(*decided[fleet.name])

    def _share_room(self, decided: dict[str, tuple[int, str]]) -> None:
        """Lower the numbers of models that follow the demand to what there is room for, as the server does."""
        claims: dict[str, Claim] = {}
        others: list[tuple[int, Mapping[str, float]]] = []
        for name, fleet in self._fleets.items():
            wanted = decided[name][0] if name in decided else fleet.target
            if (claim := fleet.claim(wanted)) is not None:
                claims[name] = claim
            else:
                others.append((wanted, fleet.model.needs))
        numbers = self._shared_room.decide(claims, self._scenario.room, self._loop.now, others)
        for name, number in numbers.items():
            if number < decided[name][0]:
                decided[name] = number, "room"

    # ------------------------------------------------------------------ requests

    def _sent(self, request: Request) -> None:
        """Let a request leave its client."""
        hop_s = self._request_s()
        if hop_s > 0.0:
            self._loop.at(self._loop.now + hop_s, partial(self._reached, request))
        else:
            self._reached(request)

    def _reached(self, request: Request) -> None:
        """Hand a request to the system."""
        request.waits = True
        self._waiting[request.model].add(1, self._loop.now)
        self._fleets[request.model].arrived_rows += request.rows
        if (hosts := self._hosts_of.get(request.model)) is not None:
            hosts.asked(request.model)
        self._system.arrive(request)

    def _stops_waiting(self, request: Request) -> None:
        request.waits = False
        self._waiting[request.model].add(-1, self._loop.now)

    def _end(self, request: Request, when: float, outcome: int) -> None:
        request.ended = when
        if request.waits:
            self._stops_waiting(request)
        self._records.outcome[request.id] = outcome
        self._open -= 1
        if not self._open and self._loop.now >= self._scenario.duration_s:
            self._loop.stop()

    def _begun(self, running: Running) -> None:
        waiting = self._waiting[running.requests[0].model]
        waiting.note(self._loop.now)
        running.waited_s = waiting.waited_s

    def _executed(self, machine: Machine, running: Running, failed: bool) -> None:
        """Charge for an execution that has ended, and tell the system."""
        seconds = self._count(machine, running)
        self._fleets[machine.model].running_rows -= running.rows
        if not failed:
            self._charge(running.requests, seconds)
            for request in running.requests:
                request.raised = running.raises
        else:
            self.usage.failed_s += seconds if self._loop.now >= self._scenario.warm_up_s else 0.0
            for request in running.requests:
                if request.ended is None and not request.waits:
                    request.waits = True
                    self._waiting[request.model].add(1, self._loop.now)
        running.done(Execution(seconds, failed, running.raises and not failed))

    def _count(self, machine: Machine, running: Running) -> float:
        """Add an execution to the sums. Returns its duration."""
        now, usage = self._loop.now, self.usage
        machine.busy_until = now
        warm_up_s = self._scenario.warm_up_s
        if running.began >= warm_up_s:
            usage.executions += 1
            usage.rows += running.rows
        if running.begun:
            waiting = self._waiting[machine.model]
            waiting.note(now)
            waiting.busy_s += waiting.waited_s - running.waited_s
        usage.busy_s += max(0.0, min(now, self._scenario.duration_s) - max(running.began, warm_up_s))
        return max(0.0, now - running.began)

    def _charge(self, requests: Sequence[Request], seconds: float) -> None:
        charged = self._records.server_s
        per_row = seconds / sum([request.rows for request in requests])
        for request in requests:
            request.server_s += per_row * request.rows
            charged[request.id] = request.server_s
            if request.ended is not None:
                self._records.vain_s[request.id] += per_row * request.rows

    # ------------------------------------------------------------------ replicas

    def _make_machine(self, fleet: Fleet, number: int) -> Machine:
        device = fleet.model.device
        computes_on = ComputeDevice(self._loop) if device is None else self._devices[device]
        return self._machine(f"{fleet.name}#{number}", fleet.name, number, computes_on)

    def _make_hosts(self, pool: SimulatedPool) -> Hosts:
        members = {name: self._fleets[name].model for name in pool.scheduling.models}
        return Hosts(pool, members, self._loop, self._seed, self._make_member, self._retire, self._scenario.warm_up_s)

    def _make_member(self, name: str, model: str, device: HostDevice) -> Machine:
        """Make the machine that runs a member of a pool at a host."""
        self._loaded += 1
        machine = self._machine(name, model, self._loaded, device)
        machine.listed()
        return machine

    def _retire(self, machine: Machine) -> None:
        machine.gone = self._loop.now
        del self._machines[machine.name]

    def _machine(self, name: str, model: str, number: int, device: ComputeDevice) -> Machine:
        noise, overheads = self._scenario.noise, self._scenario.overheads
        machine = self._machines[name] = Machine(
            name,
            model,
            self._loop,
            device,
            NoiseSource(noise, (self._seed, self._places[model], number)),
            noise.stall_s,
            SampledDelays(overheads.between_s, overheads.scatter, (self._seed, self._places[model], number, 3)),
            np.random.default_rng((self._seed, self._places[model], number, 4)).random,
            self._begun,
            self._executed,
        )
        return machine

    def _tell(self, fleet: Fleet) -> None:
        self._waiting[fleet.name].list(len(fleet.listed), self._loop.now)
        self._system.replicas(fleet.name, tuple(fleet.listed))

    def _waiting_rows(self, model: str) -> int:
        return self._system.queued_rows(model)

    def _read_demand(self, model: str) -> ModelDemand:
        return self._system.read_demand(model)

    def _count_replica(self, machine: Machine) -> None:
        """Add a replica's counted time on the list or at work."""
        duration_s = self._scenario.duration_s
        gone = duration_s if machine.gone is None else max(machine.gone, machine.busy_until)
        born = machine.born if machine.born is not None else gone
        self.usage.replica_s += max(0.0, min(gone, duration_s) - max(born, self._scenario.warm_up_s))

    # ------------------------------------------------------------------ watching

    def _sample(self) -> None:
        now = self._loop.now
        self.queued_rows.append(sum(self._system.queued_rows(name) for name in self._fleets))
        self.replicas.append(sum(len(fleet.listed) for fleet in self._fleets.values()))
        if now + _ROUNDING_S < self._scenario.duration_s:
            self._loop.at(len(self.queued_rows) * self._step_s, self._sample)
        elif not self._open:
            self._loop.stop()
