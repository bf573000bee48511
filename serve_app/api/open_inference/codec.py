"""The V2 codec: infer requests to tensors and tensors to infer responses, in JSON and with binary tensors.

One `ModelCodec` per model checks everything against the signature, so that no malformed data passes. Messages name the
field and the expectation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from serve_app.api.left_out import NULL, BodyDecoder, is_of_null
from serve_app.api.open_inference import non_finite, wire
from serve_app.api.open_inference.classification import check_classification
from serve_app.api.open_inference.raw import decode_raw
from serve_app.api.open_inference.tensors import (
    JsonData,
    count_of,
    datatype_of,
    decode_binary,
    dump_data,
    element_type,
    encode_binary,
    listed,
)
from serve_app.domain.service import ModelInfo
from serve_app.errors import InvalidRequest, Unsupported
from serve_app.payloads import DTYPES, TENSORS, Tensors, TensorSpec

Decoder: TypeAlias = msgspec.json.Decoder[wire.InferRequest[Any]]
"""Decodes the JSON of a request."""

Selection: TypeAlias = list[tuple[str, bool]]
"""Names of outputs in order, and whether each is sent as binary."""

_REQUEST: Final[Decoder] = msgspec.json.Decoder(wire.InferRequest[msgspec.Raw])
_WITH_NULLS: Final = BodyDecoder(wire.InferRequest[msgspec.Raw])
# JSON up to this size is decoded in one pass where it can be: that costs less than finding where its data ends. With
# more, data stays undecoded until it is known that there is room for the request.
_ONE_PASS_BYTES: Final = 8 * 1024
_ONE_PASS: Final[dict[type, Decoder]] = {
    element: msgspec.json.Decoder(wire.InferRequest[list[element]])  # type: ignore[valid-type] # known when it runs
    for element in (bool, int, float, str)
}
BINARY_ONLY: Final = frozenset({"BF16"})
"""Datatypes that the protocol gives no JSON form."""
_ANSWERS_REMEMBERED: Final = 256
_NO_PARAMETERS: Final = wire.RequestParameters()
_MAX_DIMENSION: Final = 2**31 - 1
_MAX_RANK: Final = 8
"""Of an input whose rank the model's file does not declare."""
_WHERE: Final = tuple(f"inputs[{index}]" for index in range(8))
_CHECKED: Final = frozenset({"BOOL", "BYTES"})
"""Datatypes whose binary form can be invalid."""
_MAX_DIGITS: Final = 18
_QUOTED_CHARS: Final = 64


_RAW_REQUEST: Final[wire.InferRequest[Any]] = wire.InferRequest([])
_RAW_PARAMETERS: Final = wire.RequestParameters(binary_data_output=True)


class Parsed(msgspec.Struct, frozen=True):
    """A request with parsed JSON and unchecked tensor data.

    Attributes:
        request: The JSON object. Tensor ``data`` is undecoded or, for all tensors, a flat list of elements.
        parameters: Possibly defaults.
        body: Complete; binary tensors are views of it.
        offset: Start of binary tensor data in ``body``.
        marked: Whether ``data`` comes from `serve_app.api.open_inference.non_finite.mark`.
    """

    request: wire.InferRequest[Any]
    parameters: wire.RequestParameters
    body: bytes | memoryview
    offset: int
    marked: bool = False


class Encoded(msgspec.Struct, frozen=True):
    """A response body, and the length of its JSON part if binary tensors follow."""

    body: bytes
    header_length: int | None


class InputPlan(NamedTuple):
    """The precomputed properties of an input.

    Attributes:
        inner: Its shape without rows; ``None`` if variable.
        json: Decodes its data; ``None`` if its datatype has no JSON form.
        axis: The row axis in requests.
        in_front: Whether its rows are dimension 0.
    """

    spec: TensorSpec
    inner: tuple[int, ...] | None
    json: JsonData | None
    rows: bool
    axis: int
    in_front: bool


