"""Media as users have them, called by curl's habits and by Hugging Face's own client."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import huggingface_hub
import numpy as np
import pytest

from api.protocol_service import NumpyService, both
from serve_app.api.http_app import create_app
from serve_app.api.media import decode
from serve_app.domain.priority import Priority
from serve_app.domain.tasks import kind_of
from serve_app.errors import InvalidRequest, QueueFull
from serve_app.payloads import Media, Texts

PICTURE = b"\x89PNG a picture, for all that the protocol knows"
DIGEST = hashlib.sha256(PICTURE).hexdigest()
PICTURES = "/v1/models/pictures/predict"
SENTENCES = "/v1/models/sentences/predict"


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("tensors", "tensors"),
        ("image-classification", "image"),
        ("audio-classification", "audio"),
        ("feature-extraction", "text"),
        ("text-classification", "text"),
        ("zero-shot-classification", "text"),
        ("image-thumbnail", "image"),
        ("object-detection", "image"),
        ("automatic-speech-recognition", "audio"),
        ("thumbnail", "text"),
    ],
)
def test_what_a_task_takes(task: str, kind: str) -> None:
    """By Hugging Face's names of tasks."""
    assert kind == kind_of(task)


@pytest.mark.parametrize(
    ("path", "content_type", "seen"),
    [
        (PICTURES, "image/png", "image/png"),
        (PICTURES, "Image/JPEG; q=1", "image/jpeg"),
        (PICTURES, "application/octet-stream", ""),
        (PICTURES, "application/x-www-form-urlencoded", ""),
        (PICTURES, "", ""),
        ("/v1/models/sounds/predict", "audio/wav", "audio/wav"),
        ("/v1/models/sounds/predict", "application/ogg", "application/ogg"),
    ],
)
async def test_raw_media(
    client: httpx.AsyncClient, service: NumpyService, path: str, content_type: str, seen: str
) -> None:
    """The body is the file."""
    reply = await client.post(path, content=PICTURE, headers={"Content-Type": content_type, "X-Priority": "high"})

    assert reply.json() == [{"label": DIGEST, "score": float(len(PICTURE))}]
    assert reply.headers["x-priority"] == "high"
    ((_, payload, options),) = service.calls
    assert (payload, options.priority, options.nbytes) == (Media(PICTURE, seen, {}), Priority.HIGH, len(PICTURE))


@pytest.mark.parametrize("prefix", ["", "data:image/png;base64,"])
async def test_media_in_json(client: httpx.AsyncClient, service: NumpyService, prefix: str) -> None:
    """Base64, wrapped in lines or not, plain or as a data URI; with task parameters and a variant."""
    inputs = prefix + base64.encodebytes(PICTURE).decode()
    request = {"inputs": inputs, "parameters": {"top_k": 3, "variant": "int8"}}
    reply = await client.post(PICTURES, json=request)

    assert reply.status_code == 200
    ((_, payload, options),) = service.calls
    assert payload == Media(PICTURE, "image/png" if prefix else "", {"top_k": 3})
    assert options.variant == "int8"


async def test_media_in_a_form(client: httpx.AsyncClient, service: NumpyService) -> None:
    """As curl -F sends it, with parameters in JSON; over the inline limit, too."""
    big = PICTURE * 500
    for content in (PICTURE, big):
        reply = await client.post(
            PICTURES, files={"file": ("a.png", content, "image/png")}, data={"parameters": '{"top_k": 1}'}
        )
        assert reply.status_code == 200

    assert [call[1] for call in service.calls] == [Media(data, "image/png", {"top_k": 1}) for data in (PICTURE, big)]


async def test_the_type_of_s3_says_nothing(client: httpx.AsyncClient, service: NumpyService) -> None:
    """As application/octet-stream does."""
    reply = await client.post(PICTURES, content=PICTURE, headers={"Content-Type": "binary/octet-stream"})

    assert (reply.status_code, service.calls[0][1]) == (200, Media(PICTURE, "", {}))


async def test_compressed_bodies(client: httpx.AsyncClient, service: NumpyService) -> None:
    """As everywhere else."""
    headers = {"Content-Type": "text/plain", "Content-Encoding": "gzip"}
    await client.post(SENTENCES, content=gzip.compress("Grüße".encode()), headers=headers)

    assert service.calls[0][1] == Texts(["Grüße"], {})


