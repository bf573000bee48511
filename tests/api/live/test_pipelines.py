"""Pipelines of real models, by every API."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import numpy as np
import onnx_models
import pytest
import python_models
import tritonclient.http as triton
from client.both_clients import EitherClient
from local_server import LocalServer, make_tokenizer
from PIL import Image

from api.live.conftest import PICTURE, SOUND
from serve_app.api.http_app import HttpSettings
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.cli.key_file import add
from serve_app_client import (
    AsyncClient,
    Client,
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    pipeline_item,
)

PIPELINES: list[dict[str, Any]] = [
    {
        "name": "same-digit",
        "inputs": {"picture": {"type": "image"}, "sound": {"type": "audio"}},
        "steps": [
            {"name": "drawn", "model": "digits", "input": "picture", "parameters": {"top_k": 1}},
            {"name": "spoken", "model": "spoken-digits", "input": "sound", "parameters": {"top_k": 1}},
            {"name": "seen", "switch": "drawn.0.label", "cases": {4: {"value": "four"}}, "default": "drawn.0.label"},
            {"name": "agree", "equal": ["seen", "spoken.0.label"]},
        ],
        "outputs": {"agree": "agree", "seen": "seen", "heard": "spoken.0.label"},
    },
    {
        "name": "passages",
        "inputs": {"texts": {"type": "text", "many": True}},
        "steps": [
            {"name": "each", "model": "words", "map": "texts"},
            {"name": "all", "concat": ["each"]},
        ],
        "outputs": {"vectors": "all"},
        "max_parts": 4,
    },
    {
        "name": "twice",
        "inputs": {"x": {"type": "tensor", "datatype": "FP32", "shape": [-1, 2]}},
        "steps": [
            {"name": "first", "model": "one", "input": "x"},
            {"name": "second", "model": "one", "input": "first.y"},
        ],
        "outputs": {"y": "second.y", "middle": "first"},
    },
]


def configuration(folder: Path) -> dict[str, Any]:
    """Models and pipelines."""
    onnx_models.make(folder / "words" / "1" / "model.onnx", "seq_mean")
    make_tokenizer(folder / "words" / "tokenizer.json")
    onnx_models.make(folder / "one" / "1" / "model.onnx", "add_one")
    return {
        "models": [
            {"name": "digits", "task": "image-classification", "path": "models/digits"},
            {"name": "spoken-digits", "task": "audio-classification", "path": "models/spoken-digits"},
            {
                "name": "words",
                "task": "feature-extraction",
                "path": str(folder / "words"),
                "processor": {"max_length": 16},
            },
            {"name": "one", "path": str(folder / "one")},
        ],
        "pipelines": PIPELINES,
    }


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server that has them, and lets everybody unload models."""
    settings = HttpSettings(open_administration=True)
    folder = tmp_path_factory.mktemp("models")
    router = {"jobs": {"path": str(folder / "jobs.sqlite")}}
    with LocalServer({**configuration(folder), "router": router}, settings) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalServer, dict[str, str]]]:
    """A server with keys, and the headers of one that may use one pipeline."""
    folder = tmp_path_factory.mktemp("models")
    key = add(folder / "keys.yaml", "team", {"models": ["twice"]})
    args = configuration(folder) | {"router": {"access": {"keys_file": str(folder / "keys.yaml")}}}
    with LocalServer(args) as running:
        yield running, {"X-API-Key": key}


def encoded(path: Path) -> str:
    """A file in base64."""
    return base64.b64encode(path.read_bytes()).decode()


def predict(server: LocalServer, pipeline: str, **request: Any) -> httpx.Response:
    """Ask a pipeline."""
    return httpx.post(f"{server.url}/v1/models/{pipeline}/predict", timeout=60.0, **request)


def test_json_by_the_names_of_inputs(pipelines: LocalServer) -> None:
    """Files as an object or a string; answers by the names of outputs."""
    for picture in ({"b64": encoded(PICTURE)}, encoded(PICTURE), f"data:image/jpeg;base64,{encoded(PICTURE)}"):
        told = predict(pipelines, "same-digit", json={"picture": picture, "sound": encoded(SOUND)})
        assert told.json() == {"agree": False, "seen": "four", "heard": "eight"}
    assert told.headers["x-priority"] == "normal"


