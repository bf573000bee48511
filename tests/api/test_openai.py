"""OpenAI's API, called by OpenAI's own client."""

from __future__ import annotations

import base64
import json
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import httpx
import httpx2
import numpy as np
import openai
import pytest

from api.protocol_service import NumpyService, both
from serve_app.api.http_app import create_app
from serve_app.payloads import Texts


@pytest.fixture
async def api(service: NumpyService) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client, connected to the application by the HTTP library that it uses itself."""
    async with (
        httpx2.AsyncClient(transport=httpx2.ASGITransport(create_app(*both(service)))) as client,
        openai.AsyncOpenAI(api_key="none", base_url="http://server/v1", http_client=client, max_retries=0) as connected,
    ):
        yield connected


def _vector(embedding: Any) -> Any:
    """As numbers, however it was asked for."""
    return np.frombuffer(base64.b64decode(embedding), "<f4").tolist() if isinstance(embedding, str) else embedding


async def test_models_are_listed(api: openai.AsyncOpenAI) -> None:
    """And can be asked for one by one."""
    names = [model.id async for model in api.models.list()]
    one = await api.models.retrieve("sentences")

    assert names == ["double", "mirror", "wide", "pictures", "sounds", "sentences", "moods"]
    assert (one.id, one.owned_by) == ("sentences", "serve-app")


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
async def test_embeddings(api: openai.AsyncOpenAI, encoding: Any) -> None:
    """In order, with the tokens counted; the client asks for base64 when it is told nothing."""
    options = {} if encoding is None else {"encoding_format": encoding}
    reply = await api.embeddings.create(model="sentences", input=["a", "bcd"], **options)

    vectors = [_vector(item.embedding) for item in reply.data]
    assert vectors == [[1.0, 97.0, 3.0, 4.0], [3.0, 297.0, 3.0, 4.0]]
    assert [item.index for item in reply.data] == [0, 1]
    assert (reply.usage.prompt_tokens, reply.usage.total_tokens, reply.model) == (4, 4, "sentences")


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([7, 8], [[7, 8]]),
        ([[7], [8, 9]], [[7], [8, 9]]),
    ],
)
async def test_every_form_of_input(api: openai.AsyncOpenAI, service: NumpyService, given: Any, texts: Any) -> None:
    """A text, texts, token ids, lists of token ids."""
    await api.embeddings.create(model="sentences", input=given)

    assert service.calls[0][1] == Texts(texts, {})


async def test_dimensions_are_the_processor_s_to_cut(api: openai.AsyncOpenAI, service: NumpyService) -> None:
    """It knows how many there are."""
    await api.embeddings.create(model="sentences", input="a", dimensions=2)

    assert service.calls[0][1] == Texts(["a"], {"dimensions": 2})


@pytest.mark.parametrize(
    ("more", "parameters"),
    [
        ({"encoding_format": None, "user": None, "dimensions": None, "metadata": None, "prompt_name": None}, {}),
        ({"user": {"id": 7}}, {}),
        (
            {"prompt_name": "query", "normalize": False, "truncate": True, "truncation_direction": "left"},
            {"prompt_name": "query", "normalize": False, "truncate": True, "truncation_direction": "left"},
        ),
        ({"dimensions": 2, "normalize": None, "user": "me"}, {"dimensions": 2}),
    ],
)
async def test_fields_beside_the_input(
    client: httpx.AsyncClient, service: NumpyService, more: dict[str, Any], parameters: dict[str, Any]
) -> None:
    """Those of Hugging Face's clients go to the model's processor; null says nothing, in whatever it stands."""
    reply = await client.post("/v1/embeddings", json={"model": "sentences", "input": "a", **more})

    assert reply.status_code == 200
    assert isinstance(reply.json()["data"][0]["embedding"], list)
    assert service.calls[0][1] == Texts(["a"], parameters)


async def test_many_embeddings(client: httpx.AsyncClient) -> None:
    """An answer over the inline limit is encoded outside the event loop, to the same effect."""
    texts = ["text " * 700] * 16
    reply = await client.post("/v1/embeddings", json={"model": "sentences", "input": texts})

    assert len(reply.json()["data"]) == 16


async def test_unknown_models_are_the_clients_own_error(api: openai.AsyncOpenAI) -> None:
    """OpenAI's client reads the error object."""
    with pytest.raises(openai.NotFoundError) as error:
        await api.embeddings.create(model="nothing", input="a")

    assert error.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"input": "a"}, "object missing required field 'model'"),
        ({"model": "sentences"}, "object missing required field 'input'"),
        ({"model": "double", "input": "a"}, "model: 'double' makes no embeddings; models that do: sentences"),
        ({"model": "sentences", "input": []}, "input: expected 1 to 16 texts, got 0"),
        ({"model": "sentences", "input": ["a"] * 17}, "input: expected 1 to 16 texts, got 17"),
        ({"model": "sentences", "input": 3}, "input: expected a string, a list of strings, or token ids"),
        ({"model": "sentences", "input": ["a", 3]}, "input[1]: expected string, got integer"),
        ({"model": "sentences", "input": [3, "a"]}, "input[1]: expected integer, got string"),
        ({"model": "sentences", "input": [[3], []]}, "input: a list of token ids is empty"),
        ({"model": "sentences", "input": [-1]}, "input[0]: expected integer >= 0"),
        ({"model": "sentences", "input": "a", "encoding_format": "hex"}, "encoding_format: invalid enum value 'hex'"),
        ({"model": "sentences", "input": "a", "dimensions": 0}, "dimensions: expected integer >= 1"),
        ({"model": "sentences", "input": "a", "dimensions": "5"}, "dimensions: expected integer or null, got string"),
        (
            {"model": "sentences", "input": "a", "colour": 1},
            "colour: unknown; known here: model, input, encoding_format",
        ),
        ({"model": "sentences", "input": "a", "user": None, "colour": 1}, "colour: unknown"),
        (
            {"model": "sentences", "input": "a", "truncate": "END"},
            "truncate: expected true or false or null, got string",
        ),
        ({"model": None, "input": "a"}, "model: expected string, got null"),
        ({"model": "sentences", "input": None}, "input: expected a string, a list of strings, or token ids"),
        (b'{"model": "sentences", "input": "\xff"}', "input: text is not valid UTF-8"),
        (b'{"model": "sentences", "input": ' + b"[" * 9999, "JSON is nested too deeply"),
    ],
)
async def test_malformed_requests(client: httpx.AsyncClient, request_: dict[str, Any] | bytes, message: str) -> None:
    """400, naming the field."""
    body = request_ if isinstance(request_, bytes) else json.dumps(request_).encode()
    reply = await client.post("/v1/embeddings", content=body)

    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models/nothing"])
async def test_unknown_routes_answer_in_openais_form(client: httpx.AsyncClient, path: str) -> None:
    """Its clients read nothing else."""
    reply = await client.get(path)

    assert reply.status_code == 404
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


async def test_too_many_lists_are_counted_not_decoded(client: httpx.AsyncClient) -> None:
    """Decoding millions of them would hold the GIL, and with it every other request, for seconds."""
    body = b'{"model": "sentences", "input": [%b[1]]}' % (b"[1]," * 24_000)
    tracemalloc.start()
    try:
        reply = await client.post("/v1/embeddings", content=body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, "input: expected 1 to 16 texts, got 24001")
    assert peak < 10 * len(body)
