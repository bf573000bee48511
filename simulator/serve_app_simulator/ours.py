"""serve_app itself as a system under test: the server's scheduler and gate under the virtual clock.

`serve_app_simulator.router` drives the server's router core, and `serve_app_simulator.replica` simulates what surrounds
the gate in a server's replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np

from serve_app.domain.priority import Priority
from serve_app.pools.policy.device import PoolDevice
from serve_app.scheduling.demand import ModelDemand
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ModelScheduling, ProcessLimits
from serve_app_simulator.members import Members
from serve_app_simulator.replica import SimulatedReplica, Turns
from serve_app_simulator.router import Patience, SimulatedRouter
from serve_app_simulator.scenario import SimulatedModel
from serve_app_simulator.system import Request, World
from serve_app_simulator.ties import SimulatedTies

_TOTAL_BYTES = 1 << 60


class ServeApp:
    """serve_app, one `Scheduler` per router and one `Gate` per replica.

    Args:
        network_s: The schedulers' allowance for everything around an execution, seconds; ``None``: the default of
            2 ms, or what the scenario's overheads are if that is more.
        bundle_timeout_s: After this long without an answer a replica counts as wedged.
        spread: How requests are spread over routers. Frames of one video stream always take the same router, as what
            travels on one connection does.
        policy: A batch policy for all models instead of their own.
        newest_frame_wins: Whether a video stream's new frame takes the place of its waiting one.
        by_tenant: Whether it knows of tenants; otherwise all are one.
        replica_silence_s: After so long without data a replica with requests in flight is unresponsive.
        replica_kill_s: After so long it is killed; ``None``: never.
    """

    name = "serve_app"

    def __init__(
        self,
        *,
        network_s: float | None = None,
        bundle_timeout_s: float = 30.0,
        spread: Literal["round_robin", "random"] = "round_robin",
        policy: str | None = None,
        newest_frame_wins: bool = True,
        by_tenant: bool = True,
        replica_silence_s: float = 2.0,
        replica_kill_s: float | None = 10.0,
    ) -> None:
        self._by_tenant = by_tenant
        self._network_s = network_s
        self._patience = Patience(bundle_timeout_s, replica_silence_s, replica_kill_s)
        self._spread = spread
        self._policy = policy
        self._newest_frame_wins = newest_frame_wins
        self._next_router = 0
        self._rng = np.random.default_rng(0)
        self._models: dict[str, SimulatedModel] = {}
        self._replicas: dict[str, SimulatedReplica] = {}
        self._routers: list[SimulatedRouter] = []
        self._seeded: set[tuple[str, int]] = set()
        self._ties = SimulatedTies()

    def start(self, world: World) -> None:
        """See `System.start`."""
        self._world = world
        scenario, overheads = world.scenario, world.overheads
        network_s = self._network_s
        if network_s is None:
            network_s = max(0.002, overheads.send_s + overheads.answer_s)
        limits = ProcessLimits(total_bytes=_TOTAL_BYTES, network_s=network_s)
        self._models = {model.scheduling.name: model for model in scenario.models}
        settings = [self._settings(model.scheduling) for model in scenario.models]
        members = Members(world, self._replicas, self._make_replica)
        self._routers = [
            SimulatedRouter(
                world,
                Scheduler(
                    settings,
                    scenario.classes,
                    limits,
                    [PoolDevice(pool.scheduling, scenario.classes) for pool in scenario.pools],
                ),
                self._replicas,
                self._patience,
                self._newest_frame_wins,
                self._ties,
                members,
            )
            for _ in range(scenario.routers)
        ]
        for pool in scenario.pools:
            for router in self._routers:
                router.on_hosts(pool.scheduling.name, world.hosts(pool.scheduling.name))

    def replicas(self, model: str, names: Sequence[str]) -> None:
        """See `System.replicas`."""
        for name in names:
            if name not in self._replicas:
                self._replicas[name] = self._make_replica(model, name)
        for router in self._routers:
            router.on_replicas(model, names)

    def _make_replica(self, model: str, name: str, turns: Turns | None = None) -> SimulatedReplica:
        known = self._models[model]
        replica = SimulatedReplica(
            self._world,
            self._settings(known.scheduling),
            name,
            {priority: settings.min_share for priority, settings in self._world.scenario.classes.items()},
            self._ties,
            planned=turns is not None,
            protect=self._world.scenario.classes[Priority.HIGH].protect,
            pads=known.pads,
            turns=turns,
        )
        for of, bucket in self._seeded:
            if of == model:
                replica.gate.seed(self._profile(model, bucket))
        return replica

    def arrive(self, request: Request) -> None:
        """See `System.arrive`."""
        if (request.model, request.bucket) not in self._seeded:
            self._seed(request.model, request.bucket)
        if not self._by_tenant:
            request.tenant = ""
        routers = self._routers
        if len(routers) == 1:
            router = routers[0]
        elif request.stream >= 0:
            router = routers[request.stream % len(routers)]
        elif self._spread == "random":
            router = routers[int(self._rng.integers(len(routers)))]
        else:
            router = routers[self._next_router]
            self._next_router = (self._next_router + 1) % len(routers)
        router.arrive(request)

    def queued_rows(self, model: str) -> int:
        """See `System.queued_rows`: in the routers' queues, on the way to replicas, and at their gates."""
        in_routers = sum(router.scheduler.load(model) for router in self._routers)
        return max(0, in_routers - self._world.load(model))

    def read_demand(self, model: str) -> ModelDemand:
        """See `System.read_demand`."""
        return ModelDemand.total([router.scheduler.read_demand(model, self._world.now) for router in self._routers])

    def _settings(self, settings: ModelScheduling) -> ModelScheduling:
        return settings if self._policy is None else replace(settings, policy=cast("Any", self._policy))

    def _seed(self, model: str, bucket: int) -> None:
        """Seed schedulers and gates with the warm-up profile of a cost bucket."""
        self._seeded.add((model, bucket))
        points = self._profile(model, bucket)
        for router in self._routers:
            router.scheduler.seed(model, points)
        for replica in self._replicas.values():
            if replica.model == model:
                replica.gate.seed(points)

    def _profile(self, model: str, bucket: int) -> list[tuple[int, int, float, str]]:
        """The warm-up profile of a cost bucket; empty if the model's curve is not known."""
        known = self._models[model]
        if not known.known:
            return []
        most = known.scheduling.max_rows
        sizes = sorted({1 << power for power in range(most.bit_length())} | {most})
        points = [(rows, bucket, known.curve(rows, bucket), "") for rows in sizes]
        for variant, curve in known.variants.items():
            points += [(rows, bucket, curve(rows, bucket), variant) for rows in sizes]
        return points
