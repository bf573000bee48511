"""Clients of others, as they come: on Ray Serve's port and on the router's own."""

from __future__ import annotations

from pathlib import Path

import httpx
import huggingface_hub
import numpy as np
import openai
import pytest
from curl import curl, needs_curl
from deployments.conftest import held_out

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),  # Hugging Face's way of calling httpx
]


@pytest.fixture(params=["client", "direct"])
def url(request: pytest.FixtureRequest) -> str:
    """Either port."""
    made: httpx.Client = request.getfixturevalue(request.param)
    return str(made.base_url).rstrip("/")


@needs_curl
@pytest.mark.parametrize("expect", [[], ["--header", "Expect: 100-continue"]])
@pytest.mark.parametrize("args", [["--data-binary", "@-"], ["--request", "POST", "--upload-file", "-"]])
def test_curl_from_a_pipe(url: str, args: list[str], expect: list[str]) -> None:
    """In chunks, and asking first or not; nobody says what it is."""
    picture = held_out("digits")[0]
    chunked = ["--header", "Transfer-Encoding: chunked"]
    status, body = curl(f"{url}/models/digits", *args, *chunked, *expect, stdin=picture.read_bytes())

    assert (status, len(body)) == (200, 5)


@needs_curl
def test_curl_with_large_files(url: str, tmp_path: Path) -> None:
    """It asks before it sends more than a megabyte; too much is refused in words."""
    big = tmp_path / "big.wav"
    head = bytearray(next(path for path in held_out("speech") if path.suffix == ".wav").read_bytes()[:44])
    head[4:8] = head[40:44] = (2 * 2**20).to_bytes(4, "little")
    big.write_bytes(bytes(head) + bytes(2 * 2**20))
    asking = ["--data-binary", f"@{big}", "--header", "Expect: 100-continue"]
    status, body = curl(f"{url}/models/spoken-digits", *asking)
    assert (status, "error" in body) in {(200, False), (400, True)}  # heard, or longer than this model hears

    big.write_bytes(bytes(5 * 2**20))
    status, body = curl(f"{url}/models/spoken-digits", *asking)
    assert (status, body["code"]) == (413, "payload_too_large")


def test_hugging_faces_client(url: str) -> None:
    """A sentence is most similar to what means the same; labels of the request rank."""
    client = huggingface_hub.InferenceClient(model=f"{url}/models/minilm", token="none")
    cosines = client.sentence_similarity("a happy person", ["a very happy person", "it is sunny today"])
    labels = client.zero_shot_classification("I would like to book a flight to Rome", ["cooking", "travel"])
    whole = client.feature_extraction("a text", normalize=True)
    cut = client.feature_extraction("a text", normalize=True, dimensions=64)

    assert cosines[0] > 0.9
    assert cosines[1] < 0.3
    assert labels[0].label == "travel"
    assert np.allclose(cut, whole[:, :64] / np.linalg.norm(whole[:, :64]), atol=1e-6)


def test_openais_client(url: str) -> None:
    """Vectors, the light variant, and errors as its own exceptions."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as api:
        exact = api.embeddings.create(model="minilm", input=["a text"], dimensions=64)
        light = api.embeddings.with_raw_response.create(
            model="minilm", input="a text", extra_headers={"X-Variant": "int8", "X-Priority": "high"}
        )
        with pytest.raises(openai.NotFoundError, match="there is no 'nothing' here"):
            api.embeddings.create(model="nothing", input="a text")
        with pytest.raises(openai.APIStatusError) as error:
            api.embeddings.create(model="minilm", input="a" * 5 * 2**20)

    assert len(exact.data[0].embedding) == 64
    assert (light.headers["x-variant"], light.headers["x-priority"]) == ("int8", "high")
    assert (error.value.status_code, error.value.code) == (413, "payload_too_large")


def test_the_description_and_its_page(url: str) -> None:
    """On either port, with all that the page needs."""
    with httpx.Client(base_url=url) as client:
        document = client.get("/openapi.json").json()
        script = client.get("/docs/swagger-ui-bundle.js")

        assert "minilm" in document["paths"]["/v1/models/{model}/predict"]["post"]["parameters"][0]["schema"]["enum"]
        assert "/docs/start.js" in client.get("/docs").text
        assert (script.status_code, len(script.content) > 1_000_000) == (200, True)
