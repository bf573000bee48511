"""A real server, asked by real clients."""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import huggingface_hub
import numpy as np
import onnx_models
import openai
import pytest
import soundfile
import tritonclient.http
from deployments.conftest import held_out
from PIL import Image
from serve_process import ROOT, ServeProcess

pytestmark = pytest.mark.cluster

SENTENCES: list[str] = [
    item["text"] for item in json.loads((ROOT / "tests" / "data" / "minilm" / "sentences.json").read_text())
]
REFERENCE = np.load(ROOT / "tests" / "data" / "minilm" / "reference.npy")


def png(size: int = 28) -> bytes:
    """A blank picture."""
    buffer = io.BytesIO()
    Image.new("L", (size, size), 255).save(buffer, "PNG")
    return buffer.getvalue()


def test_pictures_are_recognised(client: httpx.Client) -> None:
    """Every format, mode, size and polarity among the held-out pictures, sent as a user would."""
    files = held_out("digits")

    def top(path: Any) -> bool:
        answer = client.post("/v1/models/digits/predict", files={"file": path.read_bytes()})
        assert answer.status_code == 200, answer.text
        return bool(answer.json()[0]["label"] == path.name[0])

    with ThreadPoolExecutor(8) as pool:
        right = sum(pool.map(top, files))
    assert right / len(files) >= 0.97


def test_the_routers_own_port_answers_as_ray_serves_does(client: httpx.Client, direct: httpx.Client) -> None:
    """The protocols and their errors, and a request id."""
    picture = held_out("digits")[0].read_bytes()
    for model in ("digits", "nothing"):
        answers = [each.post(f"/v1/models/{model}/predict", content=picture) for each in (client, direct)]
        assert answers[0].status_code == answers[1].status_code
        assert answers[0].json() == answers[1].json()
        assert all("x-request-id" in answer.headers for answer in answers)


def test_large_tensors_arrive_whole_on_the_routers_own_port(direct: httpx.Client) -> None:
    """They are read in place, and travel on from there."""
    host = f"{direct.base_url.host}:{direct.base_url.port}"
    with tritonclient.http.InferenceServerClient(host, connection_timeout=30, network_timeout=30) as client:
        rng = np.random.default_rng(7)
        for _ in range(3):
            arrays = [rng.integers(0, 1000, (1024, 16), np.int32) for _ in range(2)]
            inputs = [tritonclient.http.InferInput(f"INPUT{at}", arrays[at].shape, "INT32") for at in range(2)]
            for tensor, array in zip(inputs, arrays, strict=True):
                tensor.set_data_from_numpy(array)
            answer = client.infer("sum_diff", inputs)
            assert np.array_equal(arrays[0] + arrays[1], answer.as_numpy("OUTPUT0"))
            assert np.array_equal(arrays[0] - arrays[1], answer.as_numpy("OUTPUT1"))


def test_speech_is_recognised(client: httpx.Client) -> None:
    """Every container and rate among the held-out clips."""
    files = held_out("speech")

    def top(path: Any) -> bool:
        answer = client.post("/v1/models/spoken-digits/predict", files={"file": path.read_bytes()})
        assert answer.status_code == 200, answer.text
        return bool(answer.json()[0]["label"] == path.name.split("_")[0])

    with ThreadPoolExecutor(8) as pool:
        right = sum(pool.map(top, files))
    assert right / len(files) >= 0.95


def test_sentences_are_embedded_as_by_the_reference(client: httpx.Client) -> None:
    """Batched with whatever else is on its way, every vector equals the reference implementation's.

    A busy machine would let the fallback answer some.
    """
    exact = {"x-fallback": "never", "x-timeout-ms": "30000"}

    def embed(sentence: str) -> Any:
        answer = client.post("/v1/models/minilm/predict", json={"inputs": sentence}, headers=exact)
        assert answer.status_code == 200, answer.text
        return np.ravel(answer.json())

    with ThreadPoolExecutor(16) as pool:
        vectors = np.array(list(pool.map(embed, SENTENCES)))
    assert np.sum(vectors * REFERENCE, axis=1).min() >= 0.9999


def test_the_light_variant_answers_when_asked_for(client: httpx.Client) -> None:
    """int8 is close to the exact model and not it."""
    body = {"inputs": SENTENCES[0], "parameters": {"variant": "int8"}}
    answer = client.post("/v1/models/minilm/predict", json=body)
    assert answer.status_code == 200
    cosine = float(np.ravel(answer.json()) @ REFERENCE[0])
    assert 0.9 < cosine < 0.99999


def test_text_is_classified_by_labels_that_the_request_names(server: ServeProcess) -> None:
    """Zero-shot, by Hugging Face's client: the label that means the most similar thing wins."""
    client = huggingface_hub.InferenceClient(model=f"{server.url}/v1/models/minilm/predict")
    answer = client.zero_shot_classification("The team scored in the last minute", ["cooking", "football"])
    assert [item.label for item in answer] == ["football", "cooking"]


