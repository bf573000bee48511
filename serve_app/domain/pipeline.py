"""A pipeline as the router runs it: models in sequence, in parallel branches, behind a switch, over parts.

A plain frozen plan. `serve_app.pipelines.composition` makes it of a configuration, and has checked it: every reference
leads somewhere, there is no cycle, and each step comes after all that it may need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from serve_app.payloads import TensorSpec

PIPELINE: Final = "pipeline"
"""The task of a pipeline, and its platform in V2's metadata."""

InputKind: TypeAlias = Literal["image", "audio", "text", "json", "tensor"]


class Reference(NamedTuple):
    """The source of a value: an input or a step, and a path in it.

    Attributes:
        path: Members of objects, places in lists, or the name of a tensor; empty: all of it.
    """

    name: str
    path: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read ``name`` or ``name.member.0``."""
        name, *path = text.split(".")
        return cls(name, tuple(path))

    def __str__(self) -> str:
        return ".".join((self.name, *self.path))


class Constant(NamedTuple):
    """A value from the configuration; JSON-able."""

    value: Any


Choice: TypeAlias = Reference | Constant
"""A value that a switch may choose."""


class PipelineInput(NamedTuple):
    """A client's value of one name.

    Attributes:
        many: Whether it is a list.
        datatype: Of a tensor.
        shape: Of a tensor, with the rows in dimension 0; -1 for variable dimensions.
    """

    name: str
    kind: InputKind
    many: bool = False
    datatype: str = ""
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelStep:
    """Runs a model.

    Attributes:
        version: A number or an alias; ``None``: the one that answers requests without a version.
        input: Its input; for a model of tensors, its only one.
        inputs: Inputs by tensor, in place of ``input``.
        over: A list: the model runs once for each of its parts, and the result is the list of these results.
        parameters: Task parameters, the same for every request.
    """

    name: str
    model: str
    version: str | None = None
    input: Reference | None = None
    inputs: Mapping[str, Reference] = field(default_factory=lambda: MappingProxyType({}))
    over: Reference | None = None
    parameters: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def needs(self) -> Iterator[Reference]:
        """References that it needs."""
        yield from (each for each in (self.input, self.over, *self.inputs.values()) if each is not None)


def case_text(value: str | float | bool | None) -> str | None:
    """The text by which a value is compared with the cases of a switch: a text itself, and ``7`` of 7, 7.0 and "7".

    ``None``: it is no number, or an infinite one, and equals no case.
    """
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        if not isfinite(value):
            return None
        value = int(value) if value.is_integer() else value
    return str(value)


@dataclass(frozen=True, slots=True)
class SwitchStep:
    """Chooses one of several values by another. Steps that only other values need do not run.

    Attributes:
        on: The value that chooses.
        cases: By that value's `case_text`.
        default: For all other values.
    """

    name: str
    on: Reference
    cases: Mapping[str, Choice]
    default: Choice

    def needs(self) -> Iterator[Reference]:
        """References needed before the choice."""
        yield self.on

    def choices(self) -> Iterator[Reference]:
        """References that may be chosen, without constants."""
        yield from (each for each in (*self.cases.values(), self.default) if isinstance(each, Reference))


@dataclass(frozen=True, slots=True)
class EqualStep:
    """Whether values are all the same."""

    name: str
    values: tuple[Reference, ...]

    def needs(self) -> Iterator[Reference]:
        """The compared references."""
        yield from self.values


@dataclass(frozen=True, slots=True)
class ConcatStep:
    """Concatenates tensors along an axis, or lists."""

    name: str
    values: tuple[Reference, ...]
    axis: int = 0

    def needs(self) -> Iterator[Reference]:
        """The concatenated references."""
        yield from self.values


@dataclass(frozen=True, slots=True)
class JoinStep:
    """Makes one object of several values, by name."""

    name: str
    members: Mapping[str, Reference]

    def needs(self) -> Iterator[Reference]:
        """The joined references."""
        yield from self.members.values()


Step: TypeAlias = ModelStep | SwitchStep | EqualStep | ConcatStep | JoinStep


def own_needs(step: Step) -> Iterator[Reference]:
    """References needed before a step; of a switch, before its choice."""
    return step.needs()


def all_needs(step: Step) -> Iterator[Reference]:
    """All references that a step may need, choices of a switch included."""
    yield from step.needs()
    if isinstance(step, SwitchStep):
        yield from step.choices()


class Output(NamedTuple):
    """An output of one name.

    Attributes:
        reference: Its source.
        tensor: Its datatype and shape, if it is a tensor; ``None``: JSON.
    """

    reference: Reference
    tensor: TensorSpec | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline.

    Attributes:
        inputs: Required inputs, by name.
        steps: By name, in an order in which each comes after all that it may need.
        outputs: By name.
        max_parts: Most parts of a list that a model runs over, and of an input that is a list.
        max_result_bytes: Most bytes of the results of one request's steps.
    """

    name: str
    inputs: Mapping[str, PipelineInput]
    steps: Mapping[str, Step]
    outputs: Mapping[str, Output]
    max_parts: int = 64
    max_result_bytes: int = 64 * 2**20

    def models(self) -> Iterator[ModelStep]:
        """The steps that are models."""
        return (step for step in self.steps.values() if isinstance(step, ModelStep))

    def certain(self) -> frozenset[str]:
        """The steps that every request runs, whatever its switches choose."""
        return self._closure((output.reference.name for output in self.outputs.values()), own_needs)

    def followers(self) -> Mapping[str, tuple[str, ...]]:
        """By step, the steps that may run because of it: those that need its result, and choices of a switch on it."""
        before = {name: self._closure((name,), all_needs) for name in self.steps}
        certain = self.certain()
        after: dict[str, dict[str, None]] = {name: {} for name in self.steps}
        for name, step in self.steps.items():
            for reference in all_needs(step):
                if reference.name in after:
                    after[reference.name][name] = None
            if isinstance(step, SwitchStep) and step.on.name in self.steps:
                chosen = {name for each in step.choices() if each.name in self.steps for name in before[each.name]}
                for started in sorted(chosen - certain):
                    if not _leads(after, started, step.on.name):  # another switch may start it the other way round
                        after[step.on.name][started] = None
        return {name: tuple(names) for name, names in after.items()}

    def is_serial(self) -> bool:
        """Whether no two steps could run at the same time: of any two needed steps one needs the other.

        A switch does not need its choices: they wait for nothing that the choice waits for.
        """
        place = {name: at for at, name in enumerate(self.steps)}
        before = {name: self._closure((name,), own_needs) for name in self.steps}
        needed = [[output.reference for output in self.outputs.values()]]
        needed += [[*step.needs()] for step in self.steps.values()]
        for references in needed:
            names = sorted({each.name for each in references if each.name in place}, key=place.__getitem__)
            if any(name not in before[after] for name, after in pairwise(names)):
                return False
        return True

    def _closure(self, names: Iterable[str], needs: Callable[[Step], Iterator[Reference]]) -> frozenset[str]:
        """The steps among these names, and all steps that they need."""
        found: set[str] = set()
        ahead = [*names]
        while ahead:
            name = ahead.pop()
            if name in self.steps and name not in found:
                found.add(name)
                ahead += (each.name for each in needs(self.steps[name]))
        return frozenset(found)


def _leads(after: Mapping[str, Mapping[str, None]], start: str, end: str) -> bool:
    """Whether a path leads from one step to another."""
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        name = ahead.pop()
        if name == end:
            return True
        if name not in seen:
            seen.add(name)
            ahead += after[name]
    return False