def test_a_form_with_a_part_for_each_input(pipelines: LocalServer) -> None:
    """As curl -F sends it; a list is several parts of one name."""
    files = {"picture": PICTURE.read_bytes(), "sound": SOUND.read_bytes()}
    assert predict(pipelines, "same-digit", files=files).json()["heard"] == "eight"
    texts = [("texts", (None, text)) for text in ("the cat", "a dog")]
    by_form = predict(pipelines, "passages", files=texts).json()
    assert by_form == predict(pipelines, "passages", json={"texts": ["the cat", "a dog"]}).json()
    assert np.shape(by_form["vectors"]) == (2, 8)


def test_parts_of_a_form_may_have_no_file_name(pipelines: LocalServer) -> None:
    """A file is the bytes that were sent then, too; and text is UTF-8, or refused."""
    files = {"picture": (None, PICTURE.read_bytes()), "sound": (None, SOUND.read_bytes())}
    assert predict(pipelines, "same-digit", files=files).json()["seen"] == "four"
    texts = [("texts", (None, "Größe".encode("latin-1")))]
    answer = predict(pipelines, "passages", files=texts)
    assert (answer.status_code, answer.json()["error"]) == (400, "texts[0]: text is not valid UTF-8")


def test_a_form_that_was_cut_off_is_refused(pipelines: LocalServer) -> None:
    """Its last text would be missing in an answer that says 200."""
    text = b'--b\r\nContent-Disposition: form-data; name="texts"\r\n\r\n%b\r\n'
    cut = text % b"the cat" + (text % b"a dog").removesuffix(b"\r\n")
    answer = predict(pipelines, "passages", content=cut, headers={"Content-Type": "multipart/form-data; boundary=b"})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert answer.json()["error"] == "the multipart form cannot be read: it ends before its last boundary"


def test_each_passage_is_embedded_as_it_would_be_alone(pipelines: LocalServer) -> None:
    """A map gives what single requests give."""
    texts = ["the cat", "a dog sat", "sun"]
    alone = [httpx.post(f"{pipelines.url}/v1/models/words/predict", json={"inputs": text}).json()[0] for text in texts]
    together = predict(pipelines, "passages", json={"texts": texts}).json()["vectors"]
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_tensors_pass_from_step_to_step(pipelines: LocalServer) -> None:
    """In JSON, in V2's JSON and in binary."""

    def answered(client: triton.InferenceServerClient) -> int:
        """So many, those of tests that ran before included."""
        count: int = client.get_inference_statistics("twice")["model_stats"][0]["inference_stats"]["success"]["count"]
        return count

    with triton.InferenceServerClient(urlsplit(pipelines.url).netloc) as client:
        before = answered(client)
    assert predict(pipelines, "twice", json={"x": [[1, 2], [3, 4]]}).json() == {
        "y": [[3.0, 4.0], [5.0, 6.0]],
        "middle": [[2.0, 3.0], [4.0, 5.0]],
    }
    given = np.arange(6, dtype=np.float32).reshape(3, 2)
    tensor = triton.InferInput("x", [3, 2], "FP32")
    with triton.InferenceServerClient(urlsplit(pipelines.url).netloc) as client:
        for binary in (True, False):
            tensor.set_data_from_numpy(given, binary_data=binary)
            outputs = [triton.InferRequestedOutput("y", binary_data=binary)]
            np.testing.assert_array_equal(client.infer("twice", [tensor], outputs=outputs).as_numpy("y"), given + 2)
        assert client.get_model_metadata("twice")["platform"] == "pipeline"
        assert client.is_model_ready("twice")
        assert "twice" in [each["name"] for each in client.get_model_repository_index()]
        assert answered(client) - before == 3


def test_files_are_bytes_to_v2(pipelines: LocalServer) -> None:
    """Over HTTP as binary data, and over gRPC; other outputs than tensors are JSON."""
    request = pb.ModelInferRequest(model_name="same-digit", model_version="1")
    for name, path in (("picture", PICTURE), ("sound", SOUND)):
        request.inputs.add(name=name, datatype="BYTES", shape=[1]).contents.bytes_contents.append(path.read_bytes())
    with grpc.insecure_channel(pipelines.grpc) as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer = pb.ModelInferResponse.FromString(call(request.SerializeToString(), timeout=60))
    outputs = {
        output.name: content[4:] for output, content in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }
    assert outputs == {"agree": b"false", "seen": b'"four"', "heard": b'"eight"'}