def test_sentences_are_compared_with_another(server: ServeProcess) -> None:
    """By Hugging Face's client: one cosine per sentence, in their order, as the reference gives."""
    client = huggingface_hub.InferenceClient(model=f"{server.url}/v1/models/minilm/predict")
    answer = client.sentence_similarity(SENTENCES[0], other_sentences=SENTENCES[:4])
    np.testing.assert_allclose(answer, REFERENCE[:4] @ REFERENCE[0], atol=1e-3)


def test_openais_client_embeds(server: ServeProcess) -> None:
    """Unmodified, with its own default encoding."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    answer = client.embeddings.create(model="minilm", input=SENTENCES[:3])
    vectors = np.array([item.embedding for item in answer.data])
    assert np.sum(vectors * REFERENCE[:3], axis=1).min() >= 0.9999
    assert answer.usage.prompt_tokens > 0
    assert "minilm" in {model.id for model in client.models.list()}


def test_hugging_faces_client_classifies_pictures(server: ServeProcess) -> None:
    """Unmodified, pointed at the model's predict route."""
    path = next(path for path in held_out("digits") if path.suffix == ".png")
    client = huggingface_hub.InferenceClient(model=f"{server.url}/v1/models/digits/predict")
    answer = client.image_classification(path.read_bytes())
    assert answer[0].label == path.name[0]


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_tritons_client_infers(server: ServeProcess, binary: bool) -> None:
    """Unmodified, with metadata, priority and timeout."""
    client = tritonclient.http.InferenceServerClient(server.url.removeprefix("http://"))
    assert client.is_server_ready()
    assert client.is_model_ready("sum_diff")
    assert [tensor["name"] for tensor in client.get_model_metadata("sum_diff")["inputs"]] == ["INPUT0", "INPUT1"]
    left, right = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)
    inputs = []
    for name, values in (("INPUT0", left), ("INPUT1", right)):
        tensor = tritonclient.http.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(values, binary_data=binary)
        inputs.append(tensor)
    outputs = [tritonclient.http.InferRequestedOutput(name, binary_data=binary) for name in ("OUTPUT0", "OUTPUT1")]
    answer = client.infer("sum_diff", inputs, outputs=outputs, request_id="7", priority=1, timeout=5_000_000)
    assert answer.get_response()["id"] == "7"
    assert answer.as_numpy("OUTPUT0").tolist() == (left + right).tolist()
    assert answer.as_numpy("OUTPUT1").tolist() == (left - right).tolist()
    client.close()


def test_own_models_need_five_lines(client: httpx.Client) -> None:
    """A picture, a sound and a text, each answered by a model that only a few lines of YAML describe."""
    buffer = io.BytesIO()
    Image.new("RGB", (100, 60), (0, 250, 0)).save(buffer, "JPEG")
    colour = client.post("/v1/models/colours/predict", files={"file": buffer.getvalue()})
    assert colour.json()[0]["label"] == "green"

    buffer = io.BytesIO()
    soundfile.write(buffer, np.tile([0.5, -0.5], 4000), 8000, format="WAV")
    loudness = client.post("/v1/models/loudness/predict", files={"file": buffer.getvalue()})
    assert loudness.json()[0]["label"] == "magnitude"

    words = client.post("/v1/models/words/predict", json={"inputs": ["one", "one two"]})
    table = onnx_models.token_table()
    np.testing.assert_allclose(words.json(), [table[2], (table[2] + table[3]) / 2], atol=1e-5)


def test_a_bad_entry_fails_alone_among_many(client: httpx.Client) -> None:
    """One in four makes the model fail; all others of the same batches are answered rightly."""

    def infer(number: int) -> tuple[int, int]:
        value = -1.0 if number % 4 == 0 else float(number % 3)
        body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [value]}]}
        return number, client.post("/v2/models/fail_on_negative/infer", json=body).status_code

    with ThreadPoolExecutor(16) as pool:
        statuses = dict(pool.map(infer, range(64)))
    assert statuses == {number: 500 if number % 4 == 0 else 200 for number in range(64)}


def test_bad_media_fail_alone_among_many(client: httpx.Client) -> None:
    """A truncated picture is its own client's problem."""
    good = png()

    def predict(number: int) -> int:
        content = good[: len(good) // 2] if number % 4 == 0 else good
        return client.post(
            "/v1/models/digits/predict", content=content, headers={"content-type": "image/png"}
        ).status_code

    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(predict, range(32)))
    assert statuses == [400 if number % 4 == 0 else 200 for number in range(32)]


WAV_HEADER_OF_TEN_HOURS = (
    b"RIFF\xff\xff\xff\x7fWAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x80\x3e\x00\x00\x00\x7d\x00\x00\x02\x00\x10\x00"
    b"data\x00\xa2\x94\x44" + bytes(1000)
)


