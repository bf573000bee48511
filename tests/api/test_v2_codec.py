"""The V2 codec against NVIDIA's client library, and against everything that is not a request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import hypothesis.extra.numpy as st_numpy
import numpy as np
import numpy.typing as npt
import orjson
import pytest
import tritonclient.http as triton
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from api.protocol_service import BRAIN, DOUBLE, EVERY_DATATYPE, MIRROR, SCORES, TEXT, WIDE
from serve_app.api.open_inference.classification import classify
from serve_app.api.open_inference.codec import ModelCodec, Parsed, parse
from serve_app.api.open_inference.wire import RequestParameters
from serve_app.domain.service import ModelInfo
from serve_app.errors import InvalidRequest, Unsupported
from serve_app.payloads import DTYPES, ModelSignature, Tensors

CODECS = {info.name: ModelCodec(info) for info in (DOUBLE, MIRROR, WIDE, SCORES, BRAIN, TEXT)}


def _parse(body: bytes, json_size: int | None) -> Parsed:
    return parse(body, None if json_size is None else b"%d" % json_size)


def _same(expected: npt.NDArray[Any], actual: npt.NDArray[Any]) -> bool:
    # Binary data must survive to the bit: NaN is equal to itself here.
    if expected.dtype == np.object_:
        return expected.shape == actual.shape and bool((expected == actual).all())
    return (expected.shape, expected.dtype, expected.tobytes()) == (actual.shape, actual.dtype, actual.tobytes())


@st.composite
def arrays(draw: st.DrawFn, datatype: str, rows: int) -> npt.NDArray[Any]:
    """A tensor for the model `mirror`."""
    shape = (rows, draw(st.integers(1, 3)), 2)
    if datatype == "BYTES":
        array = np.empty(shape, dtype=np.object_)
        texts = st.text().map(str.encode)
        array.reshape(-1)[:] = draw(st.lists(texts, min_size=array.size, max_size=array.size))
        return array
    return draw(st_numpy.arrays(DTYPES[datatype], shape))


@given(data=st.data(), binary_in=st.booleans(), binary_out=st.booleans(), rows=st.integers(1, 4), key=st.text())
def test_tritonclient_round_trip(data: st.DataObject, binary_in: bool, binary_out: bool, rows: int, key: str) -> None:
    """What NVIDIA's client sends arrives unchanged, and it reads the same back, in JSON and in binary."""
    tensors: Tensors = {}
    inputs = []
    for datatype in EVERY_DATATYPE:
        array = data.draw(arrays(datatype, rows))
        if not binary_in and datatype in {"FP32", "FP64"}:  # JSON keeps no bits of what is not a number
            array = np.where(np.isnan(array), DTYPES[datatype].type("nan"), array)
        tensors[f"in_{datatype}"] = array
        tensor = triton.InferInput(f"in_{datatype}", array.shape, datatype)
        # The client refuses FP16 in JSON.
        tensor.set_data_from_numpy(array, binary_data=binary_in or datatype == "FP16")
        inputs.append(tensor)
    wanted = [triton.InferRequestedOutput(f"out_{name}", binary_data=binary_out) for name in EVERY_DATATYPE]
    body, json_size = triton.InferenceServerClient.generate_request_body(inputs, wanted, request_id=key)
    codec = CODECS["mirror"]

    parsed = _parse(body, json_size)
    decoded = codec.decode(parsed)

    assert list(tensors) == list(decoded)
    assert all(_same(tensors[name], decoded[name]) for name in tensors)

    outputs = {f"out_{name.removeprefix('in_')}": array for name, array in decoded.items()}
    encoded = codec.encode(parsed.request.id, codec.select(parsed), outputs, words=parsed.marked)
    result = triton.InferenceServerClient.parse_response_body(encoded.body, header_length=encoded.header_length)

    assert (key or None) == result.get_response().get("id")
    for datatype in EVERY_DATATYPE:
        got = result.as_numpy(f"out_{datatype}")
        sent = outputs[f"out_{datatype}"]
        if not binary_out and datatype == "BYTES":
            got = np.vectorize(str.encode, otypes=[object])(got)
        if not binary_out and sent.dtype.kind == "f":
            if not parsed.marked:  # they come back as null, which the client reads as NaN
                sent = np.where(np.isfinite(sent), sent, np.nan).astype(sent.dtype)
            assert np.array_equal(sent, got, equal_nan=True)
            continue
        assert _same(sent, got)