def quoted(text: str) -> str:
    """A client's string for a message: escaped and shortened."""
    return repr(text if len(text) <= _QUOTED_CHARS else text[:_QUOTED_CHARS] + "...")


def parse(body: bytes | memoryview, header_length: bytes | None, one_pass: Decoder | None = None) -> Parsed:
    """Parse the JSON of an infer request without its tensor data, at about 1 us/KB.

    Args:
        body: Decompressed.
        header_length: The header Inference-Header-Content-Length, if any.
        one_pass: Decodes the data of small requests, too, if it is a flat list of expected elements.

    Raises:
        InvalidRequest: The JSON is malformed or has wrong types.
        Unsupported: It uses an unsupported extension.
    """
    size = len(body)
    if header_length is not None:
        size = _header_size(header_length, len(body))
        if size == 0:
            return Parsed(_RAW_REQUEST, _RAW_PARAMETERS, body, 0)
    text = body if size == len(body) else memoryview(body)[:size]
    request, marked = None, False
    if one_pass is not None and size <= _ONE_PASS_BYTES:
        try:  # noqa: SIM105 - suppress() costs half as much as the decoding
            request = one_pass.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass  # nested data, or a fault: the other decoder tells them apart
    if request is None:
        try:
            request = _REQUEST.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            request, marked = _read_again(bytes(text), error)
    parameters = request.parameters or _NO_PARAMETERS
    parameters.check()
    return Parsed(request, parameters, body, size, marked)


def _read_again(text: bytes, error: Exception) -> tuple[wire.InferRequest[msgspec.Raw], bool]:
    """Decode a body that may have null, or NaN and infinities as words. Returns whether it has such words.

    Raises:
        InvalidRequest: The body is otherwise invalid; raises ``error`` if it has no such words.
    """
    marked = non_finite.mark(text)
    if marked is None and not is_of_null(error):
        raise wire.invalid(error) from None
    try:
        return _WITH_NULLS.decode(text if marked is None else marked), marked is not None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as another:
        raise wire.invalid(another) from None


def json_size(body_size: int, header_length: bytes | None) -> int:
    """Bytes of JSON in a body, by its header; the whole body if the header is missing or invalid."""
    if header_length is None or not header_length.isdigit() or len(header_length) > _MAX_DIGITS:
        return body_size
    return min(body_size, int(header_length))


def _header_size(value: bytes, body_size: int) -> int:
    if not value.isdigit() or len(value) > _MAX_DIGITS:
        raise InvalidRequest("Inference-Header-Content-Length: expected a number of bytes")
    size = int(value)
    if size > body_size:
        raise InvalidRequest(f"Inference-Header-Content-Length: says {size} bytes, but the body has {body_size}")
    return size


