"""Hugging Face's own client, unmodified, by every form of URL that it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.errors import BadRequestError, HfHubHTTPError
from local_server import LocalServer

from api.live.conftest import PICTURE, SOUND
from api.protocol_service import NumpyService, both
from serve_app.api.http_app import create_app
from serve_app.errors import ModelUnavailable, QueueFull, ServeAppError

pytestmark = pytest.mark.filterwarnings(
    "ignore:Use 'content=:DeprecationWarning"  # the client's own way of calling httpx
)

FORMS: list[Callable[[str, str], str]] = [
    lambda model, task: f"/v1/models/{model}/predict",
    lambda model, task: f"/models/{model}",
    lambda model, task: f"/models/{model}/pipeline/{task}",
]
"""Paths that name the model."""


def _ask(server: LocalServer, path: str) -> huggingface_hub.InferenceClient:
    return huggingface_hub.InferenceClient(model=server.url + path, token="none")


@pytest.mark.parametrize("form", [*FORMS, lambda model, task: "", lambda model, task: "/"])
def test_pictures(server: LocalServer, form: Callable[[str, str], str]) -> None:
    """By path and as bytes, and by base64 as soon as there are parameters; at a bare URL, too."""
    client = _ask(server, form("digits", "image-classification"))

    assert client.image_classification(PICTURE)[0].label == "4"
    assert client.image_classification(PICTURE.read_bytes())[0].label == "4"
    assert [item.label for item in client.image_classification(PICTURE, top_k=1)] == ["4"]
    logits = client.image_classification(PICTURE, top_k=10, function_to_apply="none")
    assert len(logits) == 10
    assert logits[0].score > 1.0


@pytest.mark.parametrize("form", [*FORMS, lambda model, task: ""])
def test_sounds(server: LocalServer, form: Callable[[str, str], str]) -> None:
    """The same."""
    client = _ask(server, form("spoken-digits", "audio-classification"))

    assert client.audio_classification(SOUND)[0].label == "eight"
    assert client.audio_classification(SOUND.read_bytes())[0].label == "eight"
    assert len(client.audio_classification(SOUND, top_k=2)) == 2


@pytest.mark.parametrize("form", FORMS)
def test_text_classification(server: LocalServer, form: Callable[[str, str], str]) -> None:
    """With its parameters."""
    client = _ask(server, form("moods", "text-classification"))

    softmax = client.text_classification("good day", top_k=8)
    assert sum(item.score for item in softmax) == pytest.approx(1.0)
    sigmoid = client.text_classification("good day", function_to_apply="sigmoid", top_k=2)
    assert [item.label for item in sigmoid] == [item.label for item in softmax[:2]]
    assert sigmoid[0].score != softmax[0].score


@pytest.mark.parametrize("form", [*FORMS, lambda model, task: ""])
def test_zero_shot_classification(server: LocalServer, form: Callable[[str, str], str]) -> None:
    """The labels are the request's, so the bare URL finds the embedding model."""
    client = _ask(server, form("words", "zero-shot-classification"))

    exclusive = client.zero_shot_classification("the cat", ["cat", "dog"])
    assert sum(item.score for item in exclusive) == pytest.approx(1.0)
    independent = client.zero_shot_classification(
        "the cat", ["cat", "dog"], multi_label=True, hypothesis_template="the {}"
    )
    assert (independent[0].label, round(independent[0].score, 3)) == ("cat", 1.0)


@pytest.mark.parametrize("form", FORMS)
def test_feature_extraction(server: LocalServer, form: Callable[[str, str], str]) -> None:
    """Every parameter of the client does what it says."""
    client = _ask(server, form("words", "feature-extraction"))

    vector = client.feature_extraction("the cat")
    assert vector.shape == (1, 8)
    assert client.feature_extraction(["the cat", "a dog"]).shape == (2, 8)
    unit = client.feature_extraction("the cat", normalize=True)
    assert np.linalg.norm(unit) == pytest.approx(1.0)
    assert np.allclose(client.feature_extraction("the cat", dimensions=3, encoding_format="float"), vector[:, :3])
    long = "sun " * 15 + "moon"
    first, last = (
        client.feature_extraction(long, truncate=True, truncation_direction=side) for side in ("right", "left")
    )
    assert np.allclose(first, client.feature_extraction("sun " * 15))
    assert np.allclose(last, client.feature_extraction("sun " * 14 + "moon"))


@pytest.mark.parametrize("form", [*FORMS, lambda model, task: ""])
def test_sentence_similarity(server: LocalServer, form: Callable[[str, str], str]) -> None:
    """Cosines of the embeddings."""
    client = _ask(server, form("words", "sentence-similarity"))
    vectors = _ask(server, "/models/words").feature_extraction(["the cat", "a dog", "the cat"], normalize=True)

    cosines = client.sentence_similarity("the cat", ["a dog", "the cat"])
    assert cosines == pytest.approx(list(vectors[1:] @ vectors[0]), abs=1e-6)