def test_binary_output_is_the_clients_default() -> None:
    """Without requested outputs, NVIDIA's client asks for everything in binary."""
    tensor = triton.InferInput("x", [2, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((2, 4), np.float32))
    parsed = _parse(*triton.InferenceServerClient.generate_request_body([tensor]))

    assert CODECS["double"].select(parsed) == [("y", True)]


def test_priority_and_timeout_of_the_client() -> None:
    """They arrive as the body's parameters."""
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
    body, json_size = triton.InferenceServerClient.generate_request_body([tensor], priority=3, timeout=250_000)

    parameters = _parse(body, json_size).parameters

    assert (parameters.priority, parameters.timeout) == (3, 250_000)


def _request(**changes: Any) -> dict[str, Any]:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    return {"inputs": [{**tensor, **changes}]}


def _decode(request: dict[str, Any] | bytes, codec: str = "double", tail: bytes = b"") -> Tensors:
    head = request if isinstance(request, bytes) else json.dumps(request).encode()
    return CODECS[codec].decode(_parse(head + tail, len(head) if tail else None))


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2, 3, 4]], [1.0, 2.0, 3.0, 4.0]])
def test_data_may_be_flat_or_nested(data: list[Any]) -> None:
    """Both are the protocol's."""
    assert _decode(_request(data=data))["x"].tolist() == [[1.0, 2.0, 3.0, 4.0]]


def test_whitespace_in_json_is_nothing_special() -> None:
    """Pretty-printed requests decode as dense ones do."""
    request = json.dumps(_request(data=[[1, 2, 3, 4]]), indent=4).encode()

    assert _decode(request)["x"].tolist() == [[1.0, 2.0, 3.0, 4.0]]


def test_binary_inputs_are_views_of_the_body() -> None:
    """No copy is made of binary tensors."""
    request = _request(parameters={"binary_data_size": 16})
    del request["inputs"][0]["data"]
    head = json.dumps(request).encode()
    parsed = _parse(head + np.arange(4, dtype="<f4").tobytes(), len(head))

    array = CODECS["double"].decode(parsed)["x"]

    assert array.tolist() == [[0.0, 1.0, 2.0, 3.0]]
    assert np.shares_memory(array, np.frombuffer(parsed.body, np.uint8))


def test_binary_nan_and_infinity_pass_through() -> None:
    """They are values; what they mean is the model's business."""
    sent = np.array([[np.nan, np.inf, -np.inf, 0.0]], np.float32)
    request = _request(parameters={"binary_data_size": 16})
    del request["inputs"][0]["data"]

    assert _decode(request, tail=sent.tobytes())["x"].tobytes() == sent.tobytes()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("indent", [None, 1])
def test_long_json_is_decoded_in_pieces(nested: bool, indent: int | None) -> None:
    """The result is that of one piece."""
    array = np.random.default_rng(7).normal(size=(8, 5000)).astype(np.float32)
    request = _request(shape=[8, 5000], data=array.tolist() if nested else array.reshape(-1).tolist())

    decoded = _decode(json.dumps(request, indent=indent).encode(), "wide")["x"]

    assert _same(array, decoded)


_OPEN = [1.0, float("nan"), float("inf"), float("-inf")]


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("times", [1, 3_000])
def test_words_and_null_are_numbers_in_the_data_of_floats(datatype: str, nested: bool, times: int) -> None:
    """NaN and infinities as Triton's client writes them, and null as answers have it for NaN; in long data, too."""
    expected = np.array(_OPEN * times, DTYPES[datatype]).reshape(1, -1, 2)
    codec = ModelCodec(MIRROR._replace(signature=_only(datatype)))
    for value in (float("nan"), None):
        data: list[Any] = [1.0, value, *_OPEN[2:]] * times if value is not None else [1.0, None] * times
        array = expected if value is not None else np.array(data, DTYPES[datatype]).reshape(1, -1, 2)
        sent = np.array(data, object).reshape(array.shape).tolist() if nested else data
        tensor = {"name": f"in_{datatype}", "shape": array.shape, "datatype": datatype, "data": sent}
        parsed = codec.parse(json.dumps({"id": 'a NaN " Infinity', "inputs": [tensor]}).encode(), None)

        assert np.array_equal(codec.decode(parsed)[f"in_{datatype}"], array, equal_nan=True)
        assert (parsed.marked, parsed.request.id) == (value is not None, 'a NaN " Infinity')