def infer_body(**changes: Any) -> dict[str, Any]:
    """A request for `sum_diff`, with changes to its first input."""
    tensor = {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": list(range(16))}
    return {"inputs": [{**tensor, **changes}, {**tensor, "name": "INPUT1"}]}


@pytest.mark.parametrize(
    ("path", "request_", "status", "words"),
    [
        ("/v1/models/digits/predict", {"content": b""}, 400, "empty"),
        (
            "/v1/models/digits/predict",
            {"content": b"not a picture", "headers": {"content-type": "text/plain"}},
            415,
            "image",
        ),
        (
            "/v1/models/spoken-digits/predict",
            {"content": WAV_HEADER_OF_TEN_HOURS, "headers": {"content-type": "audio/wav"}},
            400,
            "",
        ),
        ("/v2/models/nothing/infer", {"json": infer_body()}, 404, "nothing"),
        ("/v2/models/sum_diff/versions/9/infer", {"json": infer_body()}, 404, "9"),
        ("/v2/models/sum_diff/infer", {"json": infer_body(datatype="FP32")}, 400, "INPUT0"),
        ("/v2/models/sum_diff/infer", {"json": infer_body(shape=[1, 8])}, 400, "INPUT0"),
        ("/v2/models/sum_diff/infer", {"json": infer_body(shape=[-1, 16])}, 400, "shape"),
        ("/v2/models/sum_diff/infer", {"json": infer_body(shape=[2**62, 16])}, 400, "shape"),
        ("/v2/models/sum_diff/infer", {"json": infer_body(name="INPUT1")}, 400, "INPUT1"),
        ("/v2/models/sum_diff/infer", {"json": infer_body(name="other")}, 400, "other"),
        ("/v2/models/sum_diff/infer", {"content": b"\xff\xfe{"}, 400, ""),
        ("/v2/models/sum_diff/infer", {"content": b"[" * 100_000}, 400, ""),
        ("/v2/models/sum_diff/infer", {"json": infer_body() | {"parameters": {"priority": -9}}}, 400, "priority"),
        ("/v2/models/sum_diff/infer", {"json": infer_body() | {"parameters": {"timeout": -1}}}, 400, "timeout"),
        ("/v2/models/sum_diff/infer", {"json": infer_body(), "headers": {"x-timeout-ms": "0"}}, 400, "X-Timeout-Ms"),
        ("/v2/models/sum_diff/infer", {"json": infer_body(), "headers": {"x-timeout-ms": "1e300"}}, 400, "24 hours"),
        ("/v2/models/sum_diff/infer", {"json": infer_body(), "headers": {"x-priority": "urgent"}}, 400, "X-Priority"),
        ("/v2/models/sum_diff/infer", {"content": bytes(5 * 2**20)}, 413, ""),
        (
            "/v2/models/sum_diff/infer",
            {"json": infer_body(parameters={"binary_data_size": 64}) | {}, "headers": {}},
            400,
            "",
        ),
    ],
)
def test_bad_requests_get_a_clear_answer(
    client: httpx.Client, path: str, request_: dict[str, Any], status: int, words: str
) -> None:
    """The right status, our error shape, the fault by name, and never a traceback."""
    answer = client.post(path, **request_)
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error", "code"}
    assert words in body["error"]
    assert "Traceback" not in answer.text


def test_a_deadline_that_cannot_be_met_is_said_so(client: httpx.Client) -> None:
    """Refused at once or ended at the deadline, but never answered late."""
    answer = client.post("/v1/models/minilm/predict", json={"inputs": "word " * 400}, headers={"x-timeout-ms": "0.2"})
    assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")


def test_priority_is_honoured_and_said(client: httpx.Client) -> None:
    """The class asked for is the class served in."""
    answer = client.post("/v2/models/sum_diff/infer", json=infer_body(), headers={"x-priority": "high"})
    assert answer.status_code == 200
    assert answer.headers["x-priority"] == "high"


def test_the_front_page_shows_a_line_per_model(client: httpx.Client) -> None:
    """And every line names its model."""
    page = client.get("/").text
    assert all(name in page for name in ("digits", "spoken-digits", "minilm", "sum_diff"))


def test_metrics_tell_what_happened(client: httpx.Client) -> None:
    """Requests by model, class and outcome; queue, batch and latency."""
    client.post("/v2/models/sum_diff/infer", json=infer_body())
    page = client.get("/metrics").text
    assert 'serve_app_requests_total{model="sum_diff",outcome="ok",priority="normal"}' in page
    for name in ("queue_entries", "queue_seconds_bucket", "batch_rows_bucket", "request_seconds_bucket", "replicas"):
        assert f"serve_app_{name}" in page


def test_status_shows_queues_replicas_and_latency(client: httpx.Client) -> None:
    """For people and dashboards."""
    status = client.get("/status").json()
    assert status["ready"] is True
    assert len(status["models"]["minilm"]["replicas"]) == 1
    assert status["models"]["minilm"]["latency_s"]
