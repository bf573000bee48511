"""Inputs and outputs of a Triton model configuration, set against the model's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from serve_app.composition.triton.fields import Fields
from serve_app.config.problems import nearest
from serve_app.payloads import ModelSignature, TensorSpec
from serve_app.processors.model_folder import ModelFolder

_PICTURE_AXES = 3
_NO_FORMAT = "FORMAT_NONE"
_NO_TYPE = "TYPE_INVALID"


def read_tensors(fields: Fields, signature: ModelSignature, folder: ModelFolder, *, batched: bool) -> dict[str, Any]:
    """What a configuration says of a model's tensors: `labels` and `format`. What does not fit the file is told.

    Args:
        fields: The whole configuration.
        signature: The tensors with the shapes that the model's file declares.
        folder: The model's files.
        batched: Whether dimension 0 is rows, which the configuration leaves out.
    """
    inputs = {spec.name: spec for spec in (*signature.inputs, *signature.optional)}
    outputs = {spec.name: spec for spec in signature.outputs}
    formats: dict[str, str] = {}
    labels: dict[str, str] = {}
    given = set()
    optional = {spec.name for spec in signature.optional}
    for each in fields.each("input"):
        spec = _read_tensor(each, inputs, "input", batched=batched)
        if spec is None:
            continue
        given.add(spec.name)
        if (order := each.word("format")) != _NO_FORMAT:
            formats[spec.name] = order.removeprefix("FORMAT_")
            if spec.ranked and len(spec.shape) - batched != _PICTURE_AXES:
                each.fault("format", f"is for tensors of three axes, and the file has {_described(spec)}")
        if each.value("allow_ragged_batch"):
            each.note("allow_ragged_batch", "requests of different shapes do not share a run")
        if each.value("optional") and spec.name not in optional:
            each.note("optional", "the file holds no value for it: a request without it is refused")
    if given and (missing := [spec.name for spec in signature.inputs if spec.name not in given]):
        fields.fault("input", f"the file needs {', '.join(missing)}, too")
    answered = set()
    for each in fields.each("output"):
        spec = _read_tensor(each, outputs, "output", batched=batched)
        if spec is None:
            continue
        answered.add(spec.name)
        if file := each.value("label_filename"):
            labels[spec.name] = file
            if folder.find(file) is None:
                each.fault("label_filename", f"there is no file {file} in the model's folder")
    if answered and (further := [name for name in outputs if name not in answered]):
        fields.note(
            "output", f"the file has {', '.join(further)}, too, which answers hold unless a request names others"
        )
    return ({"labels": labels} if labels else {}) | ({"format": formats} if formats else {})


def triton_type(spec: TensorSpec) -> str:
    """A tensor's datatype as Triton's model configuration names it."""
    return f"TYPE_{'STRING' if spec.datatype == 'BYTES' else spec.datatype}"


def refuse_forms(each: Fields) -> None:
    """Say what is not done with an input or an output."""
    reshape = each.below("reshape")
    if reshape is not None and reshape.value("shape") != each.value("dims"):
        each.refuse("reshape", "tensors are passed on with the shape that they come with")
    for name in ("is_shape_tensor", "is_non_linear_format_io"):
        if each.value(name):
            each.refuse(name, "is for TensorRT's plans")


def _read_tensor(each: Fields, known: Mapping[str, TensorSpec], what: str, *, batched: bool) -> TensorSpec | None:
    name = each.value("name")
    spec = known.get(name)
    dims = each.value("dims")
    refuse_forms(each)
    if spec is None:
        guess = nearest(name, known)
        hint = f"did you mean {guess}?" if guess else f"there is {', '.join(known)}"
        each.fault("name", f"the file has no {what} {name!r}; {hint}")
        return None
    data_type = each.word("data_type")
    if data_type not in {_NO_TYPE, triton_type(spec)}:
        each.fault("data_type", f"is {data_type}, and the file has {triton_type(spec)}")
    if each.has("dims") and spec.ranked and not each.has("reshape"):
        _check_dims(each, dims, spec, batched=batched)
    return spec


def _check_dims(each: Fields, dims: Sequence[int], spec: TensorSpec, *, batched: bool) -> None:
    if batched and (not spec.shape or spec.shape[0] >= 0):
        each.fault("dims", f"max_batch_size needs a first dimension of any size, and the file has {_described(spec)}")
        return
    shape = spec.shape[1:] if batched else spec.shape
    if len(dims) != len(shape) or any(size >= 0 and dim != size for dim, size in zip(dims, shape, strict=True)):
        rows = " without its rows" if batched else ""
        each.fault("dims", f"are {list(dims)}{rows}, and the file has {_described(spec)}")
    elif any(dim >= 0 > size for dim, size in zip(dims, shape, strict=True)):
        each.note("dims", f"requests of other sizes are accepted, too: the file has {_described(spec)}")


def _described(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.datatype}{list(spec.shape)}"