def _only(datatype: str) -> ModelSignature:
    inputs, outputs = MIRROR.signature[:2]
    return ModelSignature(
        tuple(spec for spec in inputs if spec.datatype == datatype),
        tuple(spec for spec in outputs if spec.datatype == datatype),
    )


@pytest.mark.parametrize(
    "word", ["NaN9", "-NaN", "1NaN", "NaNNaN", "+Infinity", "Infinity1", "--Infinity", "nan", "1e999", "9e999", "1e39"]
)
def test_other_words_are_no_numbers(word: str) -> None:
    """Beside one that is, too."""
    body = b'{"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, NaN, %b, 4]}]}'

    with pytest.raises(InvalidRequest):
        _decode(body % word.encode())


@pytest.mark.parametrize("size", [1, 20_000])
def test_answers_say_what_is_not_finite(size: int) -> None:
    """As null, with the number of infinite values; as words for who has sent some, or asks for them."""
    array = np.array([_OPEN * size], np.float32)
    codec = CODECS["double"]

    plain = json.loads(codec.encode(None, [("y", False)], {"y": array}).body)["outputs"][0]
    words = codec.encode(None, [("y", False)], {"y": array}, words=True).body

    assert plain["data"] == [1.0, None, None, None] * size
    assert plain["parameters"] == {"infinite": 2 * size}
    assert np.array_equal(json.loads(words)["outputs"][0]["data"], array[0], equal_nan=True)
    assert b"parameters" not in words
    finite = codec.encode(None, [("y", False)], {"y": np.array([[1.0, np.nan]], np.float32)}).body
    assert b"parameters" not in finite


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: data.append(1.0), "more values than the 40000"),
        (lambda data: data.pop(), "39999 values, but its shape needs 40000"),
        (lambda data: data.__setitem__(39_000, "a,b"), "is not a FP32 value"),
        (lambda data: data.__setitem__(39_000, [1.0]), "is not a FP32 value"),
        (lambda data: data.__setitem__(0, "a,b"), "is not a FP32 value"),
        (lambda data: data.__setitem__(20_000, 1e39), "a number is too large for FP32"),
        (lambda data: data.__setitem__(slice(2, None), []), "2 values, but"),
    ],
)
def test_long_json_is_checked_in_pieces(spoil: Callable[[list[Any]], None], message: str) -> None:
    """Faults in any piece are found."""
    data: list[Any] = [0.123456789] * 40_000
    spoil(data)

    with pytest.raises(InvalidRequest, match=message):
        _decode(_request(shape=[8, 5000], data=data), "wide")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([[0.123456789] * 5000] * 7, "7 lists, but its shape"),
        ([[0.123456789] * 5000] * 7 + [[0.123456789] * 4999], r"data\[7\]: .*4999 values|data\[7\]: .*"),
        ([[0.123456789] * 5000] * 7 + [3.0], r"inputs\[0\].data\[7\]"),
        ([[0.123456789] * 5000] * 7 + [[[0.1] * 5000]], r"inputs\[0\].data\[7\]"),
    ],
)
def test_long_nested_json_is_checked(data: list[Any], message: str) -> None:
    """Faults in any row are found, and the row is named."""
    with pytest.raises(InvalidRequest, match=message):
        _decode(_request(shape=[8, 5000], data=data), "wide")