@pytest.mark.parametrize(
    ("content_type", "body", "texts", "parameters"),
    [
        ("text/plain", "ä b", ["ä b"], {}),
        ("text/plain; charset=UTF-8", "", None, None),
        ("application/json", '{"inputs": ""}', [""], {}),
        ("application/json", '{"inputs": ["a", "b"], "parameters": null}', ["a", "b"], {}),
        (
            "application/json; charset=utf-8",
            '{"inputs": "a", "normalize": true, "parameters": {"truncate": false}}',
            ["a"],
            {"normalize": True, "truncate": False},
        ),
        (
            "application/json",
            '{"inputs": "a", "normalize": true, "parameters": {"normalize": null, "a": null}}',
            ["a"],
            {"normalize": True},
        ),
        ("application/json", '{"inputs": "a", "variant": null, "b": null, "fallback": null}', ["a"], {}),
        ("application/json", '{"inputs": "a", "options": {"wait_for_model": true, "x": [{}]}}', ["a"], {}),
        (
            "application/json",
            '{"inputs": "a", "options": {}, "parameters": {"options": {"use_cache": false}}}',
            ["a"],
            {},
        ),
        ("application/json", '{"inputs": "a", "options": null, "parameters": {"top_k": 2}}', ["a"], {"top_k": 2}),
        ("application/json", '{"inputs": "a", "options": "own"}', ["a"], {"options": "own"}),
        (
            "application/json",
            '{"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}}',
            ["b", "c"],
            {"source_sentence": "a"},
        ),
    ],
)
async def test_texts(
    client: httpx.AsyncClient, service: NumpyService, content_type: str, body: str, texts: Any, parameters: Any
) -> None:
    """Plain, one, many, and a sentence to compare with."""
    reply = await client.post(SENTENCES, content=body.encode(), headers={"Content-Type": content_type})

    if texts is None:
        assert (reply.status_code, service.calls) == (400, [])
    else:
        assert service.calls[0][1] == Texts(texts, parameters)


async def test_texts_in_a_form(client: httpx.AsyncClient, service: NumpyService) -> None:
    """One text per field named inputs."""
    form = {"inputs": ["a", "b"]}
    await client.post(SENTENCES, data=form, files={"unused": b"x"})

    assert service.calls[0][1] == Texts(["a", "b"], {})


async def test_a_form_needs_no_line_behind_its_end(client: httpx.AsyncClient, service: NumpyService) -> None:
    """Some clients send none."""
    await client.post(SENTENCES, **_form(TWO_TEXTS.removesuffix(b"\r\n")))

    assert service.calls[0][1] == Texts(["one", "two"], {})


async def test_many_embeddings_are_nested_lists(client: httpx.AsyncClient) -> None:
    """Also when there are enough of them to be encoded elsewhere."""
    reply = await client.post(SENTENCES, json={"inputs": ["ab"] * 16})

    assert reply.json() == [[2.0, 195.0, 3.0, 4.0]] * 16


def _form(body: bytes) -> dict[str, Any]:
    return {"content": body, "headers": {"Content-Type": "multipart/form-data; boundary=b"}}


_TEXT = b'--b\r\nContent-Disposition: form-data; name="inputs"\r\n\r\n%b\r\n'
TWO_TEXTS = _TEXT % b"one" + _TEXT % b"two" + b"--b--\r\n"


def _json(document: Any) -> dict[str, Any]:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return {"content": content, "headers": {"Content-Type": "application/json"}}


def _raw(content: bytes, content_type: str) -> dict[str, Any]:
    return {"content": content, "headers": {"Content-Type": content_type}}


