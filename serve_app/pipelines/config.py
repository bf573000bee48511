"""Settings of pipelines: models in sequence, in parallel branches, behind a switch, over the parts of a list.

`serve_app.pipelines.composition`, which knows the models, checks references to models and their types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import BeforeValidator, ByteSize, Field, field_validator, model_validator

from serve_app.config.names import checked_model_name
from serve_app.config.problems import Location, hint, short_repr, validation_error
from serve_app.config.values import Section, Size
from serve_app.domain.pipeline import (
    Choice,
    ConcatStep,
    Constant,
    EqualStep,
    JoinStep,
    ModelStep,
    PipelineInput,
    Reference,
    Step,
    SwitchStep,
    all_needs,
    case_text,
)

if TYPE_CHECKING:
    from serve_app.config.args import AppArgs

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
_REFERENCE: Final = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[^.\s]+)*")
MOST_STEPS: Final = 64
"""Of one pipeline."""
_MOST_PARTS: Final = 4096

Datatype: TypeAlias = Literal[
    "BOOL",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "FP16",
    "FP32",
    "FP64",
    "BF16",
    "BYTES",
]


def _checked(text: Any) -> Any:
    if isinstance(text, str) and not _REFERENCE.fullmatch(text):
        raise ValueError(
            f"must be the name of an input or a step, as in image or digit.0.label, got {short_repr(text)}"
        )
    return text


def _as_text(given: Any) -> Any:
    """Convert case keys to text for comparison: YAML reads some as numbers, booleans or null."""
    if not isinstance(given, Mapping):
        return given
    cases: dict[str, Any] = {}
    for key, value in given.items():
        text = case_text(key)
        if text is None:
            raise ValueError(f"{key} is equal to no value, so that it would never be chosen")
        if text in cases:
            raise ValueError(f"two cases are for {short_repr(text)}: values are compared as text")
        cases[text] = value
    return cases


def _version_as_text(given: Any) -> Any:
    return str(given) if isinstance(given, int) and not isinstance(given, bool) else given


Ref = Annotated[str, BeforeValidator(_checked)]
"""``name`` of an input or a step, or ``name.member.0``: what of it."""


class PipelineInputConfig(Section):
    """What a client sends under one name."""

    type: Literal["image", "audio", "text", "json", "tensor"]
    """What it is."""

    many: bool = False
    """Whether it is a list of such, of at most `max_parts`. Not for tensors, whose rows are many already."""

    datatype: Datatype | None = None
    """Of a tensor, as in the Open Inference Protocol: `FP32`, `INT64`, `BYTES`, ..."""

    shape: Annotated[tuple[Annotated[int, Field(ge=-1)], ...], Field(strict=False)] | None = None
    """Of a tensor, with the rows in dimension 0; -1 for a size that may vary: `[-1, 4]`."""

    @model_validator(mode="after")
    def _check(self) -> PipelineInputConfig:
        faults: list[tuple[Location, str]] = []
        for key in ("datatype", "shape"):
            if self.type == "tensor" and getattr(self, key) is None:
                faults.append(((key,), "required for a tensor, but missing"))
            elif self.type != "tensor" and getattr(self, key) is not None:
                faults.append(((key,), f"is for type: tensor, and this is type: {self.type}; leave it out"))
        if self.type == "tensor" and self.many:
            faults.append((("many",), "is not for tensors: their rows are many already; leave it out"))
        if self.shape is not None and not self.shape:
            faults.append((("shape",), "needs at least the rows: [-1]"))
        if faults:
            raise validation_error(faults)
        return self

    def value(self, name: str) -> PipelineInput:
        """The value for the layers below."""
        return PipelineInput(name, self.type, self.many, self.datatype or "", self.shape or ())


class ConstantConfig(Section):
    """A value of a switch that is no reference."""

    value: Any
    """The value: text, a number, true, false, null, or a list or mapping of such."""


class StepConfig(Section):
    """One step: a `model`, perhaps over the parts of a list (`map`), a `switch`, `equal`, `concat` or `join`."""

    name: str
    """What others call its result: letters, digits, `-` and `_`. No input may have the same name."""

    model: str | None = Field(default=None, min_length=1)
    """Name of the model that runs."""

    version: Annotated[str, BeforeValidator(_version_as_text), Field(min_length=1)] | None = None
    """Version of the model, or an alias. By default whichever answers requests that name none."""

    input: Ref | None = None
    """What the model gets: a picture, a sound, text, JSON, or the one tensor that it takes."""

    inputs: dict[str, Ref] | None = Field(default=None, min_length=1)
    """What the model gets by the names of its tensors, in place of `input`."""

    map: Ref | None = None
    """A list, in place of `input`: the model runs for each of its parts at once, and the result is a list."""

    parameters: dict[str, Any] = Field(default_factory=dict)
    """Task parameters for the model, as a request's `parameters`: `{top_k: 1}`."""

    switch: Ref | None = None
    """A value that chooses one of `cases`. What only the others need does not run."""

    cases: Annotated[dict[str, Ref | ConstantConfig | None], BeforeValidator(_as_text)] | None = Field(
        default=None, min_length=1
    )
    """By value, what the result is then: an input or a step, a constant as `{value: ...}`, or null."""

    default: Ref | ConstantConfig | None = None
    """What it is for any other value. Required for a switch; may be null."""

    equal: Annotated[tuple[Ref, ...], Field(strict=False, min_length=2)] | None = None
    """Values that are compared: the result is true if all are the same."""

    concat: Annotated[tuple[Ref, ...], Field(strict=False, min_length=1)] | None = None
    """Tensors to put one behind the other along `axis`, or lists to put together. One list of tensors will do."""

    axis: Annotated[int, Field(ge=-8, le=8)] | None = None
    """Of `concat`. Default: 0, the rows."""

    join: dict[str, Ref] | None = Field(default=None, min_length=1)
    """Values by name, that become one JSON object."""

    _TAKES: ClassVar[Mapping[str, frozenset[str]]] = {
        "model": frozenset({"version", "input", "inputs", "map", "parameters"}),
        "switch": frozenset({"cases", "default"}),
        "equal": frozenset(),
        "concat": frozenset({"axis"}),
        "join": frozenset(),
    }

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return checked_step_name(name)

    @model_validator(mode="after")
    def _check(self) -> StepConfig:
        kinds = [kind for kind in self._TAKES if getattr(self, kind) is not None]
        if len(kinds) != 1:
            got = " and ".join(kinds) or "none of them"
            raise validation_error([((), f"a step has one of {', '.join(self._TAKES)}, got {got}")])
        (kind,) = kinds
        others = frozenset().union(*self._TAKES.values()) - self._TAKES[kind]
        faults: list[tuple[Location, str]] = [
            ((key,), f"is not for a step with {kind}; leave it out") for key in sorted(others & self.model_fields_set)
        ]
        if kind == "model":
            given = [key for key in ("input", "inputs", "map") if getattr(self, key) is not None]
            if len(given) != 1:
                faults.append((("model",), f"needs one of input, inputs, map, got {' and '.join(given) or 'none'}"))
            if self.inputs is not None and self.parameters:
                faults.append((("parameters",), "are for media and text; a model that is given tensors takes none"))
        elif kind == "switch":
            if self.cases is None:
                faults.append((("cases",), "required for a switch, but missing"))
            if "default" not in self.model_fields_set:
                faults.append((("default",), "required for a switch, but missing; null is one"))
        if faults:
            raise validation_error(faults)
        return self

    def references(self) -> Iterator[tuple[Location, Reference]]:
        """All possible references, with their places."""
        for key in ("input", "map", "switch", "default"):
            if isinstance(text := getattr(self, key), str):
                yield (key,), Reference.parse(text)
        for key in ("inputs", "cases", "join"):
            for name, text in (getattr(self, key) or {}).items():
                if isinstance(text, str):
                    yield (key, name), Reference.parse(text)
        for key in ("equal", "concat"):
            for at, text in enumerate(getattr(self, key) or ()):
                yield (key, at), Reference.parse(text)

    def value(self) -> Step:
        """The value for the layers below. The model's inputs of a model step are not known yet."""

        def read(text: str | None) -> Reference | None:
            return None if text is None else Reference.parse(text)

        if self.switch is not None:
            cases = {value: _choice(given) for value, given in (self.cases or {}).items()}
            return SwitchStep(self.name, Reference.parse(self.switch), cases, _choice(self.default))
        if self.equal is not None:
            return EqualStep(self.name, tuple(map(Reference.parse, self.equal)))
        if self.concat is not None:
            return ConcatStep(self.name, tuple(map(Reference.parse, self.concat)), self.axis or 0)
        if self.join is not None:
            return JoinStep(self.name, {name: Reference.parse(text) for name, text in self.join.items()})
        return ModelStep(
            self.name,
            self.model or "",
            self.version,
            input=read(self.input),
            inputs={name: Reference.parse(text) for name, text in (self.inputs or {}).items()},
            over=read(self.map),
            parameters=self.parameters,
        )