REFUSED: list[tuple[dict[str, Any] | bytes, str]] = [
    (b"", "the body: not valid JSON: input data was truncated"),
    (b"null", "the body: expected object, got null"),
    (b"[]", "the body: expected object, got array"),
    (b"{}", "the body: object missing required field 'inputs'"),
    (b'{"inputs": [}', "the body: not valid JSON"),
    (b'{"inputs": []}', "inputs: 'x' missing"),
    (b'{"inputs": [3]}', "inputs[0]: expected object, got integer"),
    (b'{"inputs": [{"name": "\xff"}]}', "the body: text is not valid UTF-8"),
    (b'{"inputs": ' + b"[" * 100_000, "inputs[0]: expected object, got array"),
    (b'{"x": ' + b"[" * 100_000, "the body: JSON is nested too deeply"),
    (_request(name="z"), "inputs[0].name: model 'double' has no input 'z'; it takes 'x'"),
    (_request(name=3), "inputs[0].name: expected string, got integer"),
    (_request(datatype="FP64"), "inputs[0].datatype: input 'x' takes FP32; got 'FP64'"),
    (_request(datatype="BF16"), "inputs[0].datatype: input 'x' takes FP32; got 'BF16'"),
    (_request(datatype="float"), "inputs[0].datatype: input 'x' takes FP32; got 'float', which is none of BOOL, INT8"),
    (_request(shape=[4]), "inputs[0].shape: input 'x' has the shape [rows, 4], got [4]"),
    (_request(shape=[]), "inputs[0].shape: input 'x' has the shape [rows, 4], got []"),
    (_request(shape=[1, 4, 1]), "inputs[0].shape: input 'x' has the shape [rows, 4], got [1, 4, 1]"),
    (_request(shape=[1] * 99), "inputs[0].shape: input 'x' has the shape [rows, 4], got 99 dimensions"),
    (_request(shape=[1, 5]), "inputs[0].shape: input 'x' has the shape [rows, 4], got [1, 5]"),
    (_request(shape=[1, -4]), "inputs[0].shape: input 'x' has the shape [rows, 4], got [1, -4]"),
    (_request(shape=[1, 2**70]), "inputs[0].shape: input 'x' has the shape [rows, 4], got [1, a huge number]"),
    (_request(shape=[-1, 4]), "inputs[0].shape: expected 0 to 16 rows in dimension 0, got -1"),
    (_request(shape=[17, 4]), "inputs[0].shape: expected 0 to 16 rows in dimension 0, got 17"),
    (_request(shape=[2**70, 4]), "inputs[0].shape: expected 0 to 16 rows in dimension 0, got a huge number"),
    (_request(shape=[1.0, 4]), "inputs[0].shape[0]: expected integer, got number"),
    (_request(shape="1,4"), "inputs[0].shape: expected array, got string"),
    (_request(shape=[2, 4]), "inputs[0].data: 4 values, but shape [2, 4] needs 8"),
    (_request(data=[1, 2, 3]), "inputs[0].data: 3 values, but shape [1, 4] needs 4"),
    (_request(data=[[1, 2], [3, 4]]), "inputs[0].data: nested as [2, 2], but the shape says [1, 4]"),
    (_request(data=[[1, 2, 3], [4]]), "inputs[0].data: nested lists have unequal lengths"),
    (_request(data=[[[1, 2, 3, 4]]]), "inputs[0].data[0][0]: expected number, got array"),
    (_request(data=[1, 2, "3", 4]), "inputs[0].data[2]: expected number, got string"),
    (_request(data=[1, 2, True, 4]), "inputs[0].data[2]: expected number, got true or false"),
    (_request(data="1234"), "inputs[0].data: expected array, got string"),
    (_request(data=None), "inputs[0].data: expected array, got null"),
    (_request(data=[1, 2, 3, 1e39]), "inputs[0].data: a number is too large for FP32"),
    (_request(data=[1, 2, 3, "NaN"]), "inputs[0].data[3]: expected number, got string"),
    (_request(data=[None, 2, 3, 1e39]), "inputs[0].data: a number is too large for FP32"),
    (_request(data=[float("nan"), 2, 3, 1e39]), "inputs[0].data: a number is too large for FP32"),
    (_request(data=[float("nan"), 2, 3]), "inputs[0].data: 3 values, but shape [1, 4] needs 4"),
    (_request(data=[[None, 2], [3, 4]]), "inputs[0].data: nested as [2, 2], but the shape says [1, 4]"),
    (_request(data=[[None, 2, 3], [4]]), "inputs[0].data: nested lists have unequal lengths"),
    (_request(data=[float("nan"), True, 3, 4]), "inputs[0].data[1]: expected number or null, got true or false"),
    (_request(data=[float("nan"), {}, 3, 4]), "inputs[0].data[1]: expected number or null, got object"),
    (_request(shape=[1, float("nan")]), "inputs[0].shape[1]: number out of range"),
    ({**_request(), "parameters": {"priority": float("inf")}}, "parameters.priority: number out of range"),
    (b'{"inputs": NaN', "inputs: number out of range"),
    (b'{"a": NaN, "inputs": [', "the body: not valid JSON: input data was truncated"),
    (b'{"inputs": -NaN}', "inputs: number out of range"),
    (b'{"inputs": nan}', "the body: not valid JSON"),
    (b'{"a": [NaN, "' + b'\\"' * 1_000_000, "the body: not valid JSON"),
    (b'{"a": [9e99999999, NaN]}', "the body: not valid JSON: invalid character"),
    (json.dumps(_request()).encode().replace(b"4]}", b"1e999]}"), "inputs[0].data[3]: number out of range"),
    ({"inputs": _request()["inputs"] * 2}, "inputs[1].name: input 'x' is given twice"),
    (
        {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32"}]},
        "inputs[0].data: missing (or send binary data with binary_data_size)",
    ),
    (_request(parameters={"binary_data_size": 16}), "inputs[0]: has both data and parameters.binary_data_size"),
    (
        _request(parameters={"binary_data_size": "16"}),
        "inputs[0].parameters.binary_data_size: expected integer or null",
    ),
    ({**_request(), "parameters": {"priority": "high"}}, "parameters.priority: expected integer, got string"),
    ({**_request(), "parameters": {"timeout": 1.5}}, "parameters.timeout: expected integer, got number"),
    ({**_request(), "parameters": []}, "parameters: expected object or null, got array"),
    ({**_request(), "parameters": {"priority": "high", "timeout": None}}, "parameters.priority: expected integer"),
    ({**_request(), "id": 7}, "id: expected string or null, got integer"),
]


@pytest.mark.parametrize(("request_", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_malformed_requests_are_refused_by_field(request_: dict[str, Any] | bytes, message: str) -> None:
    """The message names the field and what was expected."""
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        _decode(request_)


@pytest.mark.parametrize(
    ("datatype", "value", "message"),
    [
        ("INT8", 128, "a number does not fit INT8"),
        ("UINT8", -1, "a number does not fit UINT8"),
        ("UINT64", 2**64, "a number does not fit UINT64"),
        ("INT64", 2**63, "a number does not fit INT64"),
        ("INT32", 1.5, "data[0]: expected integer, got number"),
        ("FP16", 65_520, "a number is too large for FP16"),
        ("BOOL", 1, "data[0]: expected true or false, got integer"),
        ("BYTES", 1, "data[0]: expected string, got integer"),
        ("BYTES", "\ud800", "not valid JSON"),
    ],
)
def test_values_that_do_not_fit_are_refused(datatype: str, value: Any, message: str) -> None:
    """Nothing wraps around, overflows or is converted silently."""
    request = {"inputs": [{"name": f"in_{datatype}", "shape": [1, 1, 2], "datatype": datatype, "data": [value, value]}]}

    with pytest.raises(InvalidRequest, match=re.escape(message)):
        _decode(request, "mirror")


def test_missing_inputs_are_all_named() -> None:
    """One message for all of them."""
    request = {"inputs": [{"name": "in_BOOL", "shape": [1, 1, 2], "datatype": "BOOL", "data": [True, False]}]}

    with pytest.raises(InvalidRequest, match=r"inputs: 'in_INT8', 'in_INT16'.* missing"):
        _decode(request, "mirror")


def test_inputs_must_agree_on_rows_where_they_are_filled_up() -> None:
    """A model whose file fixes the rows of a run is run in pieces of all inputs; others may take what differs."""
    inputs = [
        {"name": "in_BOOL", "shape": [3, 1, 2], "datatype": "BOOL", "data": [True, False] * 3},
        {"name": "in_INT8", "shape": [2, 1, 2], "datatype": "INT8", "data": [1, 2, 3, 4]},
    ]
    codec = ModelCodec(MIRROR._replace(fixed_rows=True))

    with pytest.raises(InvalidRequest, match=re.escape("inputs[1].shape: 2 rows, but inputs[0] has 3")):
        codec.decode(codec.parse(orjson.dumps({"inputs": inputs}), None))


def _binary(datatype: str, size: int, shape: tuple[int, ...] = (1, 1, 2)) -> dict[str, Any]:
    parameters = {"binary_data_size": size}
    return {"inputs": [{"name": f"in_{datatype}", "shape": shape, "datatype": datatype, "parameters": parameters}]}


@pytest.mark.parametrize(
    ("request_", "tail", "message"),
    [
        (_binary("FP32", 8), bytes(7), "binary_data_size: 8 bytes, but 7 are left in the body"),
        (_binary("FP32", 4), bytes(8), "binary_data_size: 4 bytes, but FP32 of shape [1, 1, 2] needs 8"),
        (_binary("FP32", -8), bytes(8), "binary_data_size: -8 bytes, but 8 are left in the body"),
        (_binary("FP32", 8, (1, 2**31 - 1, 2)), bytes(8), "needs 17179869176"),
        (_binary("FP32", 8, (1, 2**31, 2)), bytes(8), "has the shape [rows, any, 2], got [1, 2147483648, 2]"),
        (_binary("FP32", 8, (1, -1, 2)), bytes(8), "has the shape [rows, any, 2], got [1, -1, 2]"),
        (_binary("BYTES", 0, (1, -1, 2)), b"", "has the shape [rows, any, 2], got [1, -1, 2]"),
        (_binary("BOOL", 2), b"\x01\x02", "BOOL bytes must be 0 or 1"),
        (_binary("BYTES", 4), bytes(4), "4 bytes of BYTES data are too few for 2 elements"),
        (_binary("BYTES", 9), bytes(9), "1 bytes follow the last of 2 BYTES elements"),
        (_binary("BYTES", 9), b"\x05\0\0\0abcde", "the BYTES data ends before element 1 of 2"),
        (_binary("BYTES", 8), b"\0\0\0\0\x05\0\0\0", "element 1 says 5 bytes, only 0 follow"),
        (_binary("BYTES", 8), b"\xff\xff\xff\xff\0\0\0\0", "element 0 says 4294967295 bytes, only 4 follow"),
    ],
)
def test_binary_data_must_match(request_: dict[str, Any], tail: bytes, message: str) -> None:
    """Sizes are compared before anything is allocated; the message says both numbers."""
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        _decode(request_, "mirror", tail)


def test_unclaimed_binary_data_is_refused() -> None:
    """Bytes that belong to no input are a mistake somewhere."""
    with pytest.raises(InvalidRequest, match="the body has 5 bytes of binary data after the"):
        _decode(_request(), tail=bytes(5))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"-1", "expected a number"),
        (b"ten", "expected a number"),
        (b"9" * 30, "expected a number"),
        (b"100", "says 100 bytes, but the body has 2"),
    ],
)
def test_the_header_length_must_fit(header: bytes, message: str) -> None:
    """It says where the JSON ends."""
    with pytest.raises(InvalidRequest, match=f"Inference-Header-Content-Length: {message}"):
        parse(b"{}", header)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"parameters": {"sequence_id": 3}}, "parameters.sequence_id"),
        ({"parameters": {"sequence_id": "a"}}, "parameters.sequence_id"),
        ({"outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]}, "outputs[0].parameters"),
        (_request(parameters={"shared_memory_region": "r"}), "inputs[0].parameters"),
    ],
)
def test_extensions_that_are_not_served_are_refused(change: dict[str, Any], where: str) -> None:
    """Ignoring them would give an answer to another question."""
    codec = CODECS["double"]

    def all_of_it(body: bytes) -> None:
        parsed = parse(body, None)
        codec.decode(parsed)
        codec.select(parsed)

    with pytest.raises(Unsupported, match=re.escape(where)):
        all_of_it(json.dumps({**_request(), **change}).encode())


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([{"name": "z"}], "outputs[0].name: model 'double' has no output 'z'; it gives 'y'"),
        ([{"name": "y"}, {"name": "y"}], "outputs[1].name: output 'y' is asked for twice"),
    ],
)
def test_requested_outputs_must_exist(outputs: list[Any], message: str) -> None:
    """Each once."""
    parsed = parse(json.dumps({**_request(), "outputs": outputs}).encode(), None)

    with pytest.raises(InvalidRequest, match=re.escape(message)):
        CODECS["double"].select(parsed)