@pytest.mark.parametrize(
    ("path", "request_", "status", "message"),
    [
        (PICTURES, _raw(b"hello", "text/plain"), 415, "model 'pictures' takes a picture"),
        (PICTURES, _raw(PICTURE, "audio/wav"), 415, "got 'audio/wav'"),
        (PICTURES, _raw(b"", "image/png"), 400, "the body is empty; model 'pictures' takes a picture"),
        (SENTENCES, _raw(PICTURE, "image/png"), 415, "model 'sentences' takes text"),
        (SENTENCES, _raw(b"a", ""), 415, "got 'no type'"),
        (SENTENCES, _raw(b"a", "text/plain; charset=latin-1"), 415, "send UTF-8"),
        (SENTENCES, _raw(b"\xff", "text/plain"), 400, "the body: text is not valid UTF-8"),
        ("/v1/models/double/predict", _raw(b"a", "text/plain"), 400, "POST /v2/models/double/infer"),
        ("/v1/models/nothing/predict", _raw(b"a", "text/plain"), 404, "no model 'nothing'"),
        (PICTURES, _json(b"{"), 400, "the body: not valid JSON"),
        (PICTURES, _json(b'{"inputs": NaN}'), 400, "the body: not valid JSON"),
        (PICTURES, _json(b'{"inputs": "\xff"}'), 400, "inputs: text is not valid UTF-8"),
        (PICTURES, _json(b"[" * 90_000), 400, "the body: expected a JSON object"),
        (PICTURES, _json([]), 400, "expected a JSON object"),
        (PICTURES, _json({"input": "a"}), 400, "expected a JSON object"),
        (PICTURES, _json({"inputs": 3}), 400, "inputs: expected the image file in base64, as a string"),
        (PICTURES, _json({"inputs": "no base64!"}), 400, "the image file in base64: character 10 is '!'"),
        (PICTURES, _json({"inputs": ""}), 400, "inputs: the file is empty"),
        (PICTURES, _json({"inputs": "data:audio/wav;base64,AAAA"}), 415, "got 'audio/wav'"),
        (PICTURES, _json({"inputs": "AAAA", "parameters": []}), 400, "parameters: expected a JSON object"),
        (PICTURES, _json({"inputs": "AAAA", "parameters": {"a": {}}}), 400, "parameters.a: expected a string"),
        (PICTURES, _json({"inputs": "AAAA", "parameters": {"a": [[]]}}), 400, "parameters.a: expected a string"),
        (PICTURES, _json({"inputs": "AAAA", "b": {"c": 1}}), 400, "parameters.b: expected a string"),
        (PICTURES, _json({"inputs": "AAAA", "parameters": {"variant": 8}}), 400, "parameters.variant: expected a str"),
        (PICTURES, _json({"inputs": "AAAA", "parameters": {"variant": "x"}}), 400, "no variant 'x'; it has int8"),
        (SENTENCES, _json({"inputs": []}), 400, "inputs: expected at least one text"),
        (SENTENCES, _json({"inputs": ["a"] * 17}), 400, "inputs: 17 texts; the most in one request is 16"),
        (SENTENCES, _json({"inputs": ["a", 3]}), 400, "inputs[1]: expected string, got integer"),
        (SENTENCES, _json({"inputs": None}), 400, "inputs: expected array, got null"),
        (SENTENCES, _json({"inputs": {"source_sentence": "a"}}), 400, "inputs: object missing required field"),
        (SENTENCES, _json({"inputs": {"text": "a", "pair": "b"}}), 400, "inputs: "),
        (PICTURES, _raw(b"x", "multipart/form-data"), 400, "the multipart form cannot be read"),
        (PICTURES, _raw(TWO_TEXTS, "multipart/form-data; boundary=b; charset=undefined"), 415, "send UTF-8"),
        (PICTURES, _form(b"--b--\r\n"), 400, "file: expected a form field of this name"),
        (PICTURES, _form(b"--b\r\nbroken"), 400, "it ends before its last boundary"),
        (SENTENCES, _form(TWO_TEXTS[:-9]), 400, "it ends before its last boundary"),
        (SENTENCES, _form(TWO_TEXTS[:-11]), 400, "it ends before its last boundary"),
        (SENTENCES, _form(_TEXT % b"caf\xe9" + b"--b--\r\n"), 400, "inputs: text is not valid UTF-8"),
        (
            PICTURES,
            {"files": [("file", ("a", b"1")), ("other", ("b", b"2"))]},
            400,
            "the multipart form cannot be read",
        ),
        (PICTURES, {"files": {"file": ("a.txt", b"hi", "text/plain")}}, 415, "got 'text/plain'"),
        (PICTURES, {"files": {"file": ("a.json", b"{}", "application/json")}}, 415, "file: model 'pictures' takes"),
        (PICTURES, {"files": {"file": ("a.png", b"", "image/png")}}, 400, "file: the file is empty"),
        (
            PICTURES,
            {"files": {"file": ("a.png", PICTURE, "image/png")}, "data": {"parameters": "{"}},
            400,
            "parameters: expected a JSON object in this form field",
        ),
        (SENTENCES, {"files": {"file": ("a.txt", b"hi", "text/plain")}}, 400, "inputs: expected at least one form"),
        (PICTURES, _raw(bytes(100_001), "image/png"), 413, "100001 bytes; the limit is 100000"),
    ],
)
async def test_malformed_requests(
    client: httpx.AsyncClient, path: str, request_: dict[str, Any], status: int, message: str
) -> None:
    """A 4xx that names the field and what was expected."""
    reply = await client.post(path, **request_)

    assert status == reply.status_code
    assert message in reply.json()["error"]