def _choice(given: str | ConstantConfig | None) -> Choice:
    if isinstance(given, str):
        return Reference.parse(given)
    return Constant(None if given is None else given.value)


class PipelineConfig(Section):
    """Models that answer one request together. Clients ask it as they ask a model."""

    name: str
    """What clients call it. No model may have this name."""

    version: Annotated[int, Field(ge=1)] = 1
    """Number by which clients may name it; it has no other."""

    inputs: dict[str, PipelineInputConfig] = Field(min_length=1)
    """What a request has, by name."""

    steps: Annotated[tuple[StepConfig, ...], Field(strict=False, min_length=1, max_length=MOST_STEPS)]
    """What is done, in any order: a step runs when what it needs is there, and somebody needs its result."""

    outputs: dict[str, Ref] = Field(min_length=1)
    """What an answer has, by name: an input or a step, or a part of it."""

    max_rows: Annotated[int, Field(ge=1)] | None = None
    """Rows that a request may have: all inputs and outputs are tensors then, with the rows in dimension 0, as many in
    each input. Without it tensors have the shapes that `inputs` says, whatever dimension 0 means."""

    max_parts: Annotated[int, Field(ge=1, le=_MOST_PARTS)] = 64
    """Parts of a list that a `map` may run over in one request, and of an input with `many`. More are refused."""

    max_result_bytes: Size = ByteSize(64 * 2**20)
    """What the results of all steps of one request may hold together, in memory or as JSON. More is refused."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return checked_model_name(name)

    @field_validator("inputs")
    @classmethod
    def _check_inputs(cls, inputs: dict[str, PipelineInputConfig]) -> dict[str, PipelineInputConfig]:
        for name in inputs:
            checked_step_name(name)
        return inputs

    @model_validator(mode="after")
    def _check(self) -> PipelineConfig:
        if (
            faults := [*self._name_faults(), *self._row_faults()]
            or [*self._reference_faults()]
            or [*self._graph_faults()]
        ):
            raise validation_error(faults)
        return self

    def _name_faults(self) -> Iterator[tuple[Location, str]]:
        seen: dict[str, str] = dict.fromkeys(self.inputs, "an input")
        for at, step in enumerate(self.steps):
            if step.name in seen:
                yield ("steps", at, "name"), f"{short_repr(step.name)} is also the name of {seen[step.name]}; rename"
            seen.setdefault(step.name, f"steps[{at}]")

    def _row_faults(self) -> Iterator[tuple[Location, str]]:
        for name, given in self.inputs.items() if self.max_rows is not None else ():
            if given.shape is None:
                yield ("inputs", name, "type"), f"must be tensor with max_rows, got {given.type}"
            elif given.shape[0] != -1:
                yield ("inputs", name, "shape"), f"must begin with -1, the rows, with max_rows, got {[*given.shape]}"

    def _reference_faults(self) -> Iterator[tuple[Location, str]]:
        known = [*self.inputs, *(step.name for step in self.steps)]
        places = [
            (("steps", at, *where), reference)
            for at, step in enumerate(self.steps)
            for where, reference in step.references()
        ]
        places += [(("outputs", name), Reference.parse(text)) for name, text in self.outputs.items()]
        for where, reference in places:
            if reference.name not in known:
                meant = hint(reference.name, known)
                yield where, f"there is no input or step {short_repr(reference.name)}; {meant}"

    def _graph_faults(self) -> Iterator[tuple[Location, str]]:
        steps = {step.name: step.value() for step in self.steps}
        if cycle := find_cycle(steps):
            at = next(at for at, step in enumerate(self.steps) if step.name == cycle[0])
            yield ("steps", at), f"steps need each other in a circle: {' -> '.join((*cycle, cycle[0]))}"
            return
        used: set[str] = set()
        ahead = [Reference.parse(text).name for text in self.outputs.values()]
        while ahead:
            name = ahead.pop()
            if name not in used:
                used.add(name)
                ahead += (each.name for each in all_needs(steps[name])) if name in steps else ()
        for name in self.inputs:
            if name not in used:
                yield ("inputs", name), "no step and no output uses it; leave it out"
        for at, step in enumerate(self.steps):
            if step.name not in used:
                yield (
                    ("steps", at),
                    f"no output needs step {short_repr(step.name)}: it would never run; leave it out",
                )


def checked_step_name(name: str) -> str:
    """Return a valid name. Raises ``ValueError`` if it cannot be in a reference."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"must be 1 to 63 letters, digits, '-' or '_', got {short_repr(name)}")
    return name