def test_null_is_left_out() -> None:
    """Of every optional field, and of nothing else."""
    names = [*asdict(RequestParameters()), "unknown"]
    nothing = dict.fromkeys(("binary_data", "classification", "shared_memory_region"))
    given = {
        "id": None,
        "inputs": [{**_request(parameters=dict.fromkeys(("binary_data_size", "shared_memory_region")))["inputs"][0]}],
        "outputs": [{"name": "y", "parameters": nothing}],
        "parameters": {**dict.fromkeys(names), "timeout": 7},
    }
    codec = CODECS["double"]
    parsed = codec.parse(json.dumps(given).encode(), None)

    assert codec.decode(parsed)["x"].shape == (1, 4)
    assert codec.select(parsed) == [("y", False)]
    assert asdict(parsed.parameters) == asdict(RequestParameters(timeout=7))
    assert (
        codec.parse(json.dumps({**given, "outputs": None, "parameters": None}).encode(), None).request.outputs is None
    )


def test_null_data_beside_binary_data_is_left_out() -> None:
    """As its size says where it is."""
    request = _binary("FP32", 8)
    request["inputs"][0] |= {"data": None}
    body = json.dumps(request).encode()
    codec = ModelCodec(MIRROR._replace(signature=_only("FP32")))

    tensors = codec.decode(codec.parse(body + bytes(8), b"%d" % len(body)))

    assert tensors["in_FP32"].tolist() == [[[0.0, 0.0]]]