@pytest.mark.parametrize("inputs", [b"[],", b"{},", b"1,"])
def test_what_no_request_can_mean_is_refused_before_it_is_decoded(service: NumpyService, inputs: bytes) -> None:
    """Millions of empty lists would hold the GIL, and with it every other request, for seconds."""
    body = b'{"inputs": [%b0]}' % (inputs * 100_000)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="inputs"):
            decode(service.models["sentences"], "text", "application/json", body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(body)


def test_parameters_are_few(service: NumpyService) -> None:
    """They are decoded one by one, so their room is bounded; the inputs are not counted."""
    info = service.models["sentences"]
    many = json.dumps({"inputs": "a", **{f"name-{number}": 1 for number in range(100_000)}}).encode()
    with pytest.raises(InvalidRequest, match="parameters: more than 1048576 bytes"):
        decode(info, "text", "application/json", many)
    long = json.dumps({"inputs": "a" * 2_000_000, "truncate": True}).encode()
    assert decode(info, "text", "application/json", long).payload.parameters == {"truncate": True}


async def test_early_refusal_reads_nothing(service: NumpyService) -> None:
    """With a declared size, an overloaded server refuses before the first byte of the media."""
    service.refuse = QueueFull("full", 1.0)
    app = create_app(*both(service))
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"image/png"), (b"content-length", b"1000")]
    scope = {"type": "http", "method": "POST", "path": PICTURES, "headers": headers, "query_string": b""}
    await app(scope, receive, send)

    assert sent[0]["status"] == 429
    assert service.prechecks == [("pictures", None, 1000)]


@pytest.fixture
def hugging_face(service: NumpyService) -> Iterator[huggingface_hub.AsyncInferenceClient]:
    """Hugging Face's client, connected to the application."""
    transport = httpx2.ASGITransport(create_app(*both(service)))
    huggingface_hub.set_async_client_factory(lambda: httpx2.AsyncClient(transport=transport))
    yield huggingface_hub.AsyncInferenceClient(token="none")
    huggingface_hub.set_async_client_factory(httpx2.AsyncClient)


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # the client's own way of calling httpx
async def test_hugging_face_client(hugging_face: huggingface_hub.AsyncInferenceClient) -> None:
    """Its tasks call this route and read its answers."""
    picture = await hugging_face.image_classification(PICTURE, model=f"http://server{PICTURES}")
    ranked = await hugging_face.image_classification(PICTURE, model=f"http://server{PICTURES}", top_k=2)
    sound = await hugging_face.audio_classification(PICTURE, model="http://server/v1/models/sounds/predict")
    vectors = await hugging_face.feature_extraction("ab", model=f"http://server{SENTENCES}")
    mood = await hugging_face.text_classification("a fine day", model="http://server/v1/models/moods/predict")

    assert picture[0].label == ranked[0].label == sound[0].label == DIGEST
    assert np.array_equal(vectors, [[2.0, 195.0, 3.0, 4.0]])
    assert mood[0].label == "long"


@pytest.mark.parametrize(
    ("inputs", "texts"),
    [
        ({"text": "a", "text_pair": "b"}, [["a", "b"]]),
        ({"text": "a"}, ["a"]),
        ([{"text": "a", "text_pair": "b"}, {"text": "c"}, "d"], [["a", "b"], "c", "d"]),
        ([["a", "b"], ["c", "d"]], [["a", "b"], ["c", "d"]]),
        ([["a"], "b"], ["a", "b"]),
        ([[["a", "b"]]], [["a", "b"]]),
    ],
)
async def test_pairs_of_texts_come_in_every_form_of_the_pipelines(
    client: httpx.AsyncClient, service: NumpyService, inputs: Any, texts: list[Any]
) -> None:
    """Each is a row."""
    await client.post(SENTENCES, json={"inputs": inputs})

    ((_, payload, _),) = service.calls
    assert isinstance(payload, Texts)
    assert payload.texts == texts


@pytest.mark.parametrize("inputs", [[["a", "b", "c"]], [[]], [["a", 1]], [{"text": "a", "other": "b"}], {"text": 1}])
async def test_what_is_no_pair_is_refused(client: httpx.AsyncClient, service: NumpyService, inputs: Any) -> None:
    """With its place."""
    reply = await client.post(SENTENCES, json={"inputs": inputs})

    assert (reply.status_code, service.calls) == (400, [])
    assert reply.json()["error"].startswith("inputs")