@pytest.mark.parametrize(
    ("pipeline", "body", "expected"),
    [
        ("same-digit", {"picture": ""}, "sound missing; pipeline 'same-digit' takes picture, sound"),
        ("same-digit", {"picture": "", "sound": "", "x": 1}, "'x' is no input; pipeline 'same-digit' takes"),
        ("same-digit", {"picture": "", "sound": "UklGRg=="}, "picture: the file is empty"),
        ("same-digit", {"picture": {"b65": ""}, "sound": ""}, 'picture: expected the image file in base64, as {"b64"'),
        ("same-digit", [], "the body: expected a JSON object"),
        ("same-digit", {"picture": "aGVsbG8=", "sound": "UklGRg=="}, "step '"),
        ("passages", {"texts": "one"}, "texts: expected a list"),
        ("passages", {"texts": []}, "texts: expected at least one"),
        ("passages", {"texts": ["a"] * 5}, "texts: more than 4 parts (max_parts)"),
        ("passages", {"texts": ["a", 5]}, "texts[1]: expected a text"),
        ("twice", {"x": [1, 2]}, "x: expected FP32 values in lists, 2 deep"),
        ("twice", {"x": [[1, 2, 3]]}, "x: expected the shape [-1, 2], got [1, 3]"),
        ("twice", {"x": [[1, 2], [3]]}, "x: nested lists have unequal lengths"),
        ("twice", {"x": [[1, 1e99]]}, "x: a number is too large for FP32"),
        ("twice", {"x": []}, "x: expected the shape [-1, 2], got [0, 0]"),
    ],
)
def test_what_a_pipeline_does_not_take_is_told(pipelines: LocalServer, pipeline: str, body: Any, expected: str) -> None:
    """As a fault of the request, by the name of the input or the step."""
    told = predict(pipelines, pipeline, json=body)
    assert told.status_code == 400
    assert expected in told.json()["error"]


def test_parts_of_a_form_are_those_of_the_pipeline(pipelines: LocalServer) -> None:
    """No other, none missing, none twice."""
    for files, expected in (
        ([("picture", b"x")], "sound missing"),
        ([("picture", b"x"), ("picture", b"x"), ("sound", b"x")], "picture: 2 parts of this name; expected one"),
        ([("picture", b"x"), ("sound", b"x"), ("text", b"x")], "'text' is no input"),
    ):
        told = predict(pipelines, "same-digit", files=files)
        assert (told.status_code, expected in told.json()["error"]) == (400, True), told.json()
    for text, content_type in (("x", "text/plain"), ("x", "image/png")):
        told = predict(pipelines, "same-digit", content=text, headers={"Content-Type": content_type})
        assert (told.status_code, told.json()["code"]) == (415, "unsupported_media")


def test_a_deadline_that_the_steps_cannot_meet_is_refused(pipelines: LocalServer) -> None:
    """Once it is known what they cost."""
    for _ in range(3):
        assert predict(pipelines, "twice", json={"x": [[1, 2]]}).status_code == 200
    told = predict(pipelines, "twice", json={"x": [[1, 2]]}, headers={"X-Timeout-Ms": "0.001"})
    assert (told.status_code, told.json()["code"]) == (504, "deadline_exceeded")


def test_where_pipelines_are_shown(pipelines: LocalServer) -> None:
    """The overview, the description, the status, the metrics, and a picture."""
    assert predict(pipelines, "twice", json={"x": [[1, 2]]}).status_code == 200
    overview = httpx.get(pipelines.url).text
    assert "same-digit (version 1, pipeline, ready)" in overview
    assert "/v1/models/same-digit/predict -F picture=@picture.png -F sound=@sound.wav" in overview
    shown = httpx.get(f"{pipelines.url}/status").json()["pipelines"]["twice"]
    assert (shown["ready"], shown["in_work"], list(shown["steps"])) == (True, 0, ["first", "second"])
    metrics = httpx.get(f"{pipelines.url}/metrics").text
    assert 'serve_app_pipeline_requests_total{outcome="ok",pipeline="twice",priority="normal"}' in metrics
    assert 'serve_app_pipeline_step_seconds_count{pipeline="twice",step="second"}' in metrics
    assert "<h3>twice</h3>" in httpx.get(f"{pipelines.url}/docs").text
    examples = httpx.get(f"{pipelines.url}/openapi.json").json()["paths"]["/v1/models/{model}/predict"]
    example = examples["post"]["requestBody"]["content"]["application/json"]["examples"]["twice"]["value"]
    assert predict(pipelines, "twice", json=example).status_code == 200