def test_each_output_chooses_its_form() -> None:
    """Its own setting beats that of the request; the order is the request's."""
    outputs = [
        {"name": "out_FP32", "parameters": {"binary_data": False}},
        {"name": "out_BOOL", "parameters": {"binary_data": None}},
        {"name": "out_INT8"},
    ]
    request = {"inputs": [], "outputs": outputs, "parameters": {"binary_data_output": True}}

    selection = CODECS["mirror"].select(parse(json.dumps(request).encode(), None))

    assert selection == [("out_FP32", False), ("out_BOOL", True), ("out_INT8", True)]


def test_a_response_is_what_the_protocol_says() -> None:
    """Names, version, the echoed id, flat data."""
    y = np.array([[1, 2], [3, np.nan]], np.float32)

    encoded = CODECS["double"].encode("abc", [("y", False)], {"y": y.T})

    assert orjson.loads(encoded.body) == {
        "model_name": "double",
        "model_version": "1",
        "id": "abc",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [1.0, 3.0, 2.0, None]}],
    }
    assert encoded.header_length is None


def test_long_answers_are_encoded_in_pieces() -> None:
    """The result is that of one piece."""
    y = np.random.default_rng(7).normal(size=(3, 20_000)).astype(np.float32)

    response = orjson.loads(CODECS["double"].encode(None, [("y", False)], {"y": y}).body)

    assert response["outputs"][0]["data"] == orjson.loads(
        orjson.dumps(y.reshape(-1), option=orjson.OPT_SERIALIZE_NUMPY)
    )


