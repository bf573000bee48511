"""Models of a real server whose names are no deployments'."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from deployments.named_models import FILE, FOLDER, NAMES, VARIANT
from prometheus_client.parser import text_string_to_metric_families
from serve_process import ServeProcess

from serve_app.config.names import deployment_name

pytestmark = pytest.mark.cluster

GREEN = np.zeros((1, 3, 32, 32), np.float32)
GREEN[:, 1] = 1.0
EXPECTED = np.array([[0.0, 1.0, 0.0, -1.0]], np.float32)


def body(**keys: Any) -> dict[str, Any]:
    """A green picture."""
    tensor = {"name": "pixels", "shape": list(GREEN.shape), "datatype": "FP32", "data": GREEN.ravel().tolist()}
    return {"inputs": [tensor], **keys}


def classes(module: Any, client: Any, name: str) -> list[bytes]:
    """The two highest values of a green picture, as Triton's image clients ask for them."""
    tensor = module.InferInput("pixels", GREEN.shape, "FP32")
    tensor.set_data_from_numpy(GREEN)
    outputs = [module.InferRequestedOutput("logits", class_count=2)]
    answer = client.infer(name, [tensor], outputs=outputs)
    return [text.rpartition(b":")[2] for text in answer.as_numpy("logits").ravel()]


@pytest.mark.parametrize("name", NAMES)
def test_they_answer_over_http(client: httpx.Client, direct: httpx.Client, name: str) -> None:
    """On Ray Serve's port and on the router's own: infer, metadata, readiness, configuration and statistics."""
    path = f"/v2/models/{quote(name, safe='')}"
    for each in (client, direct):
        answer = each.post(f"{path}/infer", json=body())
        assert (answer.status_code, answer.json()["model_name"]) == (200, name)
        np.testing.assert_allclose(answer.json()["outputs"][0]["data"], EXPECTED.ravel())
        assert each.get(path).json()["name"] == name
        assert each.get(f"{path}/versions/1/ready").json() == {"name": name, "ready": True}
        assert each.get(f"{path}/stats").json()["model_stats"][0]["name"] == name
        assert each.get(f"/v1/models/{quote(name, safe='')}").json()["id"] == name


@pytest.mark.parametrize("name", NAMES)
def test_they_answer_over_grpc(grpc_address: str, name: str) -> None:
    """On both ports, to Triton's client: the name is a field of the message."""
    with tritonclient.grpc.InferenceServerClient(grpc_address) as client:
        assert client.is_model_ready(name)
        assert client.get_model_metadata(name).name == name
        assert classes(tritonclient.grpc, client, name) == [b"green", b"red"]


def test_tritons_image_clients_find_what_they_ask_for(server: ServeProcess) -> None:
    """The format of the picture and names of the classes, of models that take plain tensors."""
    with tritonclient.http.InferenceServerClient(server.url.removeprefix("http://")) as client:
        configs = [client.get_model_config(name) for name in NAMES]
        assert [config["input"][0]["format"] for config in configs] == ["FORMAT_NCHW", "FORMAT_NONE"]
        assert [config["output"][0]["label_filename"] for config in configs] == ["labels.txt", ""]
        assert [config["default_model_filename"] for config in configs] == ["ResNet50.onnx", "net.onnx"]
        assert [classes(tritonclient.http, client, name) for name in NAMES] == [[b"green", b"red"]] * 2


def test_a_variant_with_blanks_is_named_by_header_and_by_body(client: httpx.Client, grpc_address: str) -> None:
    """And the answer says which one ran."""
    path = f"/v2/models/{quote(FILE)}/infer"
    for answer in (
        client.post(path, json=body(), headers={"x-variant": VARIANT}),
        client.post(path, json=body(parameters={"variant": VARIANT})),
    ):
        assert (answer.status_code, answer.headers["x-variant"]) == (200, VARIANT)
        assert answer.json()["parameters"]["variant"] == VARIANT
    with tritonclient.grpc.InferenceServerClient(grpc_address) as triton:
        tensor = tritonclient.grpc.InferInput("pixels", GREEN.shape, "FP32")
        tensor.set_data_from_numpy(GREEN)
        answer = triton.infer(FILE, [tensor], headers={"x-variant": VARIANT})
        assert answer.get_response().parameters["variant"].string_param == VARIANT


def test_metrics_and_status_call_them_by_their_names(client: httpx.Client) -> None:
    """Whoever scrapes reads the name that clients use."""
    for name in NAMES:
        assert client.post(f"/v2/models/{quote(name)}/infer", json=body()).status_code == 200
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    counted = {sample.labels["model"] for sample in families["serve_app_requests"].samples}
    replicas = {sample.labels["model"]: sample.value for sample in families["serve_app_replicas"].samples}
    assert counted.issuperset(NAMES)
    assert {name: replicas[name] for name in NAMES} == dict.fromkeys(NAMES, 1.0)
    models = client.get("/status").json()["models"]
    assert [(models[name]["ready"], len(models[name]["replicas"])) for name in NAMES] == [(True, 1)] * 2
    page = client.get("/").text
    assert all(f"/v2/models/{quote(name, safe='')}/infer" in page for name in NAMES)


def test_serve_knows_them_by_plainer_names(server: ServeProcess) -> None:
    """Processes, and what `serve status` lists."""
    for name in NAMES:
        assert len(server.replica_processes(deployment_name(name))) == 1


def test_an_unknown_name_is_refused_as_such(client: httpx.Client, grpc_address: str) -> None:
    """The plainer name is no model's."""
    answer = client.get(f"/v2/models/{quote(deployment_name(FOLDER))}")
    assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")
    with tritonclient.grpc.InferenceServerClient(grpc_address) as triton:
        assert not triton.is_model_ready(deployment_name(FOLDER))