def find_cycle(steps: Mapping[str, Step]) -> tuple[str, ...]:
    """Steps that depend on each other in a cycle, if there is one."""
    done: set[str] = set()
    for start in steps:
        way: list[str] = []
        ahead: list[tuple[str, Iterator[Reference]]] = []
        if start not in done:
            way, ahead = [start], [(start, all_needs(steps[start]))]
        while ahead:
            name, needs = ahead[-1]
            following = next((each.name for each in needs if each.name in steps and each.name not in done), None)
            if following is None:
                done.add(name)
                ahead.pop()
                way.pop()
            elif following in way:
                return tuple(way[way.index(following) :])
            else:
                way.append(following)
                ahead.append((following, all_needs(steps[following])))
    return ()


def problems(args: AppArgs) -> Iterator[tuple[Location, str]]:
    """Find names that a model or another pipeline has."""
    seen: dict[str, str] = {}
    for number, model in enumerate(args.models):
        seen.setdefault(model.name, f"models[{number}]")
    for number, pipeline in enumerate(args.pipelines):
        if pipeline.name in seen:
            yield (
                ("pipelines", number, "name"),
                f"{short_repr(pipeline.name)} is also the name of {seen[pipeline.name]}; rename one",
            )
        seen.setdefault(pipeline.name, f"pipelines[{number}]")
