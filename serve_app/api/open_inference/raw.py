"""Raw requests: the body is a model's only input, of one row if it has rows; its size determines the shape.

Triton's rules: a row's shape may have one variable dimension, and a BYTES body is one element. The answer is binary.
"""

from __future__ import annotations

import math

import numpy as np

from serve_app.api.open_inference.tensors import decode_binary
from serve_app.domain.service import ModelInfo
from serve_app.errors import InvalidRequest
from serve_app.payloads import DTYPES, Tensors

_WHERE = "Inference-Header-Content-Length: 0"


def decode_raw(info: ModelInfo, body: bytes | memoryview) -> Tensors:
    """Decode the body of a raw request. Numbers are a read-only view of it.

    Raises:
        InvalidRequest: The model has several inputs, or the shape is ambiguous or does not match the bytes.
    """
    inputs = info.signature.inputs
    if len(inputs) != 1:
        names = ", ".join(repr(spec.name) for spec in inputs) or "none"
        raise InvalidRequest(
            f"{_WHERE} sends the only input of a model, but {info.name!r} takes {names}; send the JSON header"
        )
    name, datatype = inputs[0].name, inputs[0].datatype
    batch, inner = ((1,), list(inputs[0].shape[1:])) if info.rows else ((), list(inputs[0].shape))
    what = "a row of input" if info.rows else "input"
    if not inputs[0].ranked:
        raise InvalidRequest(
            f"{_WHERE}: the model does not declare the rank of input {name!r}, so its shape cannot be derived from the"
            " body size; send the JSON header"
        )
    fixed = math.prod(size for size in inner if size >= 0)
    if datatype == "BYTES":
        if fixed != 1:
            raise InvalidRequest(
                f"{_WHERE} sends one element, but {what} {name!r} has the shape {inner}; send the JSON header"
            )
        element = np.empty((*batch, *(1 for _ in inner)), np.object_)
        element[...] = bytes(body)
        return {name: element}
    free = inner.count(-1)
    if free > 1:
        raise InvalidRequest(
            f"{_WHERE}: {free} dimensions of {what} {name!r} may vary ({inner}), so its shape cannot be deduced"
            " from the size of the body; send the JSON header"
        )
    row_bytes = fixed * DTYPES[datatype].itemsize
    varying, rest = divmod(len(body), row_bytes) if row_bytes else (1, len(body))
    if rest or varying < 1 or (varying > 1 and not free):
        raise InvalidRequest(
            f"{_WHERE}: the body has {len(body)} bytes, but {what} {name!r} ({datatype}, {inner}) has"
            f" {row_bytes}{' or a multiple of it' if free else ''}"
        )
    shape = (*batch, *(varying if size < 0 else size for size in inner))
    return {name: decode_binary(body, 0, len(body), datatype, shape, math.prod(shape), "the body")}
