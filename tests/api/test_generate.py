"""Triton's generate extension: flat requests and flat answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
import pytest

from api.conftest import LIMITS
from api.protocol_service import MODELS, NumpyService, model
from serve_app.api.open_inference.generate import GenerateCodec
from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer, ModelInfo
from serve_app.errors import InvalidRequest, QueueFull
from serve_app.payloads import TensorSpec

GENERATE = "/v2/models/double/generate"
STREAM = "/v2/models/double/generate_stream"
FOUR = {"x": [1, 2, 3, 4]}
ANSWER = {"model_name": "double", "model_version": "1", "y": [2.0, 4.0, 6.0, 8.0]}
PROMPT = model(
    "prompt",
    inputs=(TensorSpec("text", "BYTES", (-1, 1)), TensorSpec("most", "INT32", (-1, 1))),
    outputs=(TensorSpec("out", "BYTES", (-1, 1)), TensorSpec("n", "INT32", (-1, 2))),
)


def decoded(info: ModelInfo, body: Any) -> Mapping[str, Any]:
    """The tensors of a request."""
    codec = GenerateCodec(info)
    return codec.decode(codec.parse(body if isinstance(body, bytes) else json.dumps(body).encode()))


def one_input(shape: tuple[int, ...], datatype: str = "FP32", **more: Any) -> ModelInfo:
    """A model with the input ``x``."""
    return model("m", inputs=(TensorSpec("x", datatype, shape),), outputs=(), **more)


async def test_one_object_is_answered_with_one(client: httpx.AsyncClient, service: NumpyService) -> None:
    """The id comes back; what is neither an input nor a parameter is ignored, whatever it is."""
    reply = await client.post(GENERATE, json={**FOUR, "id": "a", "temperature": 0.5, "tools": [{}]})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-priority"] == "normal"
    assert reply.json() == {**ANSWER, "id": "a"}
    assert (await client.post("/v2/models/double/versions/1/generate", json=FOUR)).json() == ANSWER


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({"priority": 1, "timeout": 2_000_000, "stream_timeout": 9_000_000, "variant": "int8"}, ("high", "int8", True)),
        ({"parameters": {"priority": 3, "fallback": False}}, ("low", "", False)),
        ({"priority": 1, "parameters": {"fallback": False}}, ("high", "", False)),
        ({"priority": 1, "id": None, "parameters": None, "variant": None}, ("high", "", True)),
        ({"priority": None, "x": None, "parameters": {"priority": 3, "timings": None, **FOUR}}, ("low", "", True)),
    ],
)
@pytest.mark.parametrize("path", [GENERATE, STREAM])
async def test_parameters_stand_at_the_top_or_among_the_parameters(
    client: httpx.AsyncClient, service: NumpyService, path: str, body: dict[str, Any], options: tuple[str, str, bool]
) -> None:
    """They mean what they mean to infer."""
    assert (await client.post(path, json={**FOUR, **body})).status_code == 200
    ((_, _, asked),) = service.calls
    assert asked.priority is not None
    assert (asked.priority.label, asked.variant, asked.fallback) == options
    assert (asked.timeout_s is not None, asked.stream_timeout_s is not None) == ("timeout" in body, "timeout" in body)


async def test_null_is_nan_and_answers_may_have_words(client: httpx.AsyncClient) -> None:
    """As of infer."""
    asked = {"x": [1, None, 2, 3]}
    assert (await client.post(GENERATE, json=asked)).json()["y"] == [2.0, None, 4.0, 6.0]
    reply = await client.post(GENERATE, json={**asked, "non_finite": True})
    assert reply.text.endswith('"y":[2.0,NaN,4.0,6.0]}')


async def test_inputs_may_stand_among_the_parameters(client: httpx.AsyncClient) -> None:
    """As Triton takes them."""
    assert (await client.post(GENERATE, json={"parameters": FOUR})).json() == ANSWER


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[]", "expected object"),
        (b"{", "not valid JSON"),
        (b"", "not valid JSON"),
        (b'{"id": "\xff"}', "UTF-8"),
        ({}, "'x' missing"),
        ({"x": [1, 2, 3]}, "x: expected values that fill the shape [any, 4], got 3"),
        ({"x": []}, None),
        ({"x": 1}, "that fill the shape"),
        ({"x": "abcd"}, "that fill the shape"),
        ({"x": ["a", "b", "c", "d"]}, "x[0]: expected number, got string"),
        ({"x": None}, "'x' missing"),
        ({"x": {"a": [1, 2, 3, 4]}}, "x"),
        ({"x": [[1, 2], [3, 4]]}, "x: nested as [2, 2], but the shape says [1, 4]"),
        ({"x": [[1, 2, 3], [4]]}, "x: nested lists have unequal lengths"),
        ({"x": [[[1, 2, 3, 4]]]}, "x[0][0]"),
        ({"x": [1e39, 2, 3, 4]}, "x: a number is too large for FP32"),
        ({"x": list(range(68))}, "x.shape: expected 0 to 16 rows in dimension 0, got 17"),
        (b'{"x": [1,2,3,4,]}', "not valid JSON"),
        (b'{"x": [,,,]}', "not valid JSON"),
        ({**FOUR, "parameters": []}, "parameters: expected object"),
        ({**FOUR, "parameters": FOUR}, "parameters.x: it is given outside of the parameters as well"),
        ({**FOUR, "priority": 1, "parameters": {"priority": 2}}, "parameters.priority: it is given outside"),
        ({**FOUR, "priority": "high"}, "priority: expected integer"),
        ({**FOUR, "parameters": {"timeout": "1 s"}}, "parameters.timeout: expected integer"),
        ({**FOUR, "timeout": -1}, "parameters.timeout: expected microseconds"),
        ({**FOUR, "stream_timeout": 10**14}, "parameters.stream_timeout: expected microseconds"),
        ({**FOUR, "id": 7}, "id: expected string"),
        ({**FOUR, "variant": "fp4"}, "no variant 'fp4'"),
    ],
)
@pytest.mark.parametrize("path", [GENERATE, STREAM])
async def test_requests_that_are_wrong(
    client: httpx.AsyncClient, service: NumpyService, path: str, body: Any, words: str | None
) -> None:
    """Each is refused with what is wrong, as JSON with its status, by both; nothing is run."""
    content = body if isinstance(body, bytes) else json.dumps(body)
    reply = await client.post(path, content=content)
    if words is None:
        assert reply.status_code == 200  # no rows
        return
    assert (reply.status_code, reply.json()["code"]) == (400, "invalid_request")
    assert words in reply.json()["error"]
    assert reply.headers["content-type"] == "application/json"
    assert service.calls == []


async def test_sequences_are_refused(client: httpx.AsyncClient) -> None:
    """As they are by infer."""
    reply = await client.post(GENERATE, json={**FOUR, "sequence_id": 7})
    assert (reply.status_code, reply.json()["code"]) == (501, "unsupported")


@pytest.mark.parametrize("header", ["X-Timeout-Ms", "X-Stream-Timeout-Ms"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "1_000", "soon", "86400001"])
async def test_times_that_there_are_not(client: httpx.AsyncClient, header: str, value: str) -> None:
    """Are refused, and the header is named."""
    reply = await client.post(STREAM, json=FOUR, headers={header: value})
    assert (reply.status_code, reply.json()["code"]) == (400, "invalid_request")
    assert header in reply.json()["error"]


async def test_the_tightest_time_for_the_whole_answer_counts(client: httpx.AsyncClient, service: NumpyService) -> None:
    """What reading took is charged to it."""
    for header, parameter in (("2000", 3_000_000), ("3000", 2_000_000)):
        body = {**FOUR, "stream_timeout": parameter}
        assert (await client.post(STREAM, json=body, headers={"X-Stream-Timeout-Ms": header})).status_code == 200
        *_, (_, _, options) = service.calls
        assert options.stream_timeout_s is not None
        assert 0.0 < options.stream_timeout_s <= 2.0
        assert options.timeout_s is None
    passed = await client.post(STREAM, json={**FOUR, "stream_timeout": 1})
    assert (passed.status_code, passed.json()["code"]) == (504, "deadline_exceeded")


@pytest.mark.parametrize("name", ["pictures", "sounds", "sentences", "moods"])
@pytest.mark.parametrize("word", ["generate", "generate_stream"])
async def test_models_of_media_have_another_route(client: httpx.AsyncClient, name: str, word: str) -> None:
    """Which the message names."""
    reply = await client.post(f"/v2/models/{name}/{word}", json={"text": "a"})
    assert (reply.status_code, reply.json()["code"]) == (400, "invalid_request")
    assert f"/v1/models/{name}/predict" in reply.json()["error"]


async def test_there_is_room_or_not_before_data_is_decoded(client: httpx.AsyncClient, service: NumpyService) -> None:
    """The queue is asked first."""
    service.refuse = QueueFull("no room", 2.0)
    reply = await client.post(STREAM, json={"x": "no number"})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "2")
    too_large = await client.post(STREAM, content=bytes(LIMITS.max_body + 1))
    assert (too_large.status_code, too_large.json()["code"]) == (413, "payload_too_large")


@pytest.mark.parametrize("parts", [0, 2])
async def test_generate_takes_one_part(client: httpx.AsyncClient, service: NumpyService, parts: int) -> None:
    """As Triton's; several are for generate_stream."""
    service.parts = parts
    reply = await client.post(GENERATE, json=FOUR)
    assert (reply.status_code, reply.json()["code"]) == (400, "invalid_request")


