"""Raw requests, BF16 and classification: the codec's part of them."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.http as triton

from api.protocol_service import BRAIN, DOUBLE, MIRROR, SCORES, TEXT, WIDE, model
from serve_app.api.open_inference.classification import top_classes
from serve_app.api.open_inference.codec import ModelCodec, Parsed, parse
from serve_app.errors import InvalidRequest
from serve_app.payloads import DTYPES, Tensors, TensorSpec

CODECS = {info.name: ModelCodec(info) for info in (DOUBLE, MIRROR, WIDE, SCORES, BRAIN, TEXT)}
BF16 = DTYPES["BF16"]


def _raw(model_name: str, body: bytes) -> Tensors:
    codec = CODECS[model_name]
    return codec.decode(codec.parse(body, b"0"))


@pytest.mark.parametrize(
    ("model_name", "body", "expected"),
    [
        ("double", np.arange(4, dtype="<f4"), [[0.0, 1.0, 2.0, 3.0]]),
        ("wide", np.arange(3, dtype="<f4"), [[0.0, 1.0, 2.0]]),
        ("brain", np.arange(2).astype(BF16), [[0.0, 1.0]]),
        ("text", np.frombuffer(b"\x01\0\0\0a", np.uint8), [[b"\x01\0\0\0a"]]),
        ("text", np.empty(0, np.uint8), [[b""]]),
    ],
)
def test_a_raw_request_is_one_row(model_name: str, body: npt.NDArray[Any], expected: list[Any]) -> None:
    """Its shape follows from the number of bytes; of BYTES the body is the element itself."""
    tensors = _raw(model_name, body.tobytes())

    assert tensors["x"].tolist() == expected


def test_raw_requests_are_answered_in_binary() -> None:
    """As Triton answers them: nobody asked for anything else."""
    codec = CODECS["double"]

    assert codec.select(codec.parse(bytes(16), b"0")) == [("y", True)]


@pytest.mark.parametrize(
    ("model_name", "size", "message"),
    [
        ("double", 12, "the body has 12 bytes, but a row of input 'x' (FP32, [4]) has 16"),
        ("double", 32, "the body has 32 bytes, but a row of input 'x' (FP32, [4]) has 16"),
        ("double", 0, "the body has 0 bytes, but a row of input 'x' (FP32, [4]) has 16"),
        ("wide", 6, "the body has 6 bytes, but a row of input 'x' (FP32, [-1]) has 4 or a multiple of it"),
        ("wide", 0, "the body has 0 bytes"),
        ("mirror", 8, "sends the only input of a model, but 'mirror' takes 'in_BOOL', 'in_INT8'"),
    ],
)
def test_raw_requests_that_fit_no_row_are_refused(model_name: str, size: int, message: str) -> None:
    """The message says both numbers."""
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        _raw(model_name, bytes(size))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TensorSpec("x", "FP32", (-1, -1, -1)), "2 dimensions of a row of input 'x' may vary ([-1, -1])"),
        (TensorSpec("x", "BYTES", (-1, 2)), "sends one element, but a row of input 'x' has the shape [2]"),
    ],
)
def test_raw_requests_of_unknown_shape_are_refused(spec: TensorSpec, message: str) -> None:
    """Models whose rows the size does not tell take a JSON header."""
    codec = ModelCodec(model("m", inputs=(spec,), outputs=(spec,)))

    with pytest.raises(InvalidRequest, match=re.escape(message)):
        codec.decode(codec.parse(bytes(8), b"0"))


def test_a_raw_bool_is_checked() -> None:
    """As in every other binary request."""
    spec = TensorSpec("x", "BOOL", (-1, 2))
    codec = ModelCodec(model("m", inputs=(spec,), outputs=(spec,)))

    with pytest.raises(InvalidRequest, match="BOOL bytes must be 0 or 1"):
        codec.decode(codec.parse(b"\x01\x02", b"0"))


def test_bf16_travels_as_binary() -> None:
    """Bit by bit, both ways, with NVIDIA's client: it takes FP32 and sends the upper halves."""
    x = np.array([[1.5, -2.0, np.inf], [3.0, 0.0, np.nan]], np.float32)
    tensor = triton.InferInput("x", x.shape, "BF16")
    tensor.set_data_from_numpy(x)
    body, json_size = triton.InferenceServerClient.generate_request_body([tensor])
    codec = CODECS["brain"]

    parsed = codec.parse(body, b"%d" % json_size)
    tensors = codec.decode(parsed)
    encoded = codec.encode(None, codec.select(parsed), {"y": tensors["x"]})
    result = triton.InferenceServerClient.parse_response_body(encoded.body, header_length=encoded.header_length)

    assert tensors["x"].dtype == BF16
    assert np.array_equal(x, tensors["x"].astype(np.float32), equal_nan=True)
    assert np.array_equal(x, result.as_numpy("y"), equal_nan=True)


