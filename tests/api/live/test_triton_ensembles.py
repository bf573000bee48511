"""Ensembles of a Triton repository through the whole server: answers are those of their steps, one after the other."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc
import tritonclient.http
from conformance.asking import Ask, Way, ask_together
from local_server import LocalServer
from triton_repositories import CHAIN_STEPS, CHAIN_TENSORS, add_chain, add_ensemble, add_model

from api.live.conftest import PICTURE, PNG

DECODER = """
    import io

    import numpy as np
    from PIL import Image

    class Decoder:
        inputs = {"FILE": ("bytes", [-1, 1])}
        outputs = {"PIXELS": ("float32", [-1, 3, 32, 32])}
        rows_independent = True

        def predict(self, batch):
            return {"PIXELS": np.stack([self.decoded(file) for file, in batch["FILE"]])}

        def decoded(self, file):
            picture = Image.open(io.BytesIO(file)).convert("RGB").resize((32, 32))
            return np.asarray(picture, np.float32).transpose(2, 0, 1) / 255
"""
PICTURES = """\
max_batch_size: 4
input { name: "pixels" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] }
output { name: "logits" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "colours.txt" }
"""
FILES = """\
name: "files"
platform: "ensemble"
max_batch_size: 8
input { name: "IMAGE" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "COLOUR" data_type: TYPE_FP32 dims: [ 4 ] }
ensemble_scheduling {
  step {
    model_name: "decoder" model_version: -1
    input_map { key: "FILE" value: "IMAGE" } output_map { key: "PIXELS" value: "pixels" }
  }
  step {
    model_name: "pictures" model_version: -1
    input_map { key: "pixels" value: "pixels" } output_map { key: "logits" value: "COLOUR" }
  }
}
"""
TEXTS = """\
platform: "ensemble"
max_batch_size: 8
input { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "AGAIN" data_type: TYPE_STRING dims: [ -1 ] }
ensemble_scheduling {
  step { model_name: "echo" input_map { key: "INPUT0" value: "TEXT" } output_map { key: "OUTPUT0" value: "once" } }
  step { model_name: "echo" input_map { key: "INPUT0" value: "once" } output_map { key: "OUTPUT0" value: "AGAIN" } }
}
"""
VALUES = np.random.default_rng(1).integers(-8, 8, (3, 4)).astype(np.float32) / 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """Serves a repository with ensembles, one of which has a model that is configured by hand."""
    folder = tmp_path_factory.mktemp("repository")
    add_chain(folder, version=3)
    whole = (CHAIN_TENSORS + CHAIN_STEPS).replace("max_batch_size: 4", "").replace("dims: [ ", "dims: [ -1, ")
    add_ensemble(folder, "whole", whole)
    (add_model(folder, "pictures", PICTURES, "image_logits") / "colours.txt").write_text("red\ngreen\nblue\nnone\n")
    add_model(folder, "echo", None, "string_identity")
    add_ensemble(folder, "files", FILES)
    add_ensemble(folder, "texts", TEXTS)
    (folder / "decoder" / "1").mkdir(parents=True)
    (folder / "decoder" / "1" / "model.py").write_text(textwrap.dedent(DECODER))
    decoder = {"name": "decoder", "path": str(folder / "decoder"), "backend": "python"}
    with LocalServer({"models": [decoder], "repository": str(folder)}) as started:
        yield started


def ask(server: LocalServer, way: Way, model: str, **inputs: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """The outputs of a model."""
    (((reply),),) = ask_together(server, [[Ask(model, inputs, way)]])
    assert reply.outputs is not None, reply.message
    return reply.outputs


def by_hand(server: LocalServer, way: Way, image: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """What a client gets that asks the models of `chain` itself."""
    first = ask(server, way, "prepare", RAW=image)
    scored = ask(server, way, "score", X=first["SCALED"], SUM=first["TOTAL"])
    return {"CLASS": scored["LOGITS"], "QUARTER": ask(server, way, "prepare", RAW=first["SCALED"])["SCALED"]}


@pytest.mark.parametrize("model", ["chain", "whole"])
@pytest.mark.parametrize("way", ["json", "binary", "grpc"])
def test_answers_are_those_of_the_steps_by_hand(server: LocalServer, way: Way, model: str) -> None:
    """Of several requests at once, too: each gets its own."""
    images = [VALUES[:rows] * rows for rows in (1, 2, 3)]
    (replies,) = ask_together(server, [[Ask(model, {"IMAGE": image}, way) for image in images]])
    for image, reply in zip(images, replies, strict=True):
        expected = by_hand(server, way, image)
        assert reply.outputs is not None, reply.message
        assert reply.outputs.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(reply.outputs[name], values)


def test_it_looks_like_a_model_over_http(server: LocalServer) -> None:
    """Metadata, configuration, index, readiness, version and statistics."""
    with tritonclient.http.InferenceServerClient(urlsplit(server.url).netloc) as client:
        assert client.is_model_ready("chain")
        assert client.is_model_ready("chain", "3")
        metadata, config = client.get_model_metadata("chain", "3"), client.get_model_config("chain")
        index = client.get_model_repository_index()
        statistics = client.get_inference_statistics("chain")["model_stats"]
    assert metadata.pop("parameters")["joinable"] == "whole"
    assert metadata == {
        "name": "chain",
        "versions": ["3"],
        "platform": "pipeline",
        "inputs": [{"name": "IMAGE", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [
            {"name": "CLASS", "datatype": "FP32", "shape": [-1, 3]},
            {"name": "QUARTER", "datatype": "FP32", "shape": [-1, 4]},
        ],
    }
    assert (config["max_batch_size"], config["version_policy"]) == (4, {"specific": {"versions": [3]}})
    tensors = [*config["input"], *config["output"]]
    assert [(each["name"], each["data_type"], each["dims"]) for each in tensors] == [
        ("IMAGE", "TYPE_FP32", [4]),
        ("CLASS", "TYPE_FP32", [3]),
        ("QUARTER", "TYPE_FP32", [4]),
    ]
    assert config["output"][0]["label_filename"] == "labels.txt"
    assert {"name": "chain", "version": "3", "state": "READY", "reason": ""} in index
    assert (statistics[0]["name"], statistics[0]["version"]) == ("chain", "3")


def test_it_looks_like_a_model_over_grpc(server: LocalServer) -> None:
    """The same questions, and a version that is not there."""
    image = tritonclient.grpc.InferInput("IMAGE", [3, 4], "FP32")
    image.set_data_from_numpy(VALUES)
    only = [tritonclient.grpc.InferRequestedOutput("QUARTER")]
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        assert client.is_model_ready("whole")
        metadata, config = client.get_model_metadata("whole"), client.get_model_config("whole").config
        assert "whole" in [each.name for each in client.get_model_repository_index().models]
        answer = client.infer("chain", [image], model_version="3", outputs=only)
        with pytest.raises(tritonclient.grpc.InferenceServerException, match="no version '1'"):
            client.infer("chain", [image], model_version="1")
    assert [(each.name, each.datatype, list(each.shape)) for each in metadata.inputs] == [("IMAGE", "FP32", [-1, 4])]
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [-1, 4])
    assert [each.name for each in answer.get_response().outputs] == ["QUARTER"]
    np.testing.assert_array_equal(answer.as_numpy("QUARTER"), VALUES / 4)


@pytest.mark.parametrize(
    ("model", "shape", "status"),
    [
        ("chain", [4, 4], 200),
        ("chain", [5, 4], 400),
        ("chain", [0, 4], 400),
        ("chain", [2, 5], 400),
        ("whole", [5, 4], 200),
    ],
)
def test_rows_are_those_of_max_batch_size(server: LocalServer, model: str, shape: list[int], status: int) -> None:
    """No more are taken, as in Triton; without it a request has whatever its models take."""
    tensor = {"name": "IMAGE", "datatype": "FP32", "shape": shape, "data": [0.0] * (shape[0] * shape[1])}
    told = httpx.post(f"{server.url}/v2/models/{model}/infer", json={"inputs": [tensor]})
    assert told.status_code == status, told.text


def test_predict_takes_and_gives_tensors_as_lists(server: LocalServer) -> None:
    """By the names of the ensemble; texts of tensors are texts."""
    told = httpx.post(f"{server.url}/v1/models/chain/predict", json={"IMAGE": VALUES.tolist()})
    np.testing.assert_allclose(told.json()["QUARTER"], VALUES / 4, rtol=1e-6)
    too_many = httpx.post(f"{server.url}/v1/models/chain/predict", json={"IMAGE": [[0.0] * 4] * 5})
    assert (too_many.status_code, too_many.json()["error"]) == (
        400,
        "IMAGE: 5 rows; the most in one request is 4",
    )


def ensemble_image_client(client: Any, module: Any, model: str, files: list[Path], classes: int) -> list[list[str]]:
    """What Triton's example ``ensemble_image_client.py`` does, with either of its clients: per file, its classes."""
    metadata, config = client.get_model_metadata(model_name=model), client.get_model_config(model_name=model)
    if module is tritonclient.grpc:
        name, outputs, most = metadata.inputs[0].name, [metadata.outputs[0].name], config.config.max_batch_size
    else:
        name, outputs, most = metadata["inputs"][0]["name"], [metadata["outputs"][0]["name"]], config["max_batch_size"]
    files = files[:most]
    data = np.stack([np.array([file.read_bytes()], dtype=np.object_) for file in files], axis=0)
    given = module.InferInput(name, data.shape, "BYTES")
    given.set_data_from_numpy(data)
    result = client.infer(
        model, [given], outputs=[module.InferRequestedOutput(output, class_count=classes) for output in outputs]
    )
    (found,) = (result.as_numpy(output) for output in outputs)
    assert len(found) == len(files)
    return [[text.decode() for text in texts] for texts in found]


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def test_files_are_texts_to_an_ensemble(server: LocalServer, module: Any) -> None:
    """A model written in Python decodes them, and classes have the labels of the model that gives them."""
    address = urlsplit(server.url).netloc if module is tritonclient.http else server.grpc
    with module.InferenceServerClient(address) as client:
        found = ensemble_image_client(client, module, "files", [PICTURE, PNG], 4)
    assert [len(each) for each in found] == [4, 4]
    for texts in found:
        values, places, labels = zip(*(text.split(":") for text in texts), strict=True)
        assert sorted(map(float, values), reverse=True) == [*map(float, values)]
        assert [["red", "green", "blue", "none"][int(place)] for place in places] == [*labels]


@pytest.mark.parametrize("way", ["json", "binary", "grpc"])
def test_texts_pass_from_step_to_step(server: LocalServer, way: Way) -> None:
    """As tensors, in every form; to predict they are texts."""
    texts = [["one", "zwölf"], ["", "[drei]"]]
    again = ask(server, way, "texts", TEXT=np.array(texts, np.object_))["AGAIN"]
    assert [[text.decode() for text in row] for row in again] == texts
    told = httpx.post(f"{server.url}/v1/models/texts/predict", json={"TEXT": texts})
    assert told.json() == {"AGAIN": texts}
