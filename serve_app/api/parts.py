"""Inputs and outputs of pipelines: values by name, in JSON or as parts of a multipart form.

The service sees tensors, as in a V2 request: BYTES for images, audio, texts and JSON.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import orjson
from starlette.datastructures import UploadFile

from serve_app.api.forms import opened_form
from serve_app.api.media import file_of
from serve_app.api.open_inference.tensors import JsonData, count_of
from serve_app.api.open_inference.wire import invalid
from serve_app.api.replies import dump_json
from serve_app.domain.pipeline import Pipeline, PipelineInput
from serve_app.domain.service import ModelInfo
from serve_app.errors import InvalidRequest
from serve_app.payloads import Tensors

_TEXT: Final = msgspec.json.Decoder(str)
_ROW_BY_ROW: Final = 64 * 1024
"""Bytes of numbers above which others get their turn between rows."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    b64: str


_FILE: Final = msgspec.json.Decoder(_File | str)


class _Start(msgspec.Struct, array_like=True):
    """A list that keeps only its first element."""

    first: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_START: Final = msgspec.json.Decoder(_Start)
_PIECE_BYTES: Final = 64 * 1024
"""Texts are left out of so much at once: that bounds what is made of them meanwhile."""


class Parts(NamedTuple):
    """A parsed body.

    Attributes:
        values: By input: JSON, or the content of a form's parts in order.
    """

    values: Mapping[str, msgspec.Raw | list[bytes]]