def test_text_outputs_may_be_str_or_bytes() -> None:
    """Runtimes return strings as either; bytes that are no UTF-8 have no JSON form, but a binary one."""
    codec = CODECS["mirror"]
    texts = np.array(["é", b"\xc3\xa9"], dtype=object)
    other = np.array([b"\xff"], dtype=object)

    answer = orjson.loads(codec.encode(None, [("out_BYTES", False)], {"out_BYTES": texts}).body)
    binary = codec.encode(None, [("out_BYTES", True)], {"out_BYTES": other})

    assert answer["outputs"][0]["data"] == ["é", "é"]
    assert binary.body.endswith(b"\x01\0\0\0\xff")
    with pytest.raises(InvalidRequest, match="output 'out_BYTES' is not UTF-8 text"):
        codec.encode(None, [("out_BYTES", False)], {"out_BYTES": other})


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def _fields(info: ModelInfo) -> st.SearchStrategy[dict[str, Any]]:
    """Requests that are almost right: every field is right, of the wrong type, or missing."""
    sizes = st.lists(st.sampled_from([-1, 0, 1, 2, 4, 2**31, 2**63, 10**400]), max_size=4)
    tensor = st.fixed_dictionaries(
        {},
        optional={
            "name": st.sampled_from([spec.name for spec in info.signature.inputs]) | JSON_VALUES,
            "shape": st.just([1, 1, 2]) | st.just([1, 4]) | sizes | JSON_VALUES,
            "datatype": st.sampled_from([*EVERY_DATATYPE, "BF16"]) | JSON_VALUES,
            "data": st.just([1, 2, 3, 4]) | JSON_VALUES,
            "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(-5, 40) | JSON_VALUES}) | JSON_VALUES,
        },
    )
    output = st.fixed_dictionaries(
        {"name": st.sampled_from([spec.name for spec in info.signature.outputs]) | JSON_VALUES},
        optional={
            "parameters": st.fixed_dictionaries(
                {},
                optional={
                    "classification": st.sampled_from([-1, 0, 1, 3, 2**70]) | JSON_VALUES,
                    "binary_data": st.booleans() | JSON_VALUES,
                },
            )
        },
    )
    return st.fixed_dictionaries(
        {"inputs": st.lists(tensor, max_size=3) | JSON_VALUES},
        optional={
            "outputs": st.lists(output, max_size=3) | JSON_VALUES,
            "parameters": st.fixed_dictionaries({"binary_data_output": st.booleans(), "timings": st.booleans()})
            | JSON_VALUES,
            "id": JSON_VALUES,
        },
    )


