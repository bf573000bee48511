"""Inputs and outputs of a Triton model configuration, set against the model's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from serve_app.composition.tensors import NO_ORDER, read_labels, values_of_row
from serve_app.config.problems import hint
from serve_app.errors import ConfigError
from serve_app.payloads import ModelSignature, TensorSpec
from serve_app.processors.model_folder import ModelFolder
from serve_app.triton.fields import Fields

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
    labels: dict[str, str | tuple[str, ...]] = {}
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
        if each.value("label_filename") and (names := _read_labels(each, spec, folder, batched=batched)):
            labels[spec.name] = names
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


def _read_labels(each: Fields, spec: TensorSpec, folder: ModelFolder, *, batched: bool) -> str | tuple[str, ...]:
    """The labels of an output: its file, or what is in it where they are not as many as its values; none: it has none.

    As in Triton, a value has the label of its index, or none.
    """
    file: str = each.value("label_filename")
    if spec.datatype in NO_ORDER:
        each.note("label_filename", f"is not used: {spec.datatype} has no highest values")
        return ""
    if folder.find(file) is None:
        each.fault("label_filename", f"there is no file {file} in the model's folder")
        return ""
    try:
        names = read_labels(file, "label_filename", folder)
    except ConfigError as error:
        each.fault("label_filename", error.problems[0].removeprefix("label_filename: "))
        return ""
    values = values_of_row(spec if batched else spec._replace(shape=(1, *spec.shape))) if spec.ranked else None
    if values in {None, len(names)}:
        return file
    each.note("label_filename", f"has {len(names)} labels, and a row has {values} values")
    return (*names, *("" for _ in range(values - len(names))))[:values]


def _read_tensor(each: Fields, known: Mapping[str, TensorSpec], what: str, *, batched: bool) -> TensorSpec | None:
    name = each.value("name")
    spec = known.get(name)
    dims = each.value("dims")
    refuse_forms(each)
    if spec is None:
        each.fault("name", f"the file has no {what} {name!r}; {hint(name, known)}")
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
