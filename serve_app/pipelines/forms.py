"""What is known of the values of a pipeline before any request: their forms, and what fits where.

What is not known, the JSON that a processor of your own makes, fits everything and is looked at when it is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from serve_app.config.problems import hint, short_repr
from serve_app.domain.pipeline import ModelStep, PipelineInput, Reference
from serve_app.domain.service import ModelInfo
from serve_app.payloads import TENSORS, TensorSpec

_CLASSIFIERS: Final = frozenset({"image-classification", "audio-classification", "text-classification"})
_EMBEDDING: Final = "feature-extraction"

_FormKind: TypeAlias = Literal[
    "unknown", "image", "audio", "text", "number", "boolean", "tensor", "list", "object", "outputs"
]


class ValueForm(NamedTuple):
    """What is known of a value.

    Attributes:
        kind: What it is. The ``outputs`` of a model are an object, or the one tensor in it: see `single`.
        item: Of a list, its elements.
        members: Of an object, and of outputs.
        datatype: Of a tensor; of what is not known and may be one, why.
        shape: Of a tensor, the rows in dimension 0; ``None`` where it is not known.
    """

    kind: _FormKind
    item: ValueForm | None = None
    members: Mapping[str, ValueForm] = {}
    datatype: str = ""
    shape: tuple[int, ...] | None = None

    def __str__(self) -> str:
        match self.kind:
            case "image" | "audio":
                return {"image": "a picture", "audio": "a sound"}[self.kind]
            case "tensor":
                return f"{self.datatype} {'' if self.shape is None else list(self.shape)}".rstrip()
            case "list":
                return f"a list of {self.item}"
            case "object" | "outputs":
                return f"an object with {', '.join(self.members)}"
            case _:
                return {"unknown": "JSON", "number": "a number", "boolean": "true or false"}.get(self.kind, self.kind)


UNKNOWN: Final = ValueForm("unknown")
"""Of JSON."""
OWN: Final = ValueForm("unknown", datatype="OWN")
"""What a class of the operator's gives in place of vectors: these, or JSON."""
ANYTHING: Final = ValueForm("unknown", datatype="ANYTHING")
"""What a model gives that is not on this machine, and what has a fault already: fits everything."""
TEXT: Final = ValueForm("text")
_RANKED: Final = ValueForm("list", ValueForm("object", members={"label": TEXT, "score": ValueForm("number")}))


class Misfit(Exception):
    """A value does not fit; the message says where and why."""


WANTED: Final = {"image": "a picture", "audio": "a sound", "text": "text", "json": "JSON", TENSORS: "tensors"}
"""By kind of model, what it takes."""


def form_of(given: PipelineInput) -> ValueForm:
    """What is known of an input."""
    form = {
        "image": ValueForm("image"),
        "audio": ValueForm("audio"),
        "text": TEXT,
        "json": UNKNOWN,
        "tensor": ValueForm("tensor", datatype=given.datatype, shape=given.shape),
    }[given.kind]
    return ValueForm("list", form) if given.many else form


def outputs_form(info: ModelInfo) -> ValueForm:
    """What a model of tensors gives."""
    return ValueForm(
        "outputs",
        members={
            spec.name: ValueForm("tensor", datatype=spec.datatype, shape=spec.shape if spec.ranked else None)
            for spec in info.signature.outputs
        },
    )


def result_of(info: ModelInfo, step: ModelStep, *, several: bool) -> ValueForm:
    """What a model makes of one value; ``several`` texts are such."""
    if info.task == TENSORS:
        return outputs_form(info)
    if info.own_processor:  # whatever the task is: its arrays are lists by now, but for vectors
        return OWN if info.task == _EMBEDDING else UNKNOWN
    if info.task in _CLASSIFIERS:
        return ValueForm("list", _RANKED) if several else _RANKED
    if info.task == _EMBEDDING and not {"candidate_labels", "source_sentence"} & set(step.parameters):
        return ValueForm("tensor", datatype="FP32", shape=(-1 if several else 1, -1))
    return UNKNOWN


def pick(form: ValueForm, reference: Reference) -> ValueForm:
    """What a reference leads to in a value. Raises `Misfit` where that is nothing."""
    path = reference.path
    for at, part in enumerate(path):
        here = ".".join((reference.name, *path[:at]))
        match form.kind:
            case "unknown":
                return form
            case "object" | "outputs":
                if (rest := ".".join(path[at:])) in form.members:  # names of tensors may have dots
                    return form.members[rest]
                if part not in form.members:
                    raise Misfit(f"{here} has no {short_repr(part)}; {hint(part, form.members)}")
                form = form.members[part]
            case "list":
                if not part.isdecimal():
                    raise Misfit(f"{here} is {form}: say which one, as in {here}.0.{part}")
                form = form.item or UNKNOWN
            case _:
                raise Misfit(f"{here} is {form}, which has no parts")
    return form