def test_strided_bf16_is_encoded_in_order() -> None:
    """Outputs need not lie in one piece."""
    y = np.arange(6, dtype=np.float32).reshape(2, 3).astype(BF16)

    encoded = CODECS["brain"].encode(None, [("y", True)], {"y": y.T})

    assert bytes(encoded.body).endswith(np.ascontiguousarray(y.T).tobytes())


def _parse(request: dict[str, Any]) -> Parsed:
    return parse(json.dumps(request).encode(), None)


def test_bf16_has_no_json_form() -> None:
    """The protocol gives it none; the message says what to do instead."""
    tensor = {"name": "x", "shape": [1, 2], "datatype": "BF16", "data": [1, 2]}
    codec = CODECS["brain"]

    with pytest.raises(InvalidRequest, match=re.escape("inputs[0].data: BF16 has no JSON representation")):
        codec.decode(_parse({"inputs": [tensor]}))
    for outputs in ({}, {"outputs": [{"name": "y"}]}):
        with pytest.raises(InvalidRequest, match=re.escape("output 'y' is BF16, which has no JSON representation")):
            codec.select(_parse({"inputs": [], **outputs}))
    # What becomes text has one.
    classes = {"inputs": [], "outputs": [{"name": "y", "parameters": {"classification": 1}}]}
    assert codec.select(_parse(classes)) == [("y", False)]


@pytest.mark.parametrize(
    ("array", "count", "labels", "expected"),
    [
        (np.array([[1, 5, 10, 4]]), 2, (), [["10:2", "5:1"]]),
        (np.array([[1, 5, 10]]), 2, ("a", "b", "c"), [["10:2:c", "5:1:b"]]),
        (np.array([[1.1, 3], [2, 1]], "f4"), 9, (), [["3.000000:1", "1.100000:0"], ["2.000000:0", "1.000000:1"]]),
        (np.array([[1.0, 2.0]]), 1, ("a", "b", "c"), [["2.000000:1:b"]]),
        (np.array([[1.0, 2.0, 3.0]]), 3, ("a", "b"), [["3.000000:2", "2.000000:1:b", "1.000000:0:a"]]),
        (np.array([[1.0, 2.0]]), 2, ("a", ""), [["2.000000:1", "1.000000:0:a"]]),
        (np.array([[2, 2, 1]], np.uint8), 3, (), [["2:0", "2:1", "1:2"]]),
        (np.array([[-128, 127]], np.int8), 2, (), [["127:1", "-128:0"]]),
        (np.array([[np.nan, -1.0, np.inf]]), 3, (), [["inf:2", "-1.000000:1", "nan:0"]]),
        (np.array([[[1, 2], [4, 3]]]), 2, (), [["4:2", "3:3"]]),
        (np.array([7, 8]), 1, (), [["7:0"], ["8:0"]]),
        (np.array([[1.0, 2.0]]).astype(BF16), 1, (), [["2.000000:1"]]),
    ],
)  # fmt: skip
def test_classes_are_the_highest_values_of_each_row(
    array: npt.NDArray[Any], count: int, labels: tuple[str, ...], expected: list[list[str]]
) -> None:
    """In Triton's words, with the label of its index where a value has one."""
    texts = top_classes(array, count, labels)

    assert [[text.decode() for text in row] for row in texts] == expected


@pytest.mark.parametrize(
    ("output", "count", "message"),
    [
        ("out_BYTES", 1, "output 'out_BYTES' is BYTES, which has no highest values"),
        ("out_BOOL", 1, "output 'out_BOOL' is BOOL, which has no highest values"),
        ("out_FP32", -1, "expected the number of classes, 1 or more"),
    ],
)
def test_what_has_no_classes_is_refused(output: str, count: int, message: str) -> None:
    """Before the model runs."""
    request = {"inputs": [], "outputs": [{"name": output, "parameters": {"classification": count}}]}

    with pytest.raises(InvalidRequest, match=re.escape(f"outputs[0].parameters.classification: {message}")):
        CODECS["mirror"].select(_parse(request))
