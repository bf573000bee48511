"""A Triton repository through the whole server: the answers are those of the same models, configured by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import edge_case_models
import httpx
import numpy as np
import pytest
from conformance.asking import Ask, Way, ask_together
from local_server import LocalServer
from triton_repositories import SUM_DIFF, add_model

CLIENT = httpx.Client(timeout=30.0)
ON_CPU = "instance_group { kind: KIND_CPU }\n"
LEVELS = "dynamic_batching { priority_levels: 5 default_priority_level: 3 }\n"
PICTURES = """\
name: "pictures"
platform: "onnxruntime_onnx"
max_batch_size: 4
input { name: "pixels" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 32, 32 ] }
output { name: "logits" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "colours.txt" }
"""
IDS = """\
max_batch_size: 4
model_warmup {
  name: "known" batch_size: 2
  inputs { key: "ids" value { data_type: TYPE_INT64 dims: [ 1 ] input_data_file: "ids.bin" } }
}
"""
VALUES = np.arange(32, dtype=np.int32).reshape(2, 16)
PIXELS = np.random.default_rng(0).random((2, 3, 32, 32), dtype=np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """Serves a repository, and two of its models by hand."""
    folder = tmp_path_factory.mktemp("repository")
    add_model(folder, "sums", SUM_DIFF + LEVELS + ON_CPU)
    pictures = add_model(folder, "pictures", PICTURES + ON_CPU, "image_logits", version=2)
    (pictures / "colours.txt").write_text("red\ngreen\nblue\nnone\n")
    add_model(folder, "stateful", "sequence_batching {}")
    edge_case_models.ids(folder / "ids" / "1" / "model.onnx")
    (folder / "ids" / "config.pbtxt").write_text(IDS + ON_CPU)
    (folder / "ids" / "warmup").mkdir()
    (folder / "ids" / "warmup" / "ids.bin").write_bytes(np.array([1001, 1005], np.int64).tobytes())
    resources = {"device": "cpu"}
    by_hand = [
        {
            "name": "sums-by-hand",
            "path": str(folder / "sums"),
            "batching": {"max_rows": 8},
            "resources": resources,
        },
        {
            "name": "pictures-by-hand",
            "path": str(folder / "pictures"),
            "format": "NCHW",
            "labels": "colours.txt",
            "batching": {"max_rows": 4},
            "resources": resources,
        },
    ]
    with LocalServer({"models": by_hand, "repository": str(folder)}) as started:
        yield started


@pytest.mark.parametrize("way", ["json", "binary", "grpc"])
def test_answers_are_the_same(server: LocalServer, way: Way) -> None:
    """Over HTTP in JSON and in binary, and over gRPC."""
    for model, arrays in (("sums", {"INPUT0": VALUES, "INPUT1": VALUES[::-1]}), ("pictures", {"pixels": PIXELS})):
        asked = [[Ask(name, arrays, way)] for name in (model, f"{model}-by-hand")]
        (theirs,), (ours,) = ask_together(server, asked)
        assert theirs.outputs is not None
        assert ours.outputs is not None
        assert theirs.outputs.keys() == ours.outputs.keys()
        for name, values in theirs.outputs.items():
            np.testing.assert_array_equal(values, ours.outputs[name])


def get(server: LocalServer, path: str) -> dict[str, Any]:
    """The answer to a question without a body."""
    found = CLIENT.get(f"{server.url}{path}")
    assert found.status_code == 200, found.text
    body: dict[str, Any] = found.json()
    return body


@pytest.mark.parametrize("model", ["sums", "pictures"])
def test_metadata_and_configuration_are_the_same(server: LocalServer, model: str) -> None:
    """But for the name."""
    for path in ("", "/config"):
        theirs, ours = (get(server, f"/v2/models/{name}{path}") for name in (model, f"{model}-by-hand"))
        for each in (theirs, ours):
            each.pop("name")
            for group in each.get("instance_group", ()):
                group.pop("name")
        assert theirs == ours


def test_the_configuration_is_what_stands_in_the_file(server: LocalServer) -> None:
    """What Triton's clients ask for comes back as it was written."""
    found = get(server, "/v2/models/pictures/config")
    assert (found["platform"], found["backend"], found["max_batch_size"]) == ("onnxruntime_onnx", "onnxruntime", 4)
    assert found["version_policy"] == {"specific": {"versions": [2]}}
    assert [(each["format"], each["dims"]) for each in found["input"]] == [("FORMAT_NCHW", [3, 32, 32])]
    assert [each["label_filename"] for each in found["output"]] == ["colours.txt"]
    assert get(server, "/v2/models/sums/config")["dynamic_batching"]["default_priority_level"] == 3


def infer(server: LocalServer, model: str, inputs: dict[str, Any], **more: Any) -> httpx.Response:
    """Ask in JSON."""
    tensors = [
        {
            "name": name,
            "shape": list(values.shape),
            "datatype": "INT32" if values.dtype == np.int32 else "FP32",
            "data": values.ravel().tolist(),
        }
        for name, values in inputs.items()
    ]
    return CLIENT.post(f"{server.url}/v2/models/{model}/infer", json={"inputs": tensors, **more})


def test_classes_have_the_labels_of_the_file(server: LocalServer) -> None:
    """As Triton's classification extension writes them."""
    picture = np.zeros((1, 3, 32, 32), np.float32)
    picture[:, 1] = 0.5
    outputs = [{"name": "logits", "parameters": {"classification": 2}}]
    (found,) = infer(server, "pictures", {"pixels": picture}, outputs=outputs).json()["outputs"]
    assert [each.split(":", 1)[1] for each in found["data"]] == ["1:green", "0:red"]


@pytest.mark.parametrize(
    ("priority", "name"), [(0, "normal"), (1, "high"), (2, "high"), (3, "normal"), (4, "low"), (5, "low")]
)
def test_priorities_are_classes(server: LocalServer, priority: int, name: str) -> None:
    """The default level is `normal`, and 0 means it."""
    arrays = {"INPUT0": VALUES, "INPUT1": VALUES}
    found = infer(server, "sums", arrays, parameters={"priority": priority})
    assert (found.status_code, found.headers["x-priority"]) == (200, name)


def test_a_model_is_warmed_up_with_its_file(server: LocalServer) -> None:
    """It runs on no values of our own."""
    assert get(server, "/status")["models"]["ids"]["warm_up"] == {"warmed": True}


def test_what_is_not_supported_is_not_there(server: LocalServer) -> None:
    """And nothing else is missing."""
    assert infer(server, "stateful", {}).status_code == 404
    assert set(get(server, "/status")["models"]) == {"sums", "pictures", "ids", "sums-by-hand", "pictures-by-hand"}