class ModelCodec:
    """Decodes one model's requests and encodes its responses. Immutable; thread-safe.

    Attributes:
        walks: Whether decoding binary inputs takes time per element. Others are views.
        binary_only: Whether an output has no JSON form.
    """

    def __init__(self, info: ModelInfo) -> None:
        self.info = info
        signature = info.signature
        datatypes = {spec.datatype for spec in (*signature.inputs, *signature.optional)}
        self.walks = not datatypes.isdisjoint(_CHECKED)
        elements = {element_type(datatype) for datatype in datatypes}
        self._one_pass = _ONE_PASS[elements.pop()] if len(elements) == 1 else None
        named = {"model_name": info.name, "model_version": info.version}
        self._opening = orjson.dumps(named)[:-1]
        # By name, datatype and shape: how the description of an output begins. The same few again and again.
        self._described: dict[tuple[str, np.dtype[Any], tuple[int, ...]], bytes] = {}
        self._inputs = {spec.name: _plan(spec, rows=info.rows) for spec in signature.inputs}
        self._needed = tuple(self._inputs)
        self._inputs |= {spec.name: _plan(spec, rows=False) for spec in signature.optional}
        self._moved = tuple((plan.spec.name, plan.axis) for plan in self._inputs.values() if plan.axis)
        self._least, self._most = info.least_rows, info.max_request_rows
        # Of others, ONNX's operators may repeat rows or take them apart: such a request is run by itself.
        self._even = info.task != TENSORS or info.fixed_rows
        self._axes = {spec.name: spec.axis for spec in signature.outputs if spec.axis}
        self._outputs = {spec.name: spec for spec in info.signature.outputs}
        self.binary_only = not BINARY_ONLY.isdisjoint(spec.datatype for spec in info.signature.outputs)
        self._all_outputs = {binary: [(name, binary) for name in self._outputs] for binary in (False, True)}

    def parse(self, body: bytes | memoryview, header_length: bytes | None) -> Parsed:
        """`parse`, in one pass if possible."""
        return parse(body, header_length, self._one_pass)

    def decode(self, parsed: Parsed) -> Tensors:
        """Decode and check the inputs. Binary inputs are read-only views of the body.

        Raises:
            InvalidRequest: An input is missing, unknown or duplicate, or does not fit the signature or its own data.
        """
        if parsed.request is _RAW_REQUEST:
            return decode_raw(self.info, parsed.body)
        tensors: Tensors = {}
        offset = parsed.offset
        for index, tensor in enumerate(parsed.request.inputs):
            shape = tuple(tensor.shape)
            plan, where = self.check_input(index, tensor.name, tensor.datatype, shape, tensors)
            count = math.prod(shape)
            options, data = tensor.parameters, tensor.data
            if options is None or options.binary_data_size is None:
                if options is not None and options.shared_memory_region is not None:
                    raise Unsupported(f"{where}.parameters: shared memory is not supported here")
                if data is msgspec.UNSET:
                    raise InvalidRequest(f"{where}.data: missing (or send binary data with binary_data_size)")
                if plan.json is None:
                    raise _no_json_form(f"{where}.data: {plan.spec.datatype}", "binary_data_size")
                if isinstance(data, list):
                    tensors[tensor.name] = plan.json.take(data, shape, count, f"{where}.data")
                else:
                    tensors[tensor.name] = plan.json.decode(data, shape, count, f"{where}.data", parsed.marked)
                continue
            if data is not msgspec.UNSET and data != NULL:
                raise InvalidRequest(f"{where}: has both data and parameters.binary_data_size; send one")
            size = options.binary_data_size
            left = len(parsed.body) - offset
            if not 0 <= size <= left:
                raise InvalidRequest(
                    f"{where}.parameters.binary_data_size: {size} bytes, but {left} are left in the body"
                )
            tensors[tensor.name] = decode_binary(parsed.body, offset, size, tensor.datatype, shape, count, where)
            offset += size
        if len(tensors) != len(self._inputs) or self._moved:
            tensors = self.complete(tensors)
        if offset != len(parsed.body):
            raise InvalidRequest(
                f"the body has {len(parsed.body) - offset} bytes of binary data after the"
                f" {offset - parsed.offset} bytes that the inputs' binary_data_size declare"
            )
        return tensors

    def decode_values(self, values: Mapping[str, msgspec.Raw]) -> Tensors:
        """Decode and check inputs without shapes: each a JSON value, or a list, flat or nested.

        Args:
            values: By input; without unknown ones.

        Raises:
            InvalidRequest: An input is missing, has no JSON form, or does not fit the signature.
        """
        tensors: Tensors = {}
        for name, raw in values.items():
            plan = self._inputs[name]
            if plan.json is None:
                raise InvalidRequest(f"{name}: {plan.spec.datatype} has no JSON representation; send it to infer")
            text = listed(raw)
            count = count_of(text, plan.spec.datatype)
            shape = _shape_for(count, plan.spec)
            self._check_shape(name, shape, plan)
            if tensors and plan.rows and self._even:
                self._check_rows(name, shape, plan, tensors)
            tensors[name] = plan.json.decode(text, shape, count, name)
        return self.complete(tensors)

    def check_input(
        self, index: int, name: str, datatype: str, shape: tuple[int, ...], before: Tensors
    ) -> tuple[InputPlan, str]:
        """Check the description of one input before its data.

        Args:
            index: Its place in the request.
            before: The preceding inputs.

        Returns:
            The input's plan, and its path for messages.

        Raises:
            InvalidRequest: It is unknown or duplicate, or does not fit the signature or the other inputs' rows.
        """
        plan = self._inputs.get(name)
        if plan is None:
            raise InvalidRequest(
                f"inputs[{index}].name: model {self.info.name!r} has no input {quoted(name)};"
                f" it takes {_names(self._inputs)}"
            )
        where = _WHERE[index] if index < len(_WHERE) else f"inputs[{index}]"
        if name in before:
            raise InvalidRequest(f"{where}.name: input {name!r} is given twice")
        if datatype != plan.spec.datatype:
            raise self._wrong_datatype(where, datatype, plan.spec)
        # Most shapes are found to fit right here; a closer look would be a noticeable part of a small request.
        if shape[1:] != plan.inner or not shape or not plan.in_front or not self._least <= shape[0] <= self._most:
            self._check_shape(where, shape, plan)
        if before and plan.rows and self._even:
            self._check_rows(where, shape, plan, before)
        return plan, where

    def complete(self, tensors: Tensors) -> Tensors:
        """Check that no input is missing, and move rows to the front. Raises `InvalidRequest`."""
        # Every name is known by now and there once: none is missing where there are as many as the model knows.
        if len(tensors) != len(self._inputs) and not all(map(tensors.__contains__, self._needed)):
            missing = [name for name in self._needed if name not in tensors]
            raise InvalidRequest(
                f"inputs: {_names(missing)} missing; model {self.info.name!r} takes all of {_names(self._needed)}"
            )
        for name, axis in self._moved:
            if name in tensors:
                tensors[name] = np.moveaxis(tensors[name], axis, 0)
        return tensors

    def public(self, tensors: Tensors) -> Tensors:
        """Move the outputs' rows to the clients' axes."""
        if not self._axes:
            return tensors
        return {
            name: np.moveaxis(array, 0, axis) if (axis := self._axes.get(name, 0)) < array.ndim else array
            for name, array in tensors.items()
        }

    def select(self, parsed: Parsed) -> Selection:
        """`choose` for a request in JSON."""
        outputs, binary = parsed.request.outputs, parsed.parameters.binary_data_output
        if not outputs and not self.binary_only:
            return self._all_outputs[binary]
        return self.choose(outputs, binary=binary)

    def choose(self, outputs: Sequence[wire.RequestedOutput] | None, *, binary: bool) -> Selection:
        """Choose the outputs to send, in order, and whether each is binary.

        Args:
            outputs: The requested ones; empty means all.
            binary: The default for unspecified outputs.

        Raises:
            InvalidRequest: A requested output is unknown or duplicate.
            Unsupported: An output uses an unsupported extension.
        """
        default = binary
        if not outputs:
            if self.binary_only and not default:
                self._check_json_forms(self._all_outputs[False], {})
            return self._all_outputs[default]
        chosen: dict[str, bool] = {}
        for index, output in enumerate(outputs):
            where = f"outputs[{index}]"
            if output.name not in self._outputs:
                raise InvalidRequest(
                    f"{where}.name: model {self.info.name!r} has no output {quoted(output.name)};"
                    f" it gives {_names(self._outputs)}"
                )
            if output.name in chosen:
                raise InvalidRequest(f"{where}.name: output {output.name!r} is asked for twice")
            binary = default
            if output.parameters is not None:
                if output.parameters.classification:
                    check_classification(
                        self._outputs[output.name],
                        output.parameters.classification,
                        f"{where}.parameters.classification",
                    )
                if output.parameters.shared_memory_region is not None:
                    raise Unsupported(f"{where}.parameters: shared memory is not supported here")
                if output.parameters.binary_data is not None:
                    binary = output.parameters.binary_data
            chosen[output.name] = binary
        selection = list(chosen.items())
        if self.binary_only:
            self._check_json_forms(selection, self.classifications(outputs))
        return selection

    @staticmethod
    def classifications(outputs: Sequence[wire.RequestedOutput] | None) -> dict[str, int]:
        """Number of requested classes by output; see `classify`."""
        return {
            output.name: output.parameters.classification
            for output in outputs or ()
            if output.parameters is not None and output.parameters.classification
        }

    def _check_json_forms(self, selection: Selection, counts: Mapping[str, int]) -> None:
        for name, binary in selection:
            datatype = self._outputs[name].datatype
            if not binary and name not in counts and datatype in BINARY_ONLY:
                raise _no_json_form(f"output {name!r} is {datatype}, which", "binary_data, or binary_data_output")

    def encode(
        self,
        request_id: str | None,
        selection: Selection,
        tensors: Tensors,
        variant: str = "",
        more: Mapping[str, int | str] | None = None,
        words: bool = False,
    ) -> Encoded:
        """Encode a response. In JSON, NaN and infinities become null; a parameter counts the infinite ones.

        Args:
            request_id: To be echoed.
            selection: From `select`.
            tensors: The model's outputs.
            variant: Of the answer; empty for the exact model, which is not mentioned.
            more: Further parameters of the response, e.g. requested timings.
            words: Write NaN and infinities as Triton's words, which is no valid JSON.

        Raises:
            InvalidRequest: An output has no JSON form.
        """
        parts: list[bytes | memoryview] = [self._opening]
        if request_id:
            parts += (b',"id":', orjson.dumps(request_id))
        if variant or more:
            told = {"variant": variant} if variant else {}
            parts += (b',"parameters":', orjson.dumps({**told, **(more or {})}))
        tensors = self.public(tensors) if self._axes else tensors
        blobs: list[bytes | memoryview] = []
        separator = b',"outputs":['
        for name, binary in selection:
            array = tensors[name]
            described = self._described.get((name, array.dtype, array.shape)) or self._describe(name, array)
            parts += (separator, described)
            separator = b","
            if binary:
                blob = encode_binary(array)
                blobs.append(blob)
                size = len(blob) if isinstance(blob, bytes) else blob.nbytes
                parts.append(b'"parameters":{"binary_data_size":%d}}' % size)
            else:
                data = dump_data(array, name)
                if b"null" in data and array.dtype.kind == "f":
                    if words:
                        data = non_finite.in_words(data, array)
                    elif infinite := int(np.isinf(array).sum()):
                        parts.append(b'"parameters":{"infinite":%d},' % infinite)
                parts += (b'"data":', data, b"}")
        parts.append(b"]}" if selection else b',"outputs":[]}')
        if not blobs:
            return Encoded(b"".join(parts), None)
        length = sum(map(len, parts))
        return Encoded(b"".join((*parts, *blobs)), length)

    def _describe(self, name: str, array: npt.NDArray[Any]) -> bytes:
        """The beginning of an output's description, up to the comma before its data."""
        if len(self._described) >= _ANSWERS_REMEMBERED:
            self._described.clear()
        output = {"name": name, "datatype": datatype_of(array), "shape": array.shape}
        described = self._described[name, array.dtype, array.shape] = orjson.dumps(output)[:-1] + b","
        return described

    def _check_shape(self, where: str, shape: tuple[int, ...], plan: InputPlan) -> None:
        spec, axis = plan.spec, plan.axis
        inner = (shape[:axis] + shape[axis + 1 :] if axis else shape[1:]) if plan.rows else shape
        if (plan.rows and len(shape) <= axis) or (inner != plan.inner and not _fits(inner, spec, rows=plan.rows)):
            sizes: list[object] = ["any" if size < 0 else size for size in spec.public_shape]
            if plan.rows:
                sizes[axis] = "rows"
            wanted = f"[{', '.join(map(str, sizes))}]" if spec.ranked else f"at most {_MAX_RANK} dimensions"
            got = list(shape) if len(shape) <= 2 * len(sizes) + 1 else f"{len(shape)} dimensions"
            raise InvalidRequest(f"{where}.shape: input {spec.name!r} has the shape {wanted}, got {_short(got)}")
        if not plan.rows:
            return
        if not self._least <= shape[axis] <= self._most:
            raise InvalidRequest(
                f"{where}.shape: expected {self._least} to {self._most} rows in dimension {axis},"
                f" got {_short(shape[axis])}"
            )

    def _check_rows(self, where: str, shape: tuple[int, ...], plan: InputPlan, before: Tensors) -> None:
        """Check that an input's rows match an earlier input's, unless they may differ. Raises `InvalidRequest`."""
        first = next((name for name in before if self._inputs[name].rows), None)
        if first is None:
            return
        rows, axis = before[first].shape[self._inputs[first].axis], plan.axis
        if shape[axis] != rows:
            index = list(before).index(first)
            raise InvalidRequest(
                f"{where}.shape: {shape[axis]} rows, but inputs[{index}] has {rows}; dimension {axis} is rows"
            )

    def _wrong_datatype(self, where: str, datatype: str, spec: TensorSpec) -> InvalidRequest:
        problem = f"got {quoted(datatype)}"
        if datatype not in DTYPES:
            problem += f", which is none of {', '.join(DTYPES)}"
        return InvalidRequest(f"{where}.datatype: input {spec.name!r} takes {spec.datatype}; {problem}")


