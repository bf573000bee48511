"""Members of pools at their hosts: how serve_app's hosts load, unload and run them.

A host handles its messages in order, loads one member after the other, and runs one batch at a time over all members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from serve_app.pools.policy.messages import Eviction, Load, MemberLoaded, Order
from serve_app_simulator.replica import SimulatedReplica, Turns
from serve_app_simulator.system import Loaded, World

MakeReplica = Callable[[str, str, Turns], SimulatedReplica]
"""Makes the replica of a model under a name, with the session of its host."""


class Members:
    """All members at all hosts. Adds the replicas of loaded members to ``replicas``, by name."""

    def __init__(self, world: World, replicas: dict[str, SimulatedReplica], make_replica: MakeReplica) -> None:
        self._world = world
        self._replicas = replicas
        self._make_replica = make_replica
        self._pool_of: Mapping[str, str] = {
            name: pool.scheduling.name for pool in world.scenario.pools for name in pool.scheduling.models
        }
        self._turns: dict[str, Turns] = {}
        self._reaches: dict[str, float] = {}
        self._at: dict[tuple[str, str], str] = {}

    def replica_of(self, model: str, name: str) -> str:
        """The name of the replica that runs a model at a replica or host."""
        return self._at[model, name] if model in self._pool_of else name

    def carry_out(self, order: Order, done: Callable[[str, MemberLoaded], None]) -> None:
        """Load or unload a member; ``done`` gets the name of its pool and what has happened."""
        if isinstance(order, Eviction):
            self._evict(order)
            return
        loaded = partial(self._loaded, order, done)
        self._tell(order.host, partial(self._world.load_member, order.model, order.host, loaded))

    def _evict(self, eviction: Eviction) -> None:
        self._replicas.pop(self._at.pop((eviction.model, eviction.host))).retire()
        self._tell(eviction.host, partial(self._world.evict_member, eviction.model, eviction.host))

    def _loaded(self, load: Load, done: Callable[[str, MemberLoaded], None], loaded: Loaded) -> None:
        turns = self._turns.setdefault(load.host, Turns(self._world))
        self._replicas[loaded.replica] = self._make_replica(load.model, loaded.replica, turns)
        self._at[load.model, load.host] = loaded.replica
        event = MemberLoaded(load.model, load.host, loaded.seconds, loaded.nbytes)
        back = partial(done, self._pool_of[load.model], event)
        self._world.at(self._world.now + self._world.hop_s("send"), back)

    def _tell(self, host: str, action: Callable[[], None]) -> None:
        reaches = max(self._reaches.get(host, 0.0), self._world.now + self._world.hop_s("send"))
        self._reaches[host] = reaches
        self._world.at(reaches, action)
