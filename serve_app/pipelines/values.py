"""The values between the steps of a pipeline: what clients send, what models take and give, what clients get.

A value is a picture or a sound (`bytes`), JSON-able data, a tensor, or the tensors of a model by name. Nothing here
waits; tensors are passed on as they are, and copied where they are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from serve_app.api.replies import dump_json
from serve_app.domain.pipeline import ModelStep, Output, Pipeline, PipelineInput, Reference, case_text
from serve_app.domain.service import ModelInfo
from serve_app.domain.tasks import JSON_TYPE, kind_of
from serve_app.errors import InferenceFailed, InvalidRequest, PayloadTooLarge
from serve_app.payloads import DTYPES, Embeddings, Media, Payload, Tensors, TensorSpec, Texts, array_nbytes, text_bytes

_MOST_JSON_BYTES: Final = 2**20
"""Of all inputs of a request: making objects of more would keep every other request waiting."""
_MOST_DEPTH: Final = 128
"""Lists and objects within each other in JSON of a client: about half of what the JSON of answers can have."""


def read_inputs(plan: Pipeline, tensors: Tensors) -> dict[str, Any]:
    """The values that a request came with.

    Raises:
        InvalidRequest: One is missing, or is not what the pipeline takes.
    """
    json = [tensors[name] for name, given in plan.inputs.items() if given.kind == "json" and name in tensors]
    if (nbytes := sum(map(text_bytes, json))) > _MOST_JSON_BYTES:
        raise PayloadTooLarge(f"{nbytes} bytes of JSON in the inputs; the most is {_MOST_JSON_BYTES}")
    return {name: _read(given, tensors, plan) for name, given in plan.inputs.items()}


def _read(given: PipelineInput, tensors: Tensors, plan: Pipeline) -> Any:
    array = tensors.get(given.name)
    if array is None:
        raise InvalidRequest(
            f"inputs: {given.name!r} is missing; pipeline {plan.name!r} takes {', '.join(plan.inputs)}"
        )
    if given.kind == "tensor":
        return array
    parts: list[bytes] = array.reshape(-1).tolist()
    if given.many:
        if not parts:
            raise InvalidRequest(f"{given.name}: expected at least one")
        check_parts(len(parts), plan, given.name)
        return [_decoded(part, given, f"{given.name}[{at}]") for at, part in enumerate(parts)]
    if len(parts) != 1:
        raise InvalidRequest(f"{given.name}: expected one value, got {len(parts)}")
    return _decoded(parts[0], given, given.name)


def _decoded(part: bytes, given: PipelineInput, where: str) -> Any:
    if given.kind == "text":
        try:
            return part.decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"{where}: text is not valid UTF-8") from None
    if given.kind != "json":
        if not part:
            raise InvalidRequest(f"{where}: the file is empty")
        return part
    try:
        value = orjson.loads(part)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"{where}: is not JSON: {error}") from None
    if part.count(b"[") + part.count(b"{") > _MOST_DEPTH and _is_deep(value):
        raise InvalidRequest(f"{where}: JSON is nested too deeply; the most is {_MOST_DEPTH}")
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MOST_DEPTH):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
        if not level:
            return False
    return True


def check_parts(count: int, plan: Pipeline, what: str) -> None:
    """Refuse lists that are too long. Raises `InvalidRequest`."""
    if count > plan.max_parts:
        raise InvalidRequest(
            f"{what}: {count} parts; pipeline {plan.name!r} takes at most {plan.max_parts} (max_parts)"
        )


def pick(value: Any, reference: Reference) -> Any:
    """What a reference means of a value; ``None`` where there is nothing."""
    path = reference.path
    for at, part in enumerate(path):
        if isinstance(value, Mapping):
            rest = ".".join(path[at:])
            if rest in value:  # names of tensors may have dots
                return value[rest]
            value = value.get(part)
        elif isinstance(value, list):
            value = value[int(part)] if part.isdecimal() and int(part) < len(value) else None
        else:
            return None
    return value


class OneTensor(dict[str, Any]):
    """All that a model gives, by name, where that is one tensor. No other object is one, whatever it holds."""


def single(value: Any) -> Any:
    """The one tensor that a model gives stands for all that it gives."""
    return next(iter(value.values())) if isinstance(value, OneTensor) else value


def plain(value: Any) -> Any:
    """A tensor of one value as that value; all else as it is."""
    value = single(value)
    if not isinstance(value, np.ndarray) or value.size != 1:
        return value
    only = value.reshape(-1)[0]
    if isinstance(only, bytes):
        return only.decode("utf-8", "replace")
    return only.item() if isinstance(only, np.generic) else only


def case_of(value: Any) -> str | None:
    """What a value is compared with the cases of a switch by; ``None``: it is none of them.

    Raises:
        InvalidRequest: It is a tensor of no value or of several, such as one for each row.
    """
    value = plain(value)
    if isinstance(value, np.ndarray):
        raise InvalidRequest(f"a switch takes one value, and the tensor has {value.size}")
    return case_text(value) if value is None or isinstance(value, str | bool | int | float) else None


def equal(values: Sequence[Any]) -> bool:
    """Whether all are the same. Tensors are if their shapes and all their values are.

    Raises:
        InferenceFailed: They are nested too deeply.
    """
    first, *others = (single(value) for value in values)
    try:
        return all(_same(first, other) for other in others)
    except RecursionError:
        raise InferenceFailed("the values are nested too deeply to be compared") from None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        one, other = plain(one), plain(other)
        return not isinstance(one, np.ndarray) and not isinstance(other, np.ndarray) and _same(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (one, other))
    return (numbers or type(one) is type(other)) and bool(one == other)


def concatenated(values: Sequence[Any], axis: int) -> Any:
    """Tensors one behind the other, or lists as one; of one list, the tensors in it.

    Raises:
        InferenceFailed: They do not fit together, or there is nothing.
    """
    values = [single(value) for value in values]
    if all(isinstance(value, list) for value in values):
        whole = [single(part) for value in values for part in value]
        if not whole:
            raise InferenceFailed("there is nothing to put together: the lists are empty")
        if not all(isinstance(part, np.ndarray) for part in whole):
            return whole
        values = whole
    try:
        return np.concatenate(values, axis)
    except (ValueError, TypeError) as error:
        raise InferenceFailed(f"cannot put the values together along axis {axis}: {error}") from None


def parts_of(value: Any, plan: Pipeline, what: Reference) -> list[Any]:
    """The parts of a list, or the rows of a tensor.

    Raises:
        InvalidRequest: It is neither, or has too many.
    """
    value = single(value)
    if not isinstance(value, list | np.ndarray) or (isinstance(value, np.ndarray) and not value.ndim):
        raise InvalidRequest(f"{what}: expected a list, got {_named(value)}")
    check_parts(len(value), plan, str(what))
    return value if isinstance(value, list) else [value[at : at + 1] for at in range(len(value))]


def count_parts(value: Any, plan: Pipeline) -> int:
    """How many parts `parts_of` a value gives; of what it refuses, 0."""
    value = single(value)
    count = len(value) if isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim) else 0
    return count if count <= plan.max_parts else 0


def payload_of(step: ModelStep, info: ModelInfo, value: Any) -> Payload:
    """What a model takes of the one value that its step has.

    Raises:
        InvalidRequest: It is not what the model takes.
        InferenceFailed: It has no JSON form, and the model takes JSON.
    """
    match kind_of(info.task):
        case "tensors":
            needed = [spec.name for spec in info.signature.inputs]
            if len(needed) != 1:  # the model was loaded anew
                raise InvalidRequest(f"model {info.name!r} takes {', '.join(needed)}, and its step has one value")
            return tensors_for(info, {needed[0]: value})
        case "text":
            texts = [value] if isinstance(value, str) else value
            if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
                raise InvalidRequest(f"expected a text, or a list of at least one, got {_named(value)}")
            if len(texts) > info.max_request_rows:
                raise InvalidRequest(f"{len(texts)} texts; the most in one request is {info.max_request_rows}")
            return Texts(texts, dict(step.parameters))
        case "json":
            return Media(_json(value), JSON_TYPE, dict(step.parameters))
        case _:
            if not isinstance(value, bytes):
                raise InvalidRequest(f"expected a file, got {_named(value)}")
            return Media(value, "", dict(step.parameters))


def tensors_for(info: ModelInfo, values: Mapping[str, Any]) -> Tensors:
    """What a model takes, by tensor.

    Raises:
        InvalidRequest: A value is not of the datatype and the shape that the model takes, or has other rows.
    """
    needed = {spec.name: spec for spec in info.signature.inputs}
    known = needed | {spec.name: spec for spec in info.signature.optional}
    tensors: Tensors = {}
    rows = -1
    for name, value in values.items():
        if (spec := known.get(name)) is None:  # the model was loaded anew
            raise InvalidRequest(f"model {info.name!r} has no input {name!r}")
        array = _tensor(value, spec, rows=info.rows)
        if info.rows and name in needed:
            rows = _checked_rows(array, rows, info, name)
        tensors[name] = array
    return tensors


def _checked_rows(array: npt.NDArray[Any], rows: int, info: ModelInfo, name: str) -> int:
    here = len(array) if array.ndim else 0
    if not info.least_rows <= here <= info.max_request_rows:
        raise InvalidRequest(f"{name}: expected {info.least_rows} to {info.max_request_rows} rows, got {here}")
    if rows not in (-1, here):
        raise InvalidRequest(f"{name}: {here} rows, and another input has {rows}")
    return here


def _tensor(value: Any, spec: TensorSpec, *, rows: bool) -> npt.NDArray[Any]:
    value = single(value)
    if isinstance(value, str) and spec.datatype == "BYTES":
        value = np.array([value.encode()], np.object_).reshape((1,) * max(1, len(spec.shape)))
    if not isinstance(value, np.ndarray):
        raise InvalidRequest(f"{spec.name}: expected a tensor, got {_named(value)}")
    array: npt.NDArray[Any] = value
    if not _fits(array, spec, rows=rows):
        raise InvalidRequest(f"{spec.name}: expected {_shown(spec)}, got {array.dtype} {list(array.shape)}")
    return array


def _fits(array: npt.NDArray[Any], spec: TensorSpec, *, rows: bool) -> bool:
    """Whether a tensor is of this datatype and shape; ``rows``: whatever its dimension 0 is."""
    if array.dtype != DTYPES[spec.datatype]:
        return False
    sizes = list(zip(spec.shape, array.shape, strict=False))[rows:]
    return not spec.ranked or (array.ndim == len(spec.shape) and all(want < 0 or want == size for want, size in sizes))


def result_of(info: ModelInfo, asked: Any, value: Any) -> Any:
    """What a model has answered, as a value: vectors as a tensor, and of one text its own answer.

    Args:
        info: Of the model. A list that a class of the operator's makes is its own matter.
        asked: What the model was given.
        value: As in `serve_app.domain.service.Answer`.
    """
    if isinstance(value, Embeddings):
        return value.vectors
    if isinstance(value, dict) and len(value) == 1 and isinstance(next(iter(value.values())), np.ndarray):
        return OneTensor(value)
    per_text = kind_of(info.task) == "text" and not info.own_processor
    return value[0] if per_text and isinstance(asked, str) and isinstance(value, list) and len(value) == 1 else value


def nbytes_of(value: Any) -> int:
    """About how much a value holds, bytes. It may be nested as deeply as it likes."""
    nbytes, left = 0, [value]
    while left:
        each = left.pop()
        if isinstance(each, np.ndarray):
            nbytes += array_nbytes(each)
        elif isinstance(each, str | bytes):
            nbytes += len(each)
        elif isinstance(each, Mapping):
            nbytes += sum(map(len, each))
            left += each.values()
        elif isinstance(each, list | tuple):
            left += each
        else:
            nbytes += 8
    return nbytes


def write_outputs(plan: Pipeline, get: Callable[[Reference], Any]) -> Tensors:
    """What clients get: tensors, and one JSON text for each other output.

    Raises:
        InferenceFailed: One has no such form, or is too large.
    """
    return {name: _written(name, output, get(output.reference), plan) for name, output in plan.outputs.items()}


def _written(name: str, output: Output, value: Any, plan: Pipeline) -> npt.NDArray[Any]:
    if (spec := output.tensor) is not None:
        tensor = single(value)
        if not isinstance(tensor, np.ndarray):
            raise InferenceFailed(f"output {name!r}: expected a tensor, got {_named(value)}")
        if not _fits(tensor, spec, rows=True):  # its model was loaded anew
            raise InferenceFailed(f"output {name!r}: expected {_shown(spec)}, got {tensor.dtype} {list(tensor.shape)}")
        return tensor
    try:
        text = _json(value)
    except InferenceFailed as error:
        raise InferenceFailed(f"output {name!r}: {error}") from None
    if len(text) > plan.max_result_bytes:
        raise too_large(plan)
    array = np.empty(1, np.object_)
    array[0] = text
    return array


def too_large(plan: Pipeline) -> InferenceFailed:
    """The error of results that take too much memory."""
    return InferenceFailed(
        f"the results of its steps hold more than {plan.max_result_bytes} bytes (max_result_bytes); send less at once"
    )


def _json(value: Any) -> bytes:
    try:
        return dump_json(value)
    except TypeError:
        pass  # it holds texts of tensors, most likely
    try:
        return dump_json(_readable(value))
    except TypeError as error:
        raise InferenceFailed(str(error)) from None
    except RecursionError:
        raise InferenceFailed("it is nested too deeply for JSON") from None


def _readable(value: Any) -> Any:
    """Tensors of texts as texts: JSON has no bytes."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return [_readable(each) for each in value.tolist()]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InferenceFailed("bytes that are not UTF-8 text have no JSON form") from None
    if isinstance(value, Mapping):
        return {name: _readable(each) for name, each in value.items()}
    return [_readable(each) for each in value] if isinstance(value, list | tuple) else value


def _shown(spec: TensorSpec) -> str:
    return f"{spec.datatype} {list(spec.shape) if spec.ranked else ''}".rstrip()


def _named(value: Any) -> str:
    if value is None:
        return "null"
    names = {bytes: "a file", str: "a text", dict: "an object", list: "a list", bool: "true or false"}
    return names.get(type(value), "a tensor" if isinstance(value, np.ndarray | OneTensor) else "a number")