def test_a_pipeline_whose_model_is_unloaded_is_unavailable(pipelines: LocalServer) -> None:
    """Until it is loaded again; the pipeline itself cannot be."""
    repository = f"{pipelines.url}/v2/repository/models"
    told = httpx.post(f"{repository}/passages/unload")
    assert (told.status_code, told.json()["error"]) == (
        501,
        "'passages' is a pipeline: redeploy, or load and unload its models: words",
    )
    assert httpx.post(f"{repository}/words/unload", timeout=60).status_code == 200
    told = predict(pipelines, "passages", json={"texts": ["the cat"]})
    assert (told.status_code, told.headers["retry-after"]) == (503, "1")
    assert told.json()["error"] == "step 'each': its model, or the version that it names, is not served now"
    assert httpx.get(f"{pipelines.url}/v2/models/passages/ready").status_code == 503
    assert httpx.post(f"{repository}/words/load", timeout=60).status_code == 200
    assert predict(pipelines, "passages", json={"texts": ["the cat"]}).status_code == 200


@pytest.fixture(params=["sync", "async"])
async def client(request: pytest.FixtureRequest, pipelines: LocalServer) -> AsyncIterator[EitherClient]:
    """This project's client, of each kind in turn."""
    made: type[Client] | type[AsyncClient] = Client if request.param == "sync" else AsyncClient
    async with EitherClient(made(pipelines.url)) as either:
        yield either


async def test_our_client_sends_files_by_the_names_of_inputs(client: EitherClient) -> None:
    """As paths, bytes, open files and images of Pillow; and is told how the request was served."""
    with SOUND.open("rb") as opened, Image.open(PICTURE) as image:
        for picture, sound in ((PICTURE, SOUND.read_bytes()), (image, opened), (PICTURE.read_bytes(), SOUND)):
            answer = await client.call(
                "run_pipeline", "same-digit", {"picture": picture, "sound": sound}, priority="high", request_id="r-1"
            )
            assert answer.outputs == {"agree": False, "seen": "four", "heard": "eight"}
            assert answer["heard"] == "eight"
    assert (answer.served.priority, answer.served.request_id) == ("high", "r-1")


async def test_our_client_sends_lists_and_tensors(client: EitherClient) -> None:
    """An input that takes many is a list; arrays are tensors, which `infer` sends in binary."""
    texts = ["the cat", "a dog sat"]
    vectors = (await client.call("run_pipeline", "passages", {"texts": texts}))["vectors"]
    for text, vector in zip(texts, vectors, strict=True):
        alone = await client.call("embed", text, "words")
        np.testing.assert_allclose([vector], alone, rtol=1e-5)
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    for given in (x, x.tolist(), x.astype(np.float64), x.T.copy().T):
        answer = await client.call("run_pipeline", "twice", {"x": given}, version="1")
        assert answer.outputs == {"y": (x + 2).tolist(), "middle": (x + 1).tolist()}
    np.testing.assert_array_equal((await client.call("infer", "twice", {"x": x}))["y"], x + 2)


