"""Members of pools at their hosts: how serve_app's hosts load, unload and run them.

A host handles its messages in order, loads one member after the other, and runs one batch at a time over all members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from serve_app.scheduling.decisions import Eviction, Load
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

    def load(self, load: Load, done: Callable[[str, Loaded], None]) -> None:
        """Load a member; ``done`` gets the name of its pool."""
        self._tell(
            load.host, partial(self._world.load_member, load.model, load.host, partial(self._loaded, load, done))
        )

    def evict(self, eviction: Eviction) -> None:
        """Unload a member."""
        self._replicas.pop(self._at.pop((eviction.model, eviction.host))).retire()
        self._tell(eviction.host, partial(self._world.evict_member, eviction.model, eviction.host))

    def _loaded(self, load: Load, done: Callable[[str, Loaded], None], loaded: Loaded) -> None:
        turns = self._turns.setdefault(load.host, Turns(self._world))
        self._replicas[loaded.replica] = self._make_replica(load.model, loaded.replica, turns)
        self._at[load.model, load.host] = loaded.replica
        back = partial(done, self._pool_of[load.model], loaded)
        self._world.at(self._world.now + self._world.hop_s("send"), back)

    def _tell(self, host: str, action: Callable[[], None]) -> None:
        reaches = max(self._reaches.get(host, 0.0), self._world.now + self._world.hop_s("send"))
        self._reaches[host] = reaches
        self._world.at(reaches, action)