def test_parameters_tell_the_task_at_a_bare_url(server: LocalServer) -> None:
    """``normalize`` is for embeddings, ``top_k`` for labels."""
    client = _ask(server, "")

    assert client.feature_extraction("the cat", normalize=True).shape == (1, 8)
    assert len(client.text_classification("good day", top_k=3)) == 3


@pytest.mark.parametrize(
    ("path", "call", "words"),
    [
        ("", lambda client: client.feature_extraction("the cat"), "POST /models/moods (text-classification)"),
        ("", lambda client: client.image_classification(b"no picture"), "POST /models/digits (image-classification)"),
        (
            "/models/words",
            lambda client: client.feature_extraction("a", prompt_name="other"),
            "known here: document, query",
        ),
        ("/models/words", lambda client: client.feature_extraction("a", encoding_format="base64"), "/v1/embeddings"),
        ("/models/words", lambda client: client.feature_extraction("a", dimensions=9), "expected 1 to 8"),
        ("/models/words", lambda client: client.feature_extraction("a " * 99, truncate=False), "longer than 16 tokens"),
        ("/models/digits", lambda client: client.image_classification(PICTURE, top_k=0), "top_k: expected `int` >= 1"),
        ("/models/digits/pipeline/feature-extraction", lambda client: client.feature_extraction("a"), "does image-cl"),
        (
            "/models/words/pipeline/feature-extraction",
            lambda client: client.sentence_similarity("a", ["b"]),
            "for sent",
        ),
        ("/models/sum_diff", lambda client: client.feature_extraction("a"), "POST /v2/models/sum_diff/infer"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(
    server: LocalServer, path: str, call: Callable[[Any], Any], words: str
) -> None:
    """The client shows it."""
    with pytest.raises(BadRequestError) as error:
        call(_ask(server, path))

    assert words in str(error.value)


def test_unknown_models(server: LocalServer) -> None:
    """404, naming those that there are."""
    with pytest.raises(HfHubHTTPError, match="there is no 'nothing' here; models: digits"):
        _ask(server, "/models/nothing").feature_extraction("a")


def test_health_and_info(server: LocalServer) -> None:
    """What the client asks of an endpoint."""
    client = huggingface_hub.InferenceClient(provider="hf-inference", token="none")

    assert client.health_check(server.url)
    assert client.health_check(f"{server.url}/models/words")
    assert not client.health_check(f"{server.url}/models/nothing")
    assert client.get_endpoint_info(model=f"{server.url}/models/words")["model_pipeline_tag"] == "feature-extraction"
    assert len(client.get_endpoint_info(model=server.url)["models"]) == 6


def test_a_model_by_its_name(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below ``HF_INFERENCE_ENDPOINT``, which the client reads when it is imported."""
    monkeypatch.setattr(huggingface_hub.constants, "INFERENCE_ENDPOINT", server.url)
    client = huggingface_hub.InferenceClient("digits", provider="hf-inference", token="none")

    assert client.get_endpoint_info()["model_id"] == "digits"


def test_the_base_url_is_a_model_to_the_client(server: LocalServer) -> None:
    """As ``base_url``, for those who know OpenAI's client; headers of ours travel, too."""
    client = huggingface_hub.InferenceClient(base_url=server.url, api_key="none", headers={"X-Priority": "urgent"})
    with pytest.raises(BadRequestError, match="X-Priority: expected high, normal or low"):
        client.image_classification(PICTURE)


async def test_the_async_client(server: LocalServer) -> None:
    """Asks the same."""
    async with huggingface_hub.AsyncInferenceClient(model=server.url, token="none") as client:
        picture, sound, cosines = await asyncio.gather(
            client.image_classification(PICTURE),
            client.audio_classification(SOUND),
            client.sentence_similarity("the cat", ["the cat"]),
        )

    assert (picture[0].label, sound[0].label) == ("4", "eight")
    assert cosines == pytest.approx([1.0])


@pytest.fixture
def factory() -> Iterator[Callable[[NumpyService], None]]:
    """Connects the async client to an application in this process."""

    def connect(service: NumpyService) -> None:
        transport = httpx2.ASGITransport(create_app(*both(service)))
        huggingface_hub.set_async_client_factory(lambda: httpx2.AsyncClient(transport=transport))

    yield connect
    huggingface_hub.set_async_client_factory(httpx2.AsyncClient)


@pytest.mark.parametrize(
    ("failure", "status"), [(QueueFull("no room for another one", 2.0), 429), (ModelUnavailable("it is starting"), 503)]
)
async def test_refusals_are_shown_at_once(
    factory: Callable[[NumpyService], None], failure: ServeAppError, status: int
) -> None:
    """The client does not come again by itself: it raises, with the status, the reason and when to."""
    service = NumpyService()
    service.refuse = failure
    factory(service)
    with pytest.raises(HfHubHTTPError, match=str(failure)) as error:
        await huggingface_hub.AsyncInferenceClient(
            model="http://server/models/sentences", token="none"
        ).feature_extraction("a")

    response: httpx2.Response = error.value.response
    assert (response.status_code, int(response.headers["retry-after"]) >= 1) == (status, True)
