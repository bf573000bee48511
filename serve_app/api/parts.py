"""What pipelines take and give as people write it: values by name, in JSON or as the parts of a multipart form.

To the service they are tensors, as in a V2 request: BYTES for pictures, sounds, texts and JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import orjson
from starlette.datastructures import UploadFile

from serve_app.api.media import from_base64, opened_form
from serve_app.api.open_inference.tensors import JsonData, element_type
from serve_app.api.open_inference.wire import invalid
from serve_app.api.replies import dump_json
from serve_app.domain.pipeline import Pipeline, PipelineInput
from serve_app.domain.service import ModelInfo
from serve_app.errors import InvalidRequest
from serve_app.payloads import Tensors

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_TEXT: Final = msgspec.json.Decoder(str)
_ROW_BY_ROW: Final = 64 * 1024
"""Bytes of numbers above which others get their turn between rows."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    b64: str


_FILE: Final = msgspec.json.Decoder(_File | str)


class Parts(NamedTuple):
    """A body, taken apart.

    Attributes:
        values: By input, JSON, or what stood in the parts of a form, in their order.
    """

    values: Mapping[str, msgspec.Raw | list[bytes]]


def parse_parts(info: ModelInfo, content: bytes) -> Parts:
    """Take a JSON body apart. Raises `InvalidRequest` where it cannot be understood, or names other inputs."""
    plan = _plan(info)
    try:
        values = _OBJECT.decode(content)
    except msgspec.ValidationError:
        names = ", ".join(f'"{name}": ...' for name in plan.inputs)
        raise InvalidRequest(f"the body: expected a JSON object {{{names}}}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(error) from None
    _check_names(plan, values)
    return Parts(values)


async def parse_parts_form(info: ModelInfo, headers: Mapping[bytes, bytes], content: bytes) -> Parts:
    """Take a form apart, with one part for each input, or several where it is a list. Raises as `parse_parts`."""
    plan = _plan(info)
    most = 1 + sum(plan.max_parts if given.many else 1 for given in plan.inputs.values())  # one to be told of
    values: dict[str, list[bytes]] = {}
    async with opened_form(headers, content, max_files=most, max_fields=most) as form:
        for name, value in form.multi_items():
            part = await value.read() if isinstance(value, UploadFile) else value.encode()
            values.setdefault(name, []).append(part)
    _check_names(plan, values)
    for name, parts in values.items():
        if len(parts) > 1 and not plan.inputs[name].many:
            raise InvalidRequest(f"{name}: {len(parts)} parts of this name; expected one")
    return Parts(values)


def _plan(info: ModelInfo) -> Pipeline:
    assert info.pipeline is not None
    return info.pipeline


def _check_names(plan: Pipeline, given: Mapping[str, Any]) -> None:
    takes = f"pipeline {plan.name!r} takes {', '.join(plan.inputs)}"
    if unknown := [name for name in given if name not in plan.inputs]:
        raise InvalidRequest(f"{unknown[0][:64]!r} is no input; {takes}")
    if missing := [name for name in plan.inputs if name not in given]:
        raise InvalidRequest(f"{', '.join(missing)} missing; {takes}")


def tensors_of(info: ModelInfo, parts: Parts) -> Tensors:
    """Make what the service takes.

    Raises:
        InvalidRequest: A value is not what the pipeline takes.
    """
    plan = _plan(info)
    return {name: _tensor(plan.inputs[name], value, plan, info) for name, value in parts.values.items()}


def _tensor(given: PipelineInput, value: msgspec.Raw | list[bytes], plan: Pipeline, info: ModelInfo) -> Any:
    if given.kind == "tensor":
        return _numbers(given, value if isinstance(value, msgspec.Raw) else msgspec.Raw(value[0]), info)
    if isinstance(value, list):
        found: Sequence[bytes] = value
    elif given.many:
        found = [_bytes(given, each, f"{given.name}[{at}]") for at, each in enumerate(_list(given, value, plan))]
    else:
        found = [_bytes(given, value, given.name)]
    array = np.empty(len(found), np.object_)
    array[:] = found
    return array


def _list(given: PipelineInput, raw: msgspec.Raw, plan: Pipeline) -> list[msgspec.Raw]:
    try:
        values = _LIST.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest(f"{given.name}: expected a list") from None
    if len(values) > plan.max_parts:
        raise InvalidRequest(f"{given.name}: {len(values)} parts; the most is {plan.max_parts} (max_parts)")
    return values


def _bytes(given: PipelineInput, raw: msgspec.Raw, where: str) -> bytes:
    if given.kind == "json":
        return bytes(raw)
    if given.kind == "text":
        try:
            return _TEXT.decode(raw).encode()
        except (msgspec.MsgspecError, UnicodeError):
            raise InvalidRequest(f"{where}: expected a text") from None
    wanted = f'{where}: expected the {given.kind} file in base64, as {{"b64": "..."}} or a string'
    try:
        file = _FILE.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise InvalidRequest(wanted) from None
    return from_base64(file if isinstance(file, str) else file.b64, given.kind, where)[1]


def _numbers(given: PipelineInput, raw: msgspec.Raw, info: ModelInfo) -> Any:
    """A tensor of nested lists. Its shape is found first: nothing is allocated for one that the data does not have."""
    rank = len(given.shape)
    nested: Any = element_type(given.datatype)
    for _ in range(rank):
        nested = list[nested]
    try:
        values: Any = msgspec.json.decode(raw, type=nested)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest(f"{given.name}: expected {given.datatype} values in lists, {rank} deep") from None
    shape: list[int] = []
    for _ in range(rank):
        shape.append(len(values))
        values = values[0] if values else []
    if any(want >= 0 and want != size for want, size in zip(given.shape[1:], shape[1:], strict=True)):
        raise InvalidRequest(f"{given.name}: expected the shape {list(given.shape)}, got {shape}")
    if shape[0] > info.max_request_rows:
        raise InvalidRequest(f"{given.name}: {shape[0]} rows; the most in one request is {info.max_request_rows}")
    return JsonData(given.datatype, rank).decode(raw, tuple(shape), math.prod(shape), given.name)


def write_parts(tensors: Tensors) -> bytes:
    """The outputs of a pipeline as a JSON object. NaN and infinities become null."""
    return dump_json({name: orjson.Fragment(_written(array)) for name, array in tensors.items()})


def _written(array: Any) -> bytes:
    if array.dtype.hasobject:
        text: bytes = array[0]  # JSON already
        return text
    if array.dtype.kind == "V":  # bfloat16, which JSON writers do not know
        array = array.astype(np.float32)
    if array.nbytes > _ROW_BY_ROW and array.ndim > 1:
        return b"[" + b",".join(dump_json(row) for row in array) + b"]"
    return dump_json(array)
