"""The V2 codec's shortcuts do what the long ways do."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.extra.numpy as st_numpy
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.protocol_service import EVERY_DATATYPE, NumpyService, both, model
from serve_app.api.http_app import HttpSettings, create_app
from serve_app.api.open_inference.codec import ModelCodec, Parsed, json_size, parse
from serve_app.api.open_inference.tensors import JsonData
from serve_app.errors import ServeAppError
from serve_app.payloads import DTYPES, Tensors, TensorSpec

CODECS = {
    datatype: ModelCodec(
        model(
            "m",
            inputs=(TensorSpec("x", datatype, (-1, -1)),),
            outputs=(TensorSpec("y", datatype, (-1, -1)), TensorSpec('z"\n', datatype, (-1,))),
        )
    )
    for datatype in EVERY_DATATYPE
}
SCALARS = (
    st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0, 1, 255, 256, 65519.9, 65520.0, 3.4028235e38, 3.40282357e38, 1e39, True, None, "", "é"])
)
DATA = st.lists(SCALARS, max_size=5) | st.lists(st.lists(SCALARS, max_size=3), max_size=3) | st.none() | st.just("1")


def _outcome(codec: ModelCodec, parsed: Parsed | ServeAppError) -> Any:
    """What a request comes to, so that two can be compared to the bit."""
    if isinstance(parsed, ServeAppError):
        return parsed.code, parsed.message
    try:
        tensors = codec.decode(parsed)
    except ServeAppError as error:
        return error.code, error.message
    return [(name, x.dtype, x.shape, x.tolist() if x.dtype == object else x.tobytes()) for name, x in tensors.items()]


def _both_ways(datatype: str, body: bytes, header_length: bytes | None = None) -> tuple[Any, Any]:
    codec = CODECS[datatype]
    parsed: list[Parsed | ServeAppError] = []
    for way in (parse, codec.parse):
        try:
            parsed.append(way(body, header_length))
        except ServeAppError as error:
            parsed.append(error)
    return _outcome(codec, parsed[0]), _outcome(codec, parsed[1])


@given(
    datatype=st.sampled_from(EVERY_DATATYPE),
    shape=st.lists(st.integers(0, 3), max_size=3),
    data=DATA,
    more=st.sampled_from(({}, {"id": "7"}, {"parameters": {"priority": 1}}, {"parameters": {"sequence_id": 3}})),
)
def test_one_pass_over_the_json_finds_what_two_do(datatype: str, shape: list[int], data: Any, more: Any) -> None:
    """The same tensors, and the same messages for what is none."""
    tensor = {"name": "x", "shape": shape, "datatype": datatype, "data": data}
    two, one = _both_ways(datatype, json.dumps({"inputs": [tensor], **more}).encode())
    assert two == one


@given(datatype=st.sampled_from([name for name in EVERY_DATATYPE if name != "BYTES"]), data=st.data())
def test_whatever_fits_a_datatype_arrives_as_numpy_would_have_it(datatype: str, data: st.DataObject) -> None:
    """In one pass and in two."""
    dtype = DTYPES[datatype]
    elements = st_numpy.from_dtype(dtype, allow_nan=False, allow_infinity=False)
    x = data.draw(st_numpy.arrays(dtype, st.tuples(st.integers(1, 3), st.integers(1, 4)), elements=elements))
    tensor = {"name": "x", "shape": x.shape, "datatype": datatype, "data": x.ravel().tolist()}
    two, one = _both_ways(datatype, json.dumps({"inputs": [tensor]}).encode())
    assert two == one == [("x", dtype, x.shape, x.tobytes())]


@pytest.mark.parametrize("tensor", [{"data": []}, {"data": None}, {}, {"data": [1, 2]}, {"data": [[1, 2]]}])
@pytest.mark.parametrize("binary", [False, True])
def test_what_is_missing_or_too_much_is_told_alike(tensor: dict[str, Any], binary: bool) -> None:
    """Data, binary data, both, or none of them."""
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", **tensor}
    if binary:
        tensor["parameters"] = {"binary_data_size": 8}
    head = json.dumps({"inputs": [tensor]}).encode()
    two, one = _both_ways("FP32", head + bytes(8) * binary, b"%d" % len(head) if binary else None)
    assert two == one


def test_the_end_of_the_one_pass_is_not_seen() -> None:
    """Requests of about the size up to which there is one pass."""
    for values in range(1020, 1030):
        x = [[0.25] * values]
        tensor = {"name": "x", "shape": [1, values], "datatype": "FP32", "data": x[0], "parameters": {"a": "b" * 3000}}
        two, one = _both_ways("FP32", json.dumps({"inputs": [tensor]}).encode())
        assert two == one == [("x", np.float32, (1, values), np.array(x, np.float32).tobytes())]


@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_flat_and_nested_data_become_the_same_tensor(values: list[float]) -> None:
    """What `struct` packs is what numpy makes of it."""
    nested, flat = (
        JsonData("FP32", 2).decode(_raw(data), (1, len(values)), len(values), "x") for data in ([values], values)
    )
    assert nested.tobytes() == flat.tobytes()


def _raw(data: Any) -> Any:
    return (
        parse(json.dumps({"inputs": [{"name": "", "shape": [], "datatype": "", "data": data}]}).encode(), None)
        .request.inputs[0]
        .data
    )


@given(
    datatype=st.sampled_from(EVERY_DATATYPE),
    data=st.data(),
    request_id=st.none() | st.text(max_size=4),
    variant=st.sampled_from(["", 'in"t8']),
    contiguous=st.booleans(),
)
def test_an_answer_is_what_orjson_makes_of_it(
    datatype: str, data: st.DataObject, request_id: str | None, variant: str, contiguous: bool
) -> None:
    """To the byte, in JSON and in binary. JSON has no infinities: how many of its nulls are some stands beside them."""
    codec, dtype = CODECS[datatype], DTYPES[datatype]
    shape = data.draw(st.tuples(st.integers(0, 3), st.integers(1, 3)))
    y = np.zeros(shape, object) if datatype == "BYTES" else data.draw(st_numpy.arrays(dtype, shape))
    if datatype == "BYTES":
        y.reshape(-1)[:] = [b"a", b"", "é".encode(), b'"', b"\n", b"b", b"c", b"d", b"e"][: y.size]
    tensors: Tensors = {"y": y if contiguous else np.asfortranarray(y), 'z"\n': y[:, 0]}
    selection = data.draw(st.lists(st.tuples(st.sampled_from(list(tensors)), st.booleans()), unique_by=lambda s: s[0]))

    encoded = codec.encode(request_id, selection, tensors, variant)

    outputs, tail = [], b""
    for name, binary in selection:
        array = tensors[name]
        output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": array.shape}
        if binary:
            blob = array.tobytes() if dtype.kind != "O" else b"".join(_counted(item) for item in array.ravel().tolist())
            output["parameters"] = {"binary_data_size": len(blob)}
            tail += blob
        else:
            flat = np.ascontiguousarray(array).ravel()
            if dtype.kind == "f" and (infinite := int(np.isinf(flat).sum())):
                output["parameters"] = {"infinite": infinite}
            output["data"] = [item.decode() for item in flat.tolist()] if dtype.kind == "O" else flat
        outputs.append(output)
    expected = {"model_name": "m", "model_version": "1"}
    expected |= {"id": request_id} if request_id else {}
    expected |= {"parameters": {"variant": variant}} if variant else {}  # type: ignore[dict-item]
    head = orjson.dumps({**expected, "outputs": outputs}, option=orjson.OPT_SERIALIZE_NUMPY)
    assert head + tail == encoded.body
    assert (len(head) if any(binary for _, binary in selection) else None) == encoded.header_length


def _counted(item: bytes) -> bytes:
    return len(item).to_bytes(4, "little") + item


@pytest.mark.parametrize("padding", range(8))
def test_binary_data_may_begin_anywhere(padding: int) -> None:
    """Tensors are views of the body, on whatever address their data happens to be."""
    x = np.arange(6, dtype=np.float64).reshape(2, 3)
    tensor = {"name": "x", "shape": x.shape, "datatype": "FP64", "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [tensor]}).encode() + b" " * padding
    body = head + x.tobytes()
    decoded = CODECS["FP64"].decode(CODECS["FP64"].parse(body, b"%d" % len(head)))["x"]
    assert np.shares_memory(decoded, np.frombuffer(body, np.uint8))
    assert x.tolist() == decoded.tolist()


@pytest.mark.parametrize(
    ("header", "size"), [(None, 9), (b"4", 4), (b"10", 9), (b"0", 0), (b"", 9), (b"-1", 9), (b"x", 9), (b"1" * 19, 9)]
)
def test_how_much_of_a_body_is_json(header: bytes | None, size: int) -> None:
    """As the header says, if that makes sense; what does not is refused later."""
    assert json_size(9, header) == size


@pytest.mark.parametrize("size", [1, 3_000, 200_000])
async def test_large_binary_bodies_are_answered_as_small_ones(size: int) -> None:
    """With a small limit of what is converted in the event loop."""
    app = create_app(*both(NumpyService()), HttpSettings(offload_above=1000))
    x = np.arange(size, dtype=np.float32)[None]
    tensor = {"name": "x", "shape": x.shape, "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": head + x.tobytes()}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"inference-header-content-length", b"%d" % len(head))]
    scope = {"type": "http", "method": "POST", "path": "/v2/models/wide/infer", "headers": headers}
    await app(scope, receive, send)
    start, body = sent
    length = int(dict(start["headers"])[b"inference-header-content-length"])
    assert start["status"] == 200
    assert (x * 2).tobytes() == body["body"][length:]