def parse_parts(info: ModelInfo, content: bytes) -> Parts:
    """Parse a JSON body. Raises `InvalidRequest` if it is malformed, or names other inputs."""
    plan = _plan(info)
    try:
        found = msgspec.structs.astuple(_object(tuple(plan.inputs)).decode(content))
    except msgspec.ValidationError as error:
        if content.lstrip().startswith(b"{"):  # an object, then: the values in it may be anything
            raise _unknown(plan, str(error).partition("`")[2].rpartition("`")[0]) from None
        names = ", ".join(f'"{name}": ...' for name in plan.inputs)
        raise InvalidRequest(f"the body: expected a JSON object {{{names}}}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(error) from None
    values = {name: value for name, value in zip(plan.inputs, found, strict=True) if value is not msgspec.UNSET}
    _check_names(plan, values)
    return Parts(values)


@lru_cache(maxsize=256)
def _object(names: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    """Decodes an object with these optional members, and stops at any other."""
    renamed = {f"field_{at}": name for at, name in enumerate(names)}
    return msgspec.json.Decoder(
        msgspec.defstruct("Inputs", _optional(renamed), rename=renamed, forbid_unknown_fields=True)
    )


@lru_cache(maxsize=64)
def _list_of(most: int) -> msgspec.json.Decoder[Any]:
    """Decodes a list up to this many elements, and stops at the first beyond."""
    fields = _optional([f"field_{at}" for at in range(most)])
    return msgspec.json.Decoder(msgspec.defstruct("List", fields, array_like=True, forbid_unknown_fields=True))


def _optional(fields: Iterable[str]) -> list[tuple[str, Any, Any]]:
    return [(field, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for field in fields]


async def parse_parts_form(info: ModelInfo, headers: Mapping[bytes, bytes], content: bytes) -> Parts:
    """Parse a form with one part per input, or several for a list. Raises what `parse_parts` raises."""
    plan = _plan(info)
    most = 1 + sum(plan.max_parts if given.many else 1 for given in plan.inputs.values())  # one more, for the error
    values: dict[str, list[bytes]] = {}
    async with opened_form(headers, content, max_files=most, max_fields=most) as form:
        for name, value in form:
            part = await value.read() if isinstance(value, UploadFile) else value
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
    if unknown := [name for name in given if name not in plan.inputs]:
        raise _unknown(plan, unknown[0])
    if missing := [name for name in plan.inputs if name not in given]:
        raise InvalidRequest(f"{', '.join(missing)} missing; {_takes(plan)}")


def _unknown(plan: Pipeline, name: str) -> InvalidRequest:
    return InvalidRequest(f"{name[:64]!r} is no input; {_takes(plan)}")


def _takes(plan: Pipeline) -> str:
    return f"pipeline {plan.name!r} takes {', '.join(plan.inputs)}"


def tensors_of(info: ModelInfo, parts: Parts) -> Tensors:
    """Make the service's input.

    Raises:
        InvalidRequest: A value does not fit the pipeline.
    """
    plan = _plan(info)
    tensors = {name: _tensor(plan.inputs[name], value, plan, info) for name, value in parts.values.items()}
    if info.rows and len(rows := {len(array) for array in tensors.values()}) > 1:
        raise InvalidRequest(f"the inputs have {' and '.join(map(str, sorted(rows)))} rows; dimension 0 is rows")
    return tensors


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
    if not bytes(raw).lstrip().startswith(b"["):
        raise InvalidRequest(f"{given.name}: expected a list")
    try:
        values = msgspec.structs.astuple(_list_of(plan.max_parts).decode(raw))
    except msgspec.ValidationError:
        raise InvalidRequest(f"{given.name}: more than {plan.max_parts} parts (max_parts)") from None
    return [value for value in values if value is not msgspec.UNSET]


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
    return file_of(file if isinstance(file, str) else file.b64, given.kind, where)[1]


def _numbers(given: PipelineInput, raw: msgspec.Raw, info: ModelInfo) -> Any:
    """A tensor from nested lists. Finds the shape first, so that nothing is allocated for missing data."""
    rank = len(given.shape)
    text = bytes(raw).strip()
    plain = _without_texts(text) if given.datatype == "BYTES" else text
    try:
        shape = _shape_of(plain, rank)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest(f"{given.name}: expected {given.datatype} values in lists, {rank} deep") from None
    if shape[0] > info.max_request_rows:
        raise InvalidRequest(f"{given.name}: {shape[0]} rows; the most in one request is {info.max_request_rows}")
    if any(want >= 0 and want != size for want, size in zip(given.shape, shape, strict=True)):
        raise InvalidRequest(f"{given.name}: expected the shape {list(given.shape)}, got {shape}")
    count = math.prod(shape)
    if (count_of(plain, "FP32") != count) if count else (plain.count(b",") >= plain.count(b"[")):
        raise InvalidRequest(f"{given.name}: nested lists have unequal lengths")
    return JsonData(given.datatype, rank).decode(text, tuple(shape), count, given.name)


def _shape_of(text: bytes, rank: int) -> list[int]:
    """The shape of nested lists of numbers by their brackets, assuming equal lengths at each depth.

    Copies only the first element of each depth. Raises `msgspec.MsgspecError` if the nesting is too shallow.
    """
    firsts = [text]
    while len(firsts) < rank and (first := _START.decode(firsts[-1]).first) is not msgspec.UNSET:
        firsts.append(bytes(first))
    _START.decode(firsts[-1])  # is a list
    lists = [first.count(b"[") for first in firsts]
    shape = [(outer - 1) // inner for outer, inner in pairwise(lists)]
    shape.append(count_of(firsts[-1], "FP32"))
    return shape + [0] * (rank - len(shape))


def _without_texts(content: bytes) -> bytes:
    """JSON with 0 for each text, so that brackets and commas only separate values."""
    content = content.replace(rb"\\", b"").replace(rb"\"", b"")
    pieces, inside = [], 0
    for at in range(0, len(content), _PIECE_BYTES):
        parts = content[at : at + _PIECE_BYTES].split(b'"')
        between = parts[inside::2]
        inside = (inside + len(parts) - 1) % 2
        pieces.append(b"0".join([*between, b""] if inside and between else between))
    return b"".join(pieces)


def write_parts(info: ModelInfo, tensors: Tensors) -> bytes:
    """A pipeline's outputs as a JSON object. NaN and infinities become null, bytes texts.

    Raises:
        InvalidRequest: Bytes are not UTF-8.
    """
    outputs = _plan(info).outputs
    return dump_json(
        {
            name: orjson.Fragment(array[0] if outputs[name].tensor is None else _written(name, array))  # JSON already
            for name, array in tensors.items()
        }
    )


def _written(name: str, array: Any) -> bytes:
    if array.dtype.hasobject:
        texts = np.empty(array.size, np.object_)
        try:
            texts[:] = [text.decode() if isinstance(text, bytes) else str(text) for text in array.ravel().tolist()]
        except UnicodeDecodeError:
            raise InvalidRequest(
                f"output {name!r} is not UTF-8 text, which JSON needs: ask for it by V2, as binary_data"
            ) from None
        return dump_json(texts.reshape(array.shape).tolist())
    if array.dtype.kind == "V":  # bfloat16, which JSON writers do not know
        array = array.astype(np.float32)
    if array.nbytes > _ROW_BY_ROW and array.ndim > 1:
        return b"[" + b",".join(dump_json(row) for row in array) + b"]"
    return dump_json(array)
