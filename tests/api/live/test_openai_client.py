"""OpenAI's own client, unmodified, sync and async."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import numpy as np
import openai
import pytest
from local_server import LocalServer

from api.protocol_service import NumpyService, both
from serve_app.api.http_app import create_app
from serve_app.domain.priority import Priority
from serve_app.errors import ModelUnavailable, QueueFull


@pytest.fixture
def api(server: LocalServer) -> Iterator[openai.OpenAI]:
    """The client, as its documentation says."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as connected:
        yield connected


def test_models(api: openai.OpenAI) -> None:
    """All of them, and one."""
    assert {"digits", "words", "moods"} <= {model.id for model in api.models.list()}
    assert api.models.retrieve("words").object == "model"


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ("the cat", 3),
        (["the cat", "a dog sat"], 7),
        ([3, 4], 2),
        ([[3, 4], [8, 5, 6]], 5),
    ],
)
def test_every_form_of_input(api: openai.OpenAI, given: Any, tokens: int) -> None:
    """Texts and token ids; the client asks for base64 by itself, and numbers are the same."""
    reply = api.embeddings.create(model="words", input=given, user="somebody")
    numbers = api.embeddings.create(model="words", input=given, encoding_format="float")

    assert np.allclose([item.embedding for item in reply.data], [item.embedding for item in numbers.data])
    assert [item.index for item in reply.data] == list(range(len(reply.data)))
    assert (reply.usage.prompt_tokens, reply.usage.total_tokens) == (tokens, tokens)


def test_texts_and_their_token_ids_have_one_embedding(api: openai.OpenAI) -> None:
    """Special tokens are the client's to send, too, where it tokenizes itself."""
    by_text, by_ids = (api.embeddings.create(model="words", input=[given]).data[0].embedding  # type: ignore[arg-type]
                       for given in ("the cat", [2, 3, 4]))  # fmt: skip

    assert np.allclose(by_text, by_ids)


def test_base64_is_little_endian_float32(server: LocalServer) -> None:
    """As the client decodes it."""
    body = {"model": "words", "input": "the cat", "encoding_format": "base64"}
    encoded = httpx.post(f"{server.url}/v1/embeddings", json=body).json()["data"][0]["embedding"]

    assert len(base64.b64decode(encoded)) == 8 * 4


@pytest.mark.parametrize("dimensions", [1, 3, 8])
def test_dimensions(api: openai.OpenAI, dimensions: int) -> None:
    """The first ones of the whole vector."""
    whole = api.embeddings.create(model="words", input="the cat").data[0].embedding
    cut = api.embeddings.create(model="words", input="the cat", dimensions=dimensions).data[0].embedding

    assert np.allclose(cut, whole[:dimensions])


def test_headers_and_variants(api: openai.OpenAI) -> None:
    """Class, deadline and variant travel in ``extra_headers``."""
    reply = api.embeddings.with_raw_response.create(
        model="words",
        input="the cat",
        extra_headers={"X-Priority": "high", "X-Timeout-Ms": "5000", "X-Variant": "light"},
    )

    assert (reply.headers["x-priority"], reply.headers["x-variant"]) == ("high", "light")
    assert reply.parse().model == "words"


@pytest.mark.parametrize(
    ("asked", "kind", "code", "words"),
    [
        ({"model": "nothing", "input": "a"}, openai.NotFoundError, "model_not_found", "there is no 'nothing'"),
        ({"model": "digits", "input": "a"}, openai.BadRequestError, "invalid_request", "models that do: words"),
        ({"model": "words", "input": []}, openai.BadRequestError, "invalid_request", "expected 1 to 2048 texts"),
        ({"model": "words", "input": [99]}, openai.BadRequestError, "invalid_request", "99 is no token id"),
        ({"model": "words", "input": "a", "dimensions": 9}, openai.BadRequestError, "invalid_request", "1 to 8"),
        (
            {"model": "words", "input": "a", "extra_headers": {"X-Variant": "none"}},
            openai.BadRequestError,
            "invalid_request",
            "it has light",
        ),
        (
            {"model": "words", "input": "a" * 33 * 2**20},
            openai.APIStatusError,
            "payload_too_large",
            "the limit is 33554432",
        ),
    ],
)
def test_errors(
    api: openai.OpenAI, asked: dict[str, Any], kind: type[openai.APIStatusError], code: str, words: str
) -> None:
    """Each is the client's own exception, with the code and what to do."""
    with pytest.raises(kind) as error:
        api.embeddings.create(**asked)

    assert error.value.code == code
    assert words in error.value.message


def test_what_is_not_served_is_not_found(api: openai.OpenAI) -> None:
    """In OpenAI's form."""
    with pytest.raises(openai.NotFoundError, match="nothing is served at this path"):
        api.chat.completions.create(model="words", messages=[{"role": "user", "content": "hello"}])


async def test_the_async_client(server: LocalServer) -> None:
    """Asks the same."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as api:
        reply = await api.embeddings.create(model="words", input=["the cat", "a dog"])
        names = [model.id async for model in api.models.list()]

    assert len(reply.data) == 2
    assert "words" in names


class _FullOnce(NumpyService):
    """Refuses the first request."""

    def precheck(
        self, model: str, priority: Priority | None, nbytes: int, tenant: str = "", weight: float = 1.0
    ) -> None:
        """Refuse once."""
        super().precheck(model, priority, nbytes)
        if len(self.prechecks) == 1:
            raise self.failure

    failure: Exception


@pytest.mark.parametrize("failure", [QueueFull("full", 1.0), ModelUnavailable("starting", 1.0)])
async def test_the_client_comes_again_when_it_was_told(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """After the seconds of Retry-After, and gets its answer."""
    service = _FullOnce()
    service.failure = failure
    caplog.set_level(logging.INFO, logger="openai")
    async with (
        httpx2.AsyncClient(transport=httpx2.ASGITransport(create_app(*both(service)))) as client,
        openai.AsyncOpenAI(api_key="none", base_url="http://server/v1", http_client=client, max_retries=1) as api,
    ):
        reply = await api.embeddings.create(model="sentences", input="a")

    assert len(reply.data) == 1
    assert "Retrying request in 1.000000 seconds" in caplog.text
