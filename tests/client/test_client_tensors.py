"""The client's binary tensors against the server's codec, and against everything that is no answer."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.extra.numpy as st_numpy
import ml_dtypes
import numpy as np
import numpy.typing as npt
import orjson
import pytest
from api.protocol_service import EVERY_DATATYPE, MIRROR
from hypothesis import given
from hypothesis import strategies as st

from serve_app import payloads
from serve_app.api.open_inference.codec import ModelCodec
from serve_app_client.errors import InvalidAnswer
from serve_app_client.tensors import DTYPES, decode_answer, encode_request

CODEC = ModelCodec(MIRROR)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, npt.NDArray[Any]]:
    """One of every datatype for the model `mirror`, in any byte order and layout."""
    rows = draw(st.integers(1, 3))
    drawn = {}
    for datatype in EVERY_DATATYPE:
        shape = (rows, draw(st.integers(1, 3)), 2)
        if datatype == "BYTES":
            array = np.empty(shape, np.object_)
            array.reshape(-1)[:] = draw(st.lists(st.binary(), min_size=array.size, max_size=array.size))
        else:
            dtype = DTYPES[datatype].newbyteorder(draw(st.sampled_from("<>")))
            array = draw(st_numpy.arrays(dtype, shape))
        drawn[f"in_{datatype}"] = np.asfortranarray(array) if draw(st.booleans()) else array
    return drawn


@given(inputs=tensors())
def test_tensors_pass_through_the_servers_codec_unchanged(inputs: dict[str, npt.NDArray[Any]]) -> None:
    """What is encoded arrives at the server to the bit, and what the server encodes is read the same."""
    body, length = encode_request(inputs)
    parsed = CODEC.parse(body, b"%d" % length)
    arrived = CODEC.decode(parsed)
    answer = CODEC.encode(None, CODEC.select(parsed), {f"out_{name[3:]}": array for name, array in arrived.items()})
    _, outputs = decode_answer(answer.body, str(answer.header_length))
    assert len(outputs) == len(inputs)
    for name, sent in inputs.items():
        got = outputs[f"out_{name[3:]}"]
        if sent.dtype == np.object_:
            assert got.tolist() == sent.tolist()
        else:
            native = sent.astype(sent.dtype.newbyteorder("="))
            assert (got.dtype, got.shape, got.tobytes()) == (native.dtype, native.shape, native.tobytes())


def test_datatypes_are_those_of_the_server() -> None:
    """The client's own table says what the server's says. BF16 is not numpy's own."""
    assert dict(DTYPES) == {name: dtype for name, dtype in payloads.DTYPES.items() if name != "BF16"}


def test_texts_are_sent_as_bytes() -> None:
    """Lists of strings and arrays of fixed-width strings are BYTES in UTF-8."""
    body, length = encode_request({"a": ["ä", "b"], "b": np.array([b"xyz"])})
    head = orjson.loads(body[:length])
    assert [(item["datatype"], item["shape"]) for item in head["inputs"]] == [("BYTES", [2]), ("BYTES", [1])]
    assert body[length:] == b"\x02\0\0\0\xc3\xa4\x01\0\0\0b\x03\0\0\0xyz"


def test_bfloat16_survives() -> None:
    """BF16 goes out and comes back as ml_dtypes' bfloat16."""
    array = np.array([[1.5, -2.0]], ml_dtypes.bfloat16)
    body, length = encode_request({"x": array})
    described = {"name": "y", "datatype": "BF16", "shape": [1, 2], "parameters": {"binary_data_size": 4}}
    head = orjson.dumps({"outputs": [described]})
    assert orjson.loads(body[:length])["inputs"][0]["datatype"] == "BF16"
    _, outputs = decode_answer(head + body[length:], str(len(head)))
    assert outputs["y"].dtype == array.dtype
    assert outputs["y"].tobytes() == array.tobytes()


@pytest.mark.parametrize("texts", [[b"a\0\0", b""], ["a\0"], [[b"\0"], [b"b"]]])
def test_lists_of_texts_keep_their_last_nuls(texts: list[Any]) -> None:
    """Which numpy's own texts do not."""
    body, length = encode_request({"x": texts})
    _, outputs = decode_answer(body.replace(b'"inputs"', b'"outputs"'), str(length + 1))
    assert [item.decode() for item in outputs["x"].reshape(-1)] == [
        item.decode() if isinstance(item, bytes) else item for item in np.array(texts, np.object_).reshape(-1)
    ]


def test_lists_of_texts_and_numbers_are_refused() -> None:
    """The numbers would arrive as texts."""
    with pytest.raises(TypeError, match="must hold str or bytes, got int"):
        encode_request({"x": np.array(["a", 1], np.object_).tolist()})


@pytest.mark.parametrize(
    ("array", "message"),
    [
        pytest.param(np.zeros(1, np.complex64), "complex64", id="no-such-datatype"),
        pytest.param(np.array([1, None], np.object_), "str or bytes, got int", id="objects"),
    ],
)
def test_what_has_no_form_is_a_type_error(array: npt.NDArray[Any], message: str) -> None:
    """Nothing is sent in a form that means something else."""
    with pytest.raises(TypeError, match=message):
        encode_request({"x": array})


def test_json_outputs_are_read_too() -> None:
    """A server of the protocol without binary data answers in JSON."""
    body = orjson.dumps(
        {
            "outputs": [
                {"name": "n", "datatype": "INT8", "shape": [2, 1], "data": [1, 2]},
                {"name": "t", "datatype": "BYTES", "shape": [1, 2], "data": ["a", "ä"]},
            ]
        }
    )
    _, outputs = decode_answer(body, None)
    assert outputs["n"].tolist() == [[1], [2]]
    assert outputs["t"].tolist() == [[b"a", "ä".encode()]]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "datatype"]), inner),
    max_leaves=5,
)
_OUTPUT = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("y") | _JSON,
        "datatype": st.sampled_from([*EVERY_DATATYPE, "BF16", "FP1"]) | _JSON,
        "shape": st.lists(st.integers(-2, 4), max_size=3) | _JSON,
        "data": st.lists(st.integers() | st.text(max_size=3), max_size=5) | _JSON,
        "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(-1, 20) | _JSON}) | _JSON,
    },
)


_HEAD = st.fixed_dictionaries({"outputs": st.lists(_OUTPUT | _JSON, max_size=2) | _JSON})


@given(
    head=_HEAD.map(json.dumps).map(str.encode) | st.binary(),
    tail=st.binary(max_size=20),
    length=st.sampled_from(["right", "none"]) | st.integers(-5, 200).map(str) | st.text(max_size=3),
)
def test_nonsense_is_an_invalid_answer(head: bytes, tail: bytes, length: str) -> None:
    """Whatever stands in the body, reading it gives arrays or `InvalidAnswer`."""
    header = {"right": str(len(head)), "none": None}.get(length, length)
    try:
        _, outputs = decode_answer(head + tail, header)
    except InvalidAnswer:
        return
    assert all(isinstance(array, np.ndarray) for array in outputs.values())


def test_a_number_that_does_not_fit_is_no_answer() -> None:
    """As anything else that a server of this protocol does not send."""
    output = {"name": "y", "datatype": "INT8", "shape": [1], "data": [300]}
    with pytest.raises(InvalidAnswer, match="no V2 infer response"):
        decode_answer(orjson.dumps({"outputs": [output]}), None)
