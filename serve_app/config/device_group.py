"""Settings of device groups: models that share a GPU, or CPU cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import ByteSize, Field, field_validator

from serve_app.config.model import ModelConfig
from serve_app.config.problems import Location, hint, short_repr
from serve_app.config.values import Positive, Section, Size, Weight, checked_name
from serve_app.scheduling.settings import DeviceGroup


class DeviceGroupConfig(Section):
    """Models whose replicas compute on one device, so that the router orders their batches together.

    All replicas of a member are taken to be on that device. A router orders only what passes through it: with several
    routers each keeps to `concurrency` on its own.
    """

    name: str
    """Its name, for messages and `/status`."""

    models: Annotated[tuple[str, ...], Field(strict=False, json_schema_extra={"minItems": 1})]
    """Names of the models. A model is a member of one group at most."""

    concurrency: Positive = 1
    """Batches that the device runs at once, over all these models."""

    memory: Size | None = None
    """Memory of the device; by default not limited. Counts `resources.gpu_memory` and `resources.memory_per_row`."""

    weights: Mapping[str, Weight] = Field(default_factory=dict)
    """How urgent a model is beside the others of its class, by name: its slack counts divided by this. Default: 1."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return checked_name(name)

    @field_validator("models")
    @classmethod
    def _check_models(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        if not models:
            raise ValueError("needs at least one model")
        return models

    def settings(self) -> DeviceGroup:
        """The values for the scheduler."""
        return DeviceGroup(self.name, self.models, self.concurrency, int(self.memory or 0))


def group_problems(
    groups: tuple[DeviceGroupConfig, ...], models: Mapping[str, ModelConfig]
) -> Iterator[tuple[Location, str]]:
    """Find inconsistencies between device groups and models.

    Args:
        groups: In the configuration's order.
        models: By name.

    Yields:
        Location below the list of groups, and the problem.
    """
    names: dict[str, int] = {}
    group_of: dict[str, int] = {}
    for number, group in enumerate(groups):
        if group.name in names:
            yield (
                (number, "name"),
                f"{short_repr(group.name)} is also the name of device_groups[{names[group.name]}]",
            )
        names.setdefault(group.name, number)
        known = True
        for at, name in enumerate(group.models):
            if name not in models:
                known = False
                yield (number, "models", at), _unknown("model", name, models)
            elif models[name].pool is not None:
                known = False
                yield (
                    (number, "models", at),
                    f"{short_repr(name)} is in the pool {models[name].pool}; leave one of them out",
                )
            elif name in group_of:
                where = "this group" if group_of[name] == number else f"device_groups[{group_of[name]}]"
                yield (number, "models", at), f"{short_repr(name)} is already in {where}"
            group_of.setdefault(name, number)
        for name in group.weights:
            if name not in group.models:
                yield (number, "weights", name), _unknown("member", name, group.models)
        if known and group.memory is not None:
            yield from (
                ((number, "memory"), fault)
                for fault in _memory_faults(group.memory, [models[name] for name in dict.fromkeys(group.models)])
            )


def _memory_faults(memory: ByteSize, members: list[ModelConfig]) -> Iterator[str]:
    held = {model.name: model.resident_bytes for model in members if model.resident_bytes}
    free = memory - sum(held.values())
    holding = " + ".join(f"{size(nbytes)} {name}" for name, nbytes in held.items()) or "nothing"
    if free < 0:
        yield f"{size(memory)} is less than its models hold: {holding}; lower resources.gpu_memory"
        return
    for model in members:
        per_row, rows = model.resources.memory_per_row, model.batching.configured_rows
        if per_row is not None and per_row * rows > free:
            yield (
                f"a full batch of {model.name} ({rows} rows of {size(per_row)}) does not fit: the models hold"
                f" {holding}, {size(free)} of {size(memory)} are left; lower batching.max_rows"
            )


def size(nbytes: int) -> str:
    """Bytes in readable units."""
    return ByteSize(nbytes).human_readable()


def _unknown(what: str, name: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    return f"there is no {what} {short_repr(name)}; {hint(name, known)}"
