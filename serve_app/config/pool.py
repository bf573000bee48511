"""Settings of pools: many models that share few processes, which have memory for some of them at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field, field_validator

from serve_app.config.model import HealthConfig, ModelConfig
from serve_app.config.names import checked_model_name, deployment_name
from serve_app.config.problems import Location, nearest, short_repr
from serve_app.config.values import Cpus, Positive, Seconds, Section, Size
from serve_app.scheduling.settings import Pool


class PoolConfig(Section):
    """Models that share few processes, the hosts of the pool. A host loads and unloads them as requests need them."""

    name: str
    """Its name, for messages, metrics and `/status`; its deployment is called by it, as a model's by the model's."""

    path: str = ""
    """Pattern of the folders of its members, `models/*`. Entries of `models` with this `pool` are members as well."""

    hosts: Positive = 1
    """Processes. Each has memory of its own, and runs one batch at a time."""

    memory: Size
    """What the loaded members of one host may hold together."""

    loads: Positive = 1
    """Loads at once in one host."""

    load_timeout_s: Seconds = 60.0
    """How long a load may take. If one takes longer, the member is left alone for a while, and the host is replaced
    when `health.stall_timeout_s` is over as well."""

    cpus: Cpus = 0.25
    """CPUs that Ray reserves per host."""

    health: HealthConfig = HealthConfig()
    """How hosts are watched and stopped."""

    defaults: Mapping[str, Any] = Field(default_factory=dict)
    """Settings of its members, as of an entry of `models`."""

    members: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Settings of single members, by name, in place of `defaults`."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return checked_model_name(name)

    @property
    def deployment(self) -> str:
        """Name of its deployment."""
        return deployment_name(self.name)

    def scheduling(self, members: Sequence[str]) -> Pool:
        """The values for the scheduler; these models are its members."""
        return Pool(self.name, tuple(members), memory_bytes=int(self.memory), loads=self.loads)


def pool_problems(
    pools: tuple[PoolConfig, ...], models: tuple[ModelConfig, ...], routers: int
) -> Iterator[tuple[Location, str]]:
    """What does not fit between the pools, the models and the router.

    Args:
        pools: In the configuration's order.
        models: In the configuration's order.
        routers: How many routers there are.

    Yields:
        Location, and what is wrong there.
    """
    known: dict[str, int] = {}
    names = {model.name for model in models}
    for number, pool in enumerate(pools):
        if pool.name in known:
            yield ("pools", number, "name"), f"{short_repr(pool.name)} is also the name of pools[{known[pool.name]}]"
        elif pool.name in names:
            yield ("pools", number, "name"), f"{short_repr(pool.name)} is also the name of a model"
        known.setdefault(pool.name, number)
    if pools and routers > 1:
        yield (
            ("router", "replicas"),
            f"must be 1 with pools, got {routers}: one router decides what the hosts of a pool load",
        )
    for number, model in enumerate(models):
        if model.pool is None:
            continue
        if model.pool not in known:
            guess = nearest(model.pool, known)
            hint = f"did you mean {guess}?" if guess else f"there is {', '.join(known) or 'none'}"
            yield ("models", number, "pool"), f"there is no pool {short_repr(model.pool)}; {hint}"
        for key, advice in _of_replicas(model):
            yield ("models", number, *key), f"is for models with replicas of their own; {advice}"


def _of_replicas(model: ModelConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Keys that a member of a pool cannot have, and what to do instead."""
    if model.versions is not None:
        yield ("versions",), "a member of a pool is served in one version: name it in version, or leave this out"
    if "autoscaling" in model.model_fields_set:
        yield ("autoscaling",), "a pool has hosts"
    for key, advice in (("gpus", "the hosts of a pool run on CPUs"), ("memory_limit", "a pool has memory")):
        if getattr(model.resources, key):
            yield ("resources", key), advice
    if model.resources.device == "cuda":
        yield ("resources", "device"), "the hosts of a pool run on CPUs"
