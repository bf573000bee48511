"""The response cache through the whole server: HTTP, gRPC, its own client, and the headers that tell of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import onnx_models
import pytest
from local_server import LocalServer

from serve_app.api.open_inference import inference_pb2 as pb
from serve_app_client import Client

DIGITS = sorted(Path("tests/data/digits").glob("*.png"))
ROW = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]}


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server whose models have caches, but one."""
    folder = tmp_path_factory.mktemp("cached")
    for name in ("add_one", "plain"):
        onnx_models.make(folder / name / "1" / "model.onnx", "add_one")
    onnx_models.make(folder / "strings" / "1" / "model.onnx", "string_identity")
    models = [
        {"name": "digits", "task": "image-classification", "path": "models/digits", "cache": {}},
        {"name": "add-one", "path": str(folder / "add_one"), "cache": {}},
        {"name": "strings", "path": str(folder / "strings"), "cache": {}},
        {"name": "plain", "path": str(folder / "plain")},
    ]
    with LocalServer({"models": models}) as server:
        yield server


def _post(server: LocalServer, path: str, **options: object) -> httpx.Response:
    answer = httpx.post(server.url + path, **options)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    return answer


def test_tensors_in_json(cached: LocalServer) -> None:
    """The same bytes again, in the class of whoever asks; selections and ids are made for each."""
    path = "/v2/models/add-one/infer"
    missed, hit = (_post(cached, path, json=ROW) for _ in range(2))
    assert [answer.headers["x-cache"] for answer in (missed, hit)] == ["miss", "hit"]
    assert missed.content == hit.content
    other = _post(
        cached, path, json={**ROW, "id": "7", "outputs": [{"name": "y", "parameters": {"classification": 1}}]}
    )
    assert other.headers["x-cache"] == "hit"
    assert other.json()["id"] == "7"
    assert other.json()["outputs"][0]["data"] == ["3.000000:1"]
    timed = _post(cached, path, json={**ROW, "parameters": {"timings": True}}, headers={"x-priority": "high"})
    assert timed.headers["x-priority"] == "high"
    assert timed.json()["parameters"]["infer_us"] == 0
    assert "infer;dur=0.000" in timed.headers["server-timing"]


def test_a_client_may_leave_the_cache_alone(cached: LocalServer) -> None:
    """As RFC 9111 has it; other directives change nothing."""
    path = "/v2/models/add-one/infer"
    _post(cached, path, json=ROW)
    for control, told in (("no-store", None), ("No-Cache", "miss"), ("max-age=0, x", "miss"), ("max-age=60", "hit")):
        answer = _post(cached, path, json=ROW, headers={"cache-control": control})
        assert answer.headers.get("x-cache") == told


def test_a_model_without_a_cache_says_nothing_of_it(cached: LocalServer) -> None:
    """And executes every request."""
    for _ in range(2):
        assert "x-cache" not in _post(cached, "/v2/models/plain/infer", json=ROW).headers


def test_binary_tensors_and_media(cached: LocalServer) -> None:
    """However they come; the own client tells where the answer is from."""
    pixels = np.full((1, 1), b"text", object)
    with Client(cached.url) as client:
        results = [client.infer("strings", {"INPUT0": pixels}) for _ in range(2)]
        assert [result.served.cache for result in results] == ["miss", "hit"]
        assert [result["OUTPUT0"].tolist() for result in results] == [[[b"text"]]] * 2
        pictures = [client.predict("digits", DIGITS[0]) for _ in range(2)]
        assert [picture.served.cache for picture in pictures] == ["miss", "hit"]
        assert pictures[0].value == pictures[1].value
        assert client.predict("digits", DIGITS[1]).served.cache == "miss"


def test_grpc_shares_it_with_http(cached: LocalServer) -> None:
    """What was asked in JSON is answered to a message; metadata say the same as headers."""
    _post(cached, "/v2/models/add-one/infer", json=ROW)
    request = pb.ModelInferRequest(model_name="add-one")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    request.raw_input_contents.append(np.array([1, 2], "f4").tobytes())
    with grpc.insecure_channel(cached.grpc) as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for control, told in ((), "hit"), ((("cache-control", "no-store"),), None):
            body, ended = call.with_call(request.SerializeToString(), metadata=control, timeout=20)
            assert dict(ended.trailing_metadata()).get("x-cache") == told
            answer = pb.ModelInferResponse.FromString(body)
            assert np.frombuffer(answer.raw_output_contents[0], "f4").tolist() == [2, 3]


def test_status_statistics_and_metrics_show_it(cached: LocalServer) -> None:
    """In the words of the documentation, and of Triton's statistics."""
    before = httpx.get(f"{cached.url}/v2/models/add-one/stats").json()["model_stats"][0]
    for _ in range(3):
        _post(cached, "/v2/models/add-one/infer", json=ROW)
    after = httpx.get(f"{cached.url}/v2/models/add-one/stats").json()["model_stats"][0]
    counts = [
        after["inference_stats"][name]["count"] - before["inference_stats"][name]["count"]
        for name in ("success", "cache_hit")
    ]
    assert counts[0] == 3
    assert counts[1] >= 2
    shown = httpx.get(f"{cached.url}/status").json()["models"]
    assert shown["add-one"]["cache"]["hits"] >= 2
    assert "cache" not in shown["plain"]
    assert 'serve_app_cache_answers_total{model="add-one",result="hit"}' in httpx.get(f"{cached.url}/metrics").text