async def test_our_client_tells_what_a_pipeline_does_not_take(client: EitherClient) -> None:
    """As of a model."""
    with pytest.raises(InvalidRequest, match="sound missing; pipeline 'same-digit' takes picture, sound"):
        await client.call("run_pipeline", "same-digit", {"picture": PICTURE})
    with pytest.raises(InvalidRequest, match="step 'drawn': the content"):
        await client.call("run_pipeline", "same-digit", {"picture": b"nothing", "sound": SOUND})
    with pytest.raises(ModelNotFound, match="no version '2'"):
        await client.call("run_pipeline", "twice", {"x": [[1, 2]]}, version="2")
    with pytest.raises(DeadlineExceeded):
        await client.call("run_pipeline", "twice", {"x": [[1, 2]]}, timeout=1e-9)
    with pytest.raises(TypeError, match="not JSON serializable: bytes"):
        await client.call("run_pipeline", "twice", {"x": {"inside": b"1"}})
    with pytest.raises(FileNotFoundError):
        await client.call("run_pipeline", "same-digit", {"picture": PICTURE.with_name("none"), "sound": SOUND})
    with pytest.raises(TypeError, match=r"inputs are given by name, .* not as PosixPath"):
        await client.call("run_pipeline", "same-digit", PICTURE)


async def test_our_client_takes_no_option_that_there_is_not(client: EitherClient) -> None:
    """One that is left out without a word may be the deadline."""
    with pytest.raises(TypeError, match="there is no option timeout_s; there are priority, timeout, variant"):
        await client.call("infer", "twice", {"x": np.ones((1, 2), np.float32)}, timeout_s=1.0)
    with pytest.raises(TypeError, match="there is no option timout"):
        await client.call("embed", "a text", "words", timout=1.0)


async def test_our_client_makes_jobs_of_pipelines(client: EitherClient) -> None:
    """An item for each request."""
    items = [pipeline_item("same-digit", {"picture": PICTURE, "sound": SOUND}, custom_id="both")]
    job = await client.call("submit_job", [*items, pipeline_item("twice", {"x": [[1, 2]]})])
    assert (await client.call("wait_for_job", job.id, 60.0)).state == "COMPLETED"
    results = client.client.job_results(job.id)
    found = [each async for each in results] if isinstance(results, AsyncIterator) else [*results]
    assert [(each.custom_id, each.value) for each in found] == [
        ("both", {"agree": False, "seen": "four", "heard": "eight"}),
        ("", {"y": [[3.0, 4.0]], "middle": [[2.0, 3.0]]}),
    ]


_WORDS = """
    import numpy as np

    class Words:
        inputs = {"x": ("float32", [-1, 1])}
        outputs = {"y": ("float32", [-1, 1])}

        def preprocess(self, request):
            return {"x": np.zeros((1, 1), "float32")}

        def predict(self, batch):
            return {"y": batch["x"]}

        def postprocess(self, request, outputs):
            text = request.inputs if isinstance(request.inputs, str) else request.inputs[0]
            return [{"word": word} for word in text.split()]
"""


def test_what_a_class_lists_is_a_list_of_any_length(tmp_path: Path) -> None:
    """One thing that it found in a text is the first of one."""
    python_models.write(tmp_path / "words", _WORDS)
    tasks = {"of-json": "json", "of-texts": "text-classification"}
    common = {"path": str(tmp_path / "words"), "backend": "python"}
    pipeline = {
        "name": "found",
        "inputs": {"text": {"type": "text"}},
        "steps": [{"name": name, "model": name, "input": "text"} for name in tasks],
        "outputs": {"json": "of-json.0.word", "texts": "of-texts.0.word", "all": "of-texts"},
    }
    models = [{"name": name, "task": task, **common} for name, task in tasks.items()]
    with LocalServer({"models": models, "pipelines": [pipeline]}) as server:
        found = [predict(server, "found", json={"text": text}).json() for text in ("one", "one two")]
    assert found == [
        {"json": "one", "texts": "one", "all": [{"word": "one"}]},
        {"json": "one", "texts": "one", "all": [{"word": "one"}, {"word": "two"}]},
    ]


def test_a_key_for_a_pipeline_needs_none_of_its_models(guarded: tuple[LocalServer, dict[str, str]]) -> None:
    """It may use the pipeline, and not its models by themselves."""
    server, headers = guarded
    assert predict(server, "twice", json={"x": [[1, 2]]}, headers=headers).json()["y"] == [[3.0, 4.0]]
    assert predict(server, "twice", json={"x": [[1, 2]]}).status_code == 401
    hidden = predict(server, "passages", json={"texts": ["a"]}, headers=headers)
    assert (hidden.status_code, "words" in hidden.text) == (404, False)
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
    assert httpx.post(f"{server.url}/v2/models/one/infer", json=body, headers=headers).status_code == 404