def _feed(body: bytes, header_length: bytes | None, model: str) -> None:
    """All that a request goes through. Any other exception than these two is a bug."""
    codec = CODECS[model]
    try:
        parsed = parse(body, header_length)
        tensors = codec.decode(parsed)
        selection = codec.select(parsed)
        outputs = {spec.name: tensors[name] for spec, name in zip(codec.info.signature.outputs, tensors, strict=True)}
        counts = codec.classifications(parsed.request.outputs)
        classified = classify(outputs, counts, {name: codec.info.labels_of(name) for name in counts})
        codec.encode(parsed.request.id, selection, classified)
    except (InvalidRequest, Unsupported) as error:
        orjson.dumps(error.message)


@given(model=st.sampled_from(sorted(CODECS)), data=st.data(), tail=st.binary(max_size=40))
def test_almost_requests_are_answered_or_refused(model: str, data: st.DataObject, tail: bytes) -> None:
    """No combination of fields gets anything but an answer or a refusal."""
    head = json.dumps(data.draw(_fields(CODECS[model].info))).encode()

    _feed(head + tail, b"%d" % len(head) if tail else None, model)


@given(
    body=st.binary(max_size=200),
    header=st.none() | st.integers(-1, 200).map(lambda size: b"%d" % size),
    model=st.sampled_from(sorted(CODECS)),
)
def test_arbitrary_bytes_are_refused(body: bytes, header: bytes | None, model: str) -> None:
    """No sequence of bytes gets anything but a refusal, or an answer where it is a raw request."""
    _feed(body, header, model)


@given(position=st.integers(0, 300), byte=st.integers(0, 255))
def test_damaged_requests_are_answered_or_refused(position: int, byte: int) -> None:
    """One wrong byte anywhere."""
    body = bytearray(json.dumps(_request()).encode())
    body[position % len(body)] = byte

    _feed(bytes(body), None, "double")
