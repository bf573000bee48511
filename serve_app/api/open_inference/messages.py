"""The V2 codec for gRPC: infer requests to tensors and tensors to infer responses.

The `ModelCodec` of HTTP checks inputs and outputs. Answers are assembled from bytes: the outputs' descriptions repeat,
and only tensors' lengths vary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.api.open_inference import wire
from serve_app.api.open_inference.codec import InputPlan, ModelCodec, Selection
from serve_app.api.open_inference.tensors import datatype_of, decode_binary, encode_binary
from serve_app.domain.service import ModelInfo
from serve_app.errors import InvalidRequest, Unsupported
from serve_app.payloads import DTYPES, Tensors

_Parameters = Mapping[str, pb.InferParameter]
_Value = bool | int | float | str

_CONTENTS: Final[Mapping[str, str]] = MappingProxyType(
    {"BOOL": "bool_contents", "BYTES": "bytes_contents", "FP32": "fp32_contents", "FP64": "fp64_contents"}
    | dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents")
    | dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents")
    | {"INT64": "int64_contents", "UINT64": "uint64_contents"}
)
"""The field of `InferTensorContents` for each datatype that has one."""
_NUMBERS: Final[Mapping[str, np.dtype[Any]]] = MappingProxyType(
    {"int_contents": np.dtype(np.int32), "uint_contents": np.dtype(np.uint32)}
)
"""What the fields hold that several datatypes share."""
_LIMITS: Final = MappingProxyType(
    {datatype: np.iinfo(DTYPES[datatype]) for datatype in ("INT8", "INT16", "UINT8", "UINT16")}
)
"""Of the datatypes that are narrower than their field."""
_KINDS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = MappingProxyType(
    {
        "priority": ((int,), "int64_param or uint64_param"),
        "timeout": ((int,), "int64_param or uint64_param"),
        "variant": ((str,), "string_param"),
        "fallback": ((bool,), "bool_param"),
        "binary_data_output": ((bool,), "bool_param"),
        "timings": ((bool,), "bool_param"),
        "sequence_id": ((int, str), "int64_param, uint64_param or string_param"),
        "stream_timeout": ((int,), "int64_param or uint64_param"),
        "triton_enable_empty_final_response": ((bool,), "bool_param"),
    }
)
"""Parameters of a request that mean something: what their values are in Python, and in the message."""
_RAW: Final = pb.ModelInferResponse.DESCRIPTOR.fields_by_name["raw_output_contents"].number << 3 | 2
_ID: Final = pb.ModelInferResponse.DESCRIPTOR.fields_by_name["id"].number << 3 | 2
_ANSWERS_REMEMBERED: Final = 256
_PIECE_ITEMS: Final = 16 * 1024
_NO_PARAMETERS: Final = wire.RequestParameters()


def delimited(field: int, nbytes: int) -> bytes:
    """A delimited field's beginning on the wire.

    Args:
        field: ``number << 3 | 2``, less than 128.
    """
    head = bytearray((field,))
    while nbytes > 0x7F:
        head.append(nbytes & 0x7F | 0x80)
        nbytes >>= 7
    head.append(nbytes)
    return bytes(head)


def request_parameters(parameters: _Parameters) -> wire.RequestParameters:
    """The parameters of a request; unknown ones are ignored, as the protocol requires.

    Raises:
        InvalidRequest: A parameter has the wrong type.
        Unsupported: A parameter belongs to an unsupported extension.
    """
    if not parameters:
        return _NO_PARAMETERS
    found: dict[str, Any] = {}
    for name in parameters.keys() & _KINDS.keys():
        kinds, wanted = _KINDS[name]
        value = _value(parameters[name])
        if value is None:
            continue
        if type(value) not in kinds:
            raise InvalidRequest(f"parameters.{name}: expected {wanted}")
        found[name] = value
    told = wire.RequestParameters(**found)
    told.check()
    return told


def _value(parameter: pb.InferParameter) -> _Value | None:
    choice = parameter.WhichOneof("parameter_choice")
    if choice is None:
        return None
    value: _Value = getattr(parameter, choice)
    return value


class MessageCodec:
    """Decodes one model's requests and encodes its responses. Thread-safe.

    Args:
        typed_answers: Whether requests with typed inputs get typed outputs unless they choose.

    Attributes:
        walks: Whether decoding raw inputs takes time per element. Others are views.
    """

    def __init__(self, info: ModelInfo, *, typed_answers: bool = False) -> None:
        self.info = info
        self._typed_answers = typed_answers
        self._codec = ModelCodec(info)
        self.walks = self._codec.walks
        # By name, dtype and shape of every output, and variant: everything of an answer but its id and its tensors.
        self._openings: dict[tuple[object, ...], bytes] = {}

    def decode(self, request: pb.ModelInferRequest) -> Tensors:
        """Decode and check the inputs. Raw inputs of numbers are read-only views.

        Raises:
            InvalidRequest: An input is missing, unknown or duplicate, or does not fit the signature or its own data.
            Unsupported: An input is in shared memory.
        """
        inputs, contents = request.inputs, request.raw_input_contents
        raw = len(contents)
        if raw and raw != len(inputs):
            raise InvalidRequest(f"raw_input_contents: {raw} of them, but {len(inputs)} inputs; send one for each")
        tensors: Tensors = {}
        codec = self._codec
        for index, tensor in enumerate(inputs):
            name, datatype, shape = tensor.name, tensor.datatype, tuple(tensor.shape)
            plan, where = codec.check_input(index, name, datatype, shape, tensors)
            if tensor.parameters and "shared_memory_region" in tensor.parameters:
                raise Unsupported(f"{where}.parameters: shared memory is not supported here")
            count = math.prod(shape)
            if not raw:
                tensors[name] = _typed(tensor.contents, plan, shape, count, where)
                continue
            if tensor.HasField("contents"):
                raise InvalidRequest(f"{where}.contents: there are raw_input_contents as well; send one of them")
            content = contents[index]
            where = f"raw_input_contents[{index}]"
            tensors[name] = decode_binary(content, 0, len(content), datatype, shape, count, where, "")
        return codec.complete(tensors)

    def select(self, request: pb.ModelInferRequest, parameters: wire.RequestParameters) -> Selection:
        """Choose the outputs, in order, and whether they are raw: by the request, or else the server's settings.

        Raises:
            InvalidRequest: A requested output is unknown or duplicate.
            Unsupported: An output uses an unsupported extension.
        """
        raw = bool(request.raw_input_contents) or not self._typed_answers
        if "binary_data_output" in request.parameters:
            raw = parameters.binary_data_output
        return self._codec.choose(_requested_outputs(request), binary=raw or self._codec.binary_only)

    def classifications(self, request: pb.ModelInferRequest) -> dict[str, int]:
        """Number of requested classes by output."""
        return self._codec.classifications(_requested_outputs(request)) if request.outputs else {}

    def encode(
        self,
        request_id: str,
        selection: Selection,
        tensors: Tensors,
        variant: str = "",
        more: Mapping[str, int | str] | None = None,
    ) -> bytes:
        """Encode a response: a serialized `ModelInferResponse`.

        Args:
            request_id: To be echoed.
            selection: From `select`. If one output is raw or has no typed form, all are raw.
            tensors: The model's outputs.
            variant: Of the answer; empty for the exact model, which is not mentioned.
            more: Further parameters of the response, e.g. requested timings.
        """
        tensors = self._codec.public(tensors)
        arrays = [(name, tensors[name]) for name, _ in selection]
        raw = any(binary for _, binary in selection) or any(datatype_of(array) not in _CONTENTS for _, array in arrays)
        # Messages that stand one behind the other are one message.
        told = b"" if more is None else _parameters(more)
        if not raw:
            return self._typed_answer(request_id, arrays, variant) + told
        parts: list[bytes | memoryview] = [self._opening(arrays, variant), told]
        if request_id:
            text = request_id.encode()
            parts += (delimited(_ID, len(text)), text)
        for _, array in arrays:
            blob = encode_binary(array)
            size = len(blob) if isinstance(blob, bytes) else blob.nbytes
            parts += (delimited(_RAW, size), blob)
        return b"".join(parts)

    def _opening(self, arrays: list[tuple[str, npt.NDArray[Any]]], variant: str) -> bytes:
        key = (variant, *((name, array.dtype, array.shape) for name, array in arrays))
        opening = self._openings.get(key)
        if opening is None:
            if len(self._openings) >= _ANSWERS_REMEMBERED:
                self._openings.clear()
            opening = self._openings[key] = self._described("", arrays, variant).SerializeToString()
        return opening

    def _described(
        self, request_id: str, arrays: list[tuple[str, npt.NDArray[Any]]], variant: str
    ) -> pb.ModelInferResponse:
        """A response without tensors."""
        response = pb.ModelInferResponse(model_name=self.info.name, model_version=self.info.version, id=request_id)
        if variant:
            response.parameters["variant"].string_param = variant
        for name, array in arrays:
            response.outputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        return response

    def _typed_answer(self, request_id: str, arrays: list[tuple[str, npt.NDArray[Any]]], variant: str) -> bytes:
        response = self._described(request_id, arrays, variant)
        for output, (_, array) in zip(response.outputs, arrays, strict=True):
            field, flat = getattr(output.contents, _CONTENTS[output.datatype]), array.reshape(-1)
            for start in range(0, flat.size, _PIECE_ITEMS):  # others get their turn in between
                elements: list[Any] = flat[start : start + _PIECE_ITEMS].tolist()
                if output.datatype == "BYTES":
                    elements = [item if isinstance(item, bytes) else str(item).encode() for item in elements]
                field.extend(elements)
        return response.SerializeToString()


def _parameters(values: Mapping[str, int | str]) -> bytes:
    """A serialized response with only these parameters."""
    parameters = {
        name: pb.InferParameter(string_param=value) if isinstance(value, str) else pb.InferParameter(int64_param=value)
        for name, value in values.items()
    }
    return pb.ModelInferResponse(parameters=parameters).SerializeToString()


def _requested_outputs(request: pb.ModelInferRequest) -> list[wire.RequestedOutput]:
    return [_requested(index, output) for index, output in enumerate(request.outputs)]


def _requested(index: int, output: pb.ModelInferRequest.InferRequestedOutputTensor) -> wire.RequestedOutput:
    if not output.parameters:
        return wire.RequestedOutput(output.name)
    classes = _value(output.parameters["classification"]) if "classification" in output.parameters else 0
    if type(classes) is not int:
        raise InvalidRequest(f"outputs[{index}].parameters.classification: expected int64_param")
    region = "" if "shared_memory_region" in output.parameters else None
    return wire.RequestedOutput(output.name, wire.OutputParameters(classification=classes, shared_memory_region=region))


def _typed(
    contents: pb.InferTensorContents, plan: InputPlan, shape: tuple[int, ...], count: int, where: str
) -> npt.NDArray[Any]:
    """The tensor from its typed field of a message."""
    datatype = plan.spec.datatype
    field = _CONTENTS.get(datatype)
    if field is None:
        raise InvalidRequest(f"{where}.contents: {datatype} has no field there; send it in raw_input_contents")
    others = [name.name for name, _ in contents.ListFields() if name.name != field]
    if others:
        raise InvalidRequest(f"{where}.contents: {datatype} belongs in {field}, not in {', '.join(others)}")
    elements = getattr(contents, field)
    if len(elements) != count:
        raise InvalidRequest(f"{where}.contents.{field}: {len(elements)} values, but shape {list(shape)} needs {count}")
    if datatype == "BYTES":
        array = np.empty(count, dtype=np.object_)
        array[:] = list(elements)
        return array.reshape(shape)
    dtype, limits = DTYPES[datatype], _LIMITS.get(datatype)
    # At once in C: as a list, a message of 32 MiB would keep the interpreter, and with it all requests, for a second.
    numbers = np.array(elements, dtype=_NUMBERS.get(field, dtype))
    if limits is not None and count and not (limits.min <= numbers.min() and numbers.max() <= limits.max):
        raise InvalidRequest(f"{where}.contents.{field}: a number does not fit {datatype}")
    return numbers.astype(dtype, copy=False).reshape(shape)