async def test_how_it_was_served_is_told_as_by_infer(client: httpx.AsyncClient, service: NumpyService) -> None:
    """Among parameters of the answer."""
    reply = await client.post(GENERATE, json={**FOUR, "variant": "int8", "timings": True})
    assert reply.headers["x-variant"] == "int8"
    told = reply.json()["parameters"]
    assert (told["variant"], told["priority"], "infer_us" in told) == ("int8", 2, True)


@pytest.mark.parametrize(
    ("shape", "value", "expected"),
    [
        ((-1,), 7, [7]),
        ((-1,), [7, 8], [7, 8]),
        ((-1, 1), [7, 8], [[7], [8]]),
        ((-1, -1), [7, 8], [[7, 8]]),
        ((-1, 2, -1), [1, 2, 3, 4], [[[1, 2], [3, 4]]]),
        ((-1, 2), [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        ((-1, 2), [], np.empty((0, 2))),
        ((-1, 1), [], np.empty((0, 1))),
    ],
)
def test_shapes_follow_from_values(shape: tuple[int, ...], value: Any, expected: Any) -> None:
    """As Triton has it: the last dimension that may vary takes all that the fixed ones leave."""
    wanted = np.asarray(expected, np.float32)
    tensor = decoded(one_input(shape), {"x": value})["x"]
    assert tensor.dtype == np.float32
    np.testing.assert_array_equal(tensor, wanted)
    assert tensor.shape == wanted.shape


TEXTS = ["", "a,b", 'say "hi"', "back\\slash", '\\"', "[x]", "é\n", "\\\\"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_one_element(text: str) -> None:
    """Whatever it holds; alone, in a list, nested."""
    for value in (text, [text], [[text]]):
        assert decoded(one_input((-1, 1), "BYTES"), {"x": value})["x"].tolist() == [[text.encode()]]


def test_several_texts() -> None:
    """As many elements."""
    tensor = decoded(one_input((-1, 1), "BYTES"), {"x": TEXTS})["x"]
    assert tensor.tolist() == [[text.encode()] for text in TEXTS]


@pytest.mark.parametrize("body", [b'{"x": [ ]}', b'{"x": [ 1 , 2\n]}', b'{ "x" :[[1],[2]] }'])
def test_spaces_do_not_count(body: bytes) -> None:
    """Wherever JSON allows them."""
    assert decoded(one_input((-1, 1)), body)["x"].shape in {(0, 1), (2, 1)}


def test_inputs_with_names_of_parameters_are_inputs() -> None:
    """A parameter of that name is out of reach then; an input that is called like their object is, too."""
    priority = model("m", inputs=(TensorSpec("priority", "INT32", (-1,)),), outputs=())
    assert decoded(priority, {"priority": [5]})["priority"].tolist() == [5]
    named = model("m", inputs=(TensorSpec("id", "BYTES", (-1,)), TensorSpec("a b", "BOOL", (-1,))), outputs=())
    tensors = decoded(named, {"id": "me", "parameters": {"a b": True}})
    assert [tensors[name].tolist() for name in ("id", "a b")] == [[b"me"], [True]]
    out_of_reach = model("m", inputs=(TensorSpec("parameters", "INT32", (-1,)),), outputs=())
    with pytest.raises(InvalidRequest, match="'parameters' missing"):
        decoded(out_of_reach, {"parameters": {}})


def test_inputs_without_json_are_for_infer() -> None:
    """So they say."""
    with pytest.raises(InvalidRequest, match="x: BF16 has no JSON representation"):
        decoded(one_input((-1, 1), "BF16"), {"x": [1]})


def test_rows_of_several_inputs() -> None:
    """Each has its own shape; optional ones may be left out."""
    tensors = decoded(PROMPT, {"text": ["a", "b"], "most": [1, 2]})
    assert [tensors[name].shape for name in ("text", "most")] == [(2, 1), (2, 1)]


def test_outputs_of_one_element_stand_alone() -> None:
    """As Triton writes them; others are flat lists."""
    codec = GenerateCodec(PROMPT)
    request = codec.parse(b'{"id": "\xc3\xa9"}')
    value = {"out": np.array([[b'say "hi"']], object), "n": np.array([[1, 2]], np.int32)}
    told = json.loads(codec.encode(request, Answer(value, Priority.NORMAL, 0.0, 0.0)))
    assert told == {"model_name": "prompt", "model_version": "1", "id": "é", "out": 'say "hi"', "n": [1, 2]}
    value = {"out": np.empty((0, 1), object), "n": np.array([[np.nan, 1]], np.float32)}
    told = json.loads(codec.encode(request, Answer(value, Priority.NORMAL, 0.0, 0.0)))
    assert (told["out"], told["n"]) == ([], [None, 1.0])


async def test_large_bodies_are_as_small_ones(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are decoded in threads; text with as many commas as one likes is one text."""
    monkeypatch.setitem(MODELS, "prompts", one_input((-1, 1), "BYTES")._replace(name="prompts"))
    reply = await client.post("/v2/models/wide/generate", json={"x": [0.5] * 12_000})
    assert reply.json()["y"] == [1.0] * 12_000
    junk = {f"k{number}": number for number in range(5_000)}
    assert (await client.post(GENERATE, json={**FOUR, **junk})).json() == ANSWER
