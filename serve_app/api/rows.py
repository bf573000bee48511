"""Rows as JSON lists: for APIs whose requests are a list with an element for each row of a model's one input."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from serve_app.api.open_inference.codec import ModelCodec
from serve_app.api.open_inference.tensors import datatype_of
from serve_app.api.replies import dump_json
from serve_app.domain.service import ModelInfo
from serve_app.errors import InvalidRequest
from serve_app.payloads import Tensors


class RowCodec:
    """Reads and writes the rows of a model with one input and one output, by the rules of V2's JSON.

    Raises `InvalidRequest` for a model of another signature.
    """

    def __init__(self, info: ModelInfo) -> None:
        inputs, outputs = info.signature.inputs, info.signature.outputs
        if len(inputs) != 1 or len(outputs) != 1:
            raise InvalidRequest(f"model {info.name!r} has not one input and one output; send it V2 requests")
        self._codec = ModelCodec(info)
        self._input, self._output = inputs[0], outputs[0]

    def decode(self, rows: msgspec.Raw, where: str) -> Tensors:
        """Decode a list of rows.

        Args:
            where: Path of the list, for messages.

        Raises:
            InvalidRequest: A number is none, or does not fit the datatype, or the rows do not fit the shape.
        """
        text = bytes(rows).lstrip()
        nested = text.startswith(b"[") and text[1:].lstrip().startswith(b"[")
        if self._input.ranked and nested != (len(self._input.shape) > 1):
            shape = ", ".join("any" if size < 0 else str(size) for size in self._input.public_shape)
            raise InvalidRequest(f"{where}: expected a list with an element for each row, as a whole [{shape}]")
        return self._codec.decode_values({self._input.name: msgspec.Raw(text)})

    def encode(self, tensors: Tensors) -> bytes:
        """The rows of the output as a JSON list; null for NaN and infinities.

        Raises:
            InvalidRequest: The output has no JSON form.
        """
        array = tensors[self._output.name]
        match datatype_of(array):
            case "BF16":
                raise InvalidRequest(f"output {self._output.name!r} is BF16, which has no JSON representation")
            case "BYTES":
                return dump_json(_texts(array, self._output.name))
        return dump_json(array)


class RowCodecs:
    """The codec of each model, made for its first request and again after a load."""

    def __init__(self) -> None:
        self._codecs: dict[str, tuple[ModelInfo, RowCodec]] = {}

    def of(self, info: ModelInfo) -> RowCodec:
        """The codec of a model. Raises `InvalidRequest` as `RowCodec` does."""
        key = info.key or info.name
        known = self._codecs.get(key)
        if known is None or known[0] is not info:
            known = self._codecs[key] = info, RowCodec(info)
        return known[1]


def _texts(array: npt.NDArray[Any], name: str) -> Any:
    try:
        flat = [item.decode() if isinstance(item, bytes) else str(item) for item in array.reshape(-1).tolist()]
    except UnicodeDecodeError:
        raise InvalidRequest(f"output {name!r} is not UTF-8 text") from None
    return np.array(flat, dtype=object).reshape(array.shape).tolist()