def _no_json_form(what: str, parameters: str) -> InvalidRequest:
    return InvalidRequest(f"{what} has no JSON representation; use binary data: set parameters.{parameters}")


def _plan(spec: TensorSpec, *, rows: bool) -> InputPlan:
    inner = spec.shape[1:] if rows else spec.shape
    return InputPlan(
        spec,
        None if not spec.ranked or any(size < 0 for size in inner) else inner,
        None
        if spec.datatype in BINARY_ONLY
        else JsonData(spec.datatype, len(spec.shape) if spec.ranked else _MAX_RANK),
        rows,
        spec.axis if rows else 0,
        rows and not spec.axis,
    )


def _shape_for(count: int, spec: TensorSpec) -> tuple[int, ...]:
    """The shape for this many elements, by Triton's rule: the last variable dimension takes the rest.

    Raises:
        InvalidRequest: They do not fill the fixed dimensions.
    """
    if not spec.ranked:
        return (count,)
    shape = spec.public_shape
    free = [axis for axis, size in enumerate(shape) if size < 0]
    fixed = math.prod(size for size in shape if size >= 0)
    left, odd = divmod(count, fixed) if fixed else (0, count)
    if odd or (not free and left != 1 and fixed):
        sizes = ", ".join("any" if size < 0 else str(size) for size in shape)
        raise InvalidRequest(f"{spec.name}: expected values that fill the shape [{sizes}], got {count}")
    return tuple((left if axis == free[-1] else 1) if size < 0 else size for axis, size in enumerate(shape))


def _fits(inner: tuple[int, ...], spec: TensorSpec, *, rows: bool) -> bool:
    """Whether sizes fit an input without its rows."""
    if not spec.ranked:
        return len(inner) <= _MAX_RANK and all(0 <= size <= _MAX_DIMENSION for size in inner)
    expected = spec.shape[1:] if rows else spec.shape
    return len(inner) == len(expected) and all(
        (0 <= size <= _MAX_DIMENSION) if wanted < 0 else size == wanted
        for size, wanted in zip(inner, expected, strict=True)
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _short(value: object) -> str:
    # Integers of more than 4,300 digits have no decimal form in Python, and one of 30 is unreadable.
    if isinstance(value, list):
        return f"[{', '.join(_short(item) for item in value)}]"
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a huge number"
    return str(value)