def single(form: ValueForm) -> ValueForm:
    """The one tensor that a model gives stands for all that it gives."""
    if form.kind == "outputs" and len(form.members) == 1:
        (form,) = form.members.values()
    return form


def common(forms: Sequence[ValueForm]) -> ValueForm:
    """What is known of a value that is one of these: sizes and members in which they differ are not."""
    first = forms[0]
    if all(form == first for form in forms):
        return first
    if loose := next((form for form in (ANYTHING, OWN) if form in forms), None):
        return loose
    kinds = {form.kind for form in forms}
    if kinds == {"tensor"} and len({form.datatype for form in forms}) == 1:
        return first._replace(shape=_common_shape([form.shape for form in forms]))
    if kinds == {"list"}:
        return ValueForm("list", common([form.item or UNKNOWN for form in forms]))
    if kinds <= {"object", "outputs"}:
        names = dict.fromkeys(name for form in forms for name in form.members)
        members = {name: common([form.members.get(name, UNKNOWN) for form in forms]) for name in names}
        return ValueForm(first.kind if len(kinds) == 1 else "object", members=members)
    return UNKNOWN


def _common_shape(shapes: Sequence[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) > 1:
        return None
    return tuple(sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*known, strict=True))


def part_of(form: ValueForm, reference: Reference) -> ValueForm:
    """A part of what a step goes over. Raises `Misfit` where it has none."""
    form = single(form)
    if form.kind == "list":
        return form.item or UNKNOWN
    if form.kind == "tensor":
        return form if form.shape is None else form._replace(shape=(1, *form.shape[1:]))
    if form.kind == "unknown":
        return form
    raise Misfit(f"map: {reference} is {form}; it takes a list, or the rows of a tensor")


def media_in(form: ValueForm) -> ValueForm | None:
    """The picture or the sound that a value holds; ``None``: none."""
    if form.kind in {"image", "audio"}:
        return form
    inner = [*form.members.values(), *([] if form.item is None else [form.item])]
    return next((media for each in inner if (media := media_in(each)) is not None), None)


def meets(form: ValueForm, kind: str) -> bool:
    """Whether a value may be what models of a kind take."""
    if form.kind == kind:
        return True
    if kind == "text":
        parts = form if form.kind != "list" else form.item or UNKNOWN
        return parts.kind in {"unknown", "text"}
    return kind == "json" and media_in(form) is None


def has_rows(form: ValueForm) -> bool:
    """Whether a value is a tensor whose dimension 0 may be rows, as far as it is known."""
    return form == ANYTHING or (form.kind == "tensor" and (form.shape is None or form.shape[:1] == (-1,)))


def check_tensor(reference: str, form: ValueForm, spec: TensorSpec, info: ModelInfo) -> None:
    """Raises `Misfit` where a value cannot be what an input of a model takes."""
    form = single(form)
    taken = f"{info.name} takes {spec.datatype} {list(spec.shape) if spec.ranked else ''}".rstrip() + f" as {spec.name}"
    if (form.kind == "text" and spec.datatype == "BYTES") or form in (ANYTHING, OWN):
        return
    if form.kind != "tensor":
        raise Misfit(f"{taken}, and {reference} is {form}")
    fits = form.datatype == spec.datatype
    if fits and spec.ranked and form.shape is not None:
        sizes = list(zip(form.shape, spec.shape, strict=False))
        inner = sizes[1:] if info.rows else sizes
        fits = len(form.shape) == len(spec.shape) and all(a == b or a < 0 or b < 0 for a, b in inner)
    if not fits:
        raise Misfit(f"{taken}, and {reference} is {form}")


def joined_shape(shapes: Sequence[tuple[int, ...] | None], axis: int) -> tuple[int, ...] | None:
    """The shape of tensors one behind the other; ``None``: not known. Raises `Misfit` where they do not fit."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    first = known[0]
    rank = len(first)
    if any(len(shape) != rank for shape in known) or not -rank <= axis < rank:
        raise Misfit(f"concat: {', '.join(map(str, map(list, known)))} cannot be put together along axis {axis}")
    axis %= rank
    for shape in known:
        if any(at != axis and a >= 0 and b >= 0 and a != b for at, (a, b) in enumerate(zip(first, shape, strict=True))):
            raise Misfit(f"concat: {list(first)} and {list(shape)} cannot be put together along axis {axis}")
    along = [shape[axis] for shape in known]
    return (*first[:axis], -1 if min(along) < 0 else sum(along), *first[axis + 1 :])
