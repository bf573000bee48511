"""The pools of a scenario: members that share hosts, which have memory for some of them at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from serve_app.config.batching import BatchingConfig
from serve_app.config.names import checked_model_name
from serve_app.config.problems import Location, short_repr, validation_error
from serve_app.config.values import Milliseconds, Positive, Section, Size, size
from serve_app.pools.policy.settings import Pool
from serve_app_simulator.scenario import SimulatedModel, SimulatedPool
from serve_app_simulator.scenarios.models import MOST_ROWS, LatencyConfig

MOST_MEMBERS = 10_000
"""Most members that a simulated pool may have."""


class MembersConfig(Section):
    """Members of a pool that are alike."""

    name: str = "member"
    """Name of the one, or with a number behind it of each of several: `member-1`, `member-2` ..."""

    count: Annotated[int, Field(ge=1, le=MOST_MEMBERS)] = 1
    """How many."""

    holds: Size
    """Memory of a host that each takes while it is loaded, e.g. `30MiB`; about twice its files, if nothing is known."""

    latency: LatencyConfig
    """What a batch of one of them costs."""

    batching: BatchingConfig = BatchingConfig()
    """How rows are put into batches, as in the server's configuration."""

    known: bool = True
    """Whether schedulers know the costs from the start, as from a profile, or must learn them."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return checked_model_name(name)

    @model_validator(mode="after")
    def _check(self) -> MembersConfig:
        if self.batching.configured_rows > MOST_ROWS:
            message = f"at most {MOST_ROWS:,} rows in a batch are simulated, got {self.batching.max_rows:,}"
            raise validation_error([(("batching", "max_rows"), message)])
        if (one_row_ms := self.latency.curve()(1, 0) * 1000) > self.batching.slo_ms:
            message = f"{self.batching.slo_ms:g} is less than one row takes, {one_row_ms:.4g} ms"
            raise validation_error([(("batching", "slo_ms"), message)])
        return self

    def names(self) -> tuple[str, ...]:
        """Their names."""
        return (
            (self.name,) if self.count == 1 else tuple(f"{self.name}-{number}" for number in range(1, self.count + 1))
        )

    def simulated(self) -> Iterator[SimulatedModel]:
        """The values for the simulator."""
        curve = self.latency.curve()
        for name in self.names():
            scheduling = self.batching.scheduling(name)
            yield SimulatedModel(
                scheduling=replace(scheduling, resident_bytes=int(self.holds)),
                curve=curve,
                replicas=0,
                known=self.known,
            )


class SimulatedPoolConfig(Section):
    """Models that share few processes, the hosts of the pool, as in the server's configuration."""

    name: str
    """Its name. A stream that has it as `model` asks the members by Zipf's law in the order they are listed."""

    members: Annotated[tuple[MembersConfig, ...], Field(strict=False)]
    """Its members, by what they have in common."""

    memory: Size
    """What the loaded members of one host may hold together."""

    hosts: Annotated[int, Field(ge=1, le=1000)] = 1
    """Processes; each runs one batch at a time. At first nothing is loaded."""

    loads: Positive = 1
    """Loads at once in one host."""

    load_ms: Milliseconds
    """How long a load takes, on average: `serve_app_pool_load_seconds` of a server tells."""

    load_spread: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 0.0
    """Sigma of the lognormal distribution of that; 0: all loads take as long."""

    slowdown: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = 1.0
    """Executions at a host take this many times as long while it loads."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return checked_model_name(name)

    @model_validator(mode="after")
    def _check(self) -> SimulatedPoolConfig:
        faults: list[tuple[Location, str]] = []
        if not self.members:
            faults.append((("members",), "needs at least one"))
        if (count := sum(members.count for members in self.members)) > MOST_MEMBERS:
            faults.append((("members",), f"at most {MOST_MEMBERS:,} members are simulated, got {count:,}"))
        faults += self.memory_faults(int(self.memory))
        if faults:
            raise validation_error(faults)
        return self

    def memory_faults(self, memory: int) -> Iterator[tuple[Location, str]]:
        """Members that no host with this memory, bytes, could hold."""
        for number, members in enumerate(self.members):
            if members.holds > memory:
                message = f"{size(members.holds)} is more than a host has, {size(memory)}"
                yield ("members", number, "holds"), message

    def names(self) -> tuple[str, ...]:
        """Names of its members."""
        return tuple(name for members in self.members for name in members.names())

    def models(self) -> tuple[SimulatedModel, ...]:
        """Its members, for the simulator."""
        return tuple(model for members in self.members for model in members.simulated())

    def simulated(self) -> SimulatedPool:
        """The values for the simulator."""
        return SimulatedPool(
            Pool(self.name, self.names(), memory_bytes=int(self.memory), loads=self.loads),
            hosts=self.hosts,
            load_s=self.load_ms / 1000,
            load_spread=self.load_spread,
            slowdown=self.slowdown,
        )


def pool_faults(
    pools: tuple[SimulatedPoolConfig, ...], models: tuple[str, ...], routers: int
) -> Iterator[tuple[Location, str]]:
    """What does not fit between pools, models and routers; ``models`` are the names of those outside pools."""
    known: dict[str, str] = {name: f"models[{number}]" for number, name in enumerate(models)}
    for number, pool in enumerate(pools):
        if pool.name in known:
            yield ("pools", number, "name"), f"{short_repr(pool.name)} stands at {known[pool.name]} too"
        known.setdefault(pool.name, f"pools[{number}]")
        for at, members in enumerate(pool.members):
            twice = next((name for name in members.names() if name in known), None)
            if twice is not None:
                yield ("pools", number, "members", at, "name"), f"{short_repr(twice)} stands at {known[twice]} too"
            known |= dict.fromkeys(members.names(), f"pools[{number}].members[{at}]")
    if pools and routers > 1:
        yield ("routers",), f"must be 1 with pools, got {routers}: one router decides what hosts load"
