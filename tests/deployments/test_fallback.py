"""A real server whose exact model is too slow for some requests, and whose fallback is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from prometheus_client.parser import text_string_to_metric_families
from serve_process import ServeProcess

pytestmark = pytest.mark.cluster

SIZE = 2048
EXACT, LIGHT = 2000, 1


def chain(path: Path, products: int) -> None:
    """A model of so many products with the same large matrix; it answers how many."""
    weight = np.random.default_rng(7).standard_normal((SIZE, SIZE)).astype(np.float32) / np.float32(np.sqrt(SIZE))
    steps = [helper.make_node("MatMul", [f"h{at}" if at else "x", "w"], [f"h{at + 1}"]) for at in range(products)]
    nodes = [
        *steps,
        helper.make_node("ReduceMean", [f"h{products}"], ["mean"], axes=[1], keepdims=1),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "products"], ["y"]),
    ]
    constants = {"w": weight, "zero": np.zeros(1, np.float32), "products": np.full(1, products, np.float32)}
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    path.parent.mkdir(parents=True)
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString()
    )


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of that one model."""
    folder = tmp_path_factory.mktemp("fallback")
    chain(folder / "exact" / "1" / "model.onnx", EXACT)
    chain(folder / "light" / "1" / "model.onnx", LIGHT)
    model = {
        "name": "m",
        "path": str(folder / "exact"),
        "batching": {"max_rows": 1, "slo_ms": 5000},
        "variants": [{"name": "light", "path": str(folder / "light")}],
        "fallbacks": ["light"],
        "resources": {"cpus": 0.1},
    }
    with ServeProcess({"models": [model], "router": {"cpus": 0.1}}, folder) as running:
        yield running.url


def ask(url: str, **headers: str) -> httpx.Response:
    """Send one row."""
    body = {"inputs": [{"name": "x", "shape": [1, SIZE], "datatype": "FP32", "data": [0.0] * SIZE}]}
    return httpx.post(f"{url}/v2/models/m/infer", json=body, timeout=60.0, headers={"X-Priority": "low"} | headers)


def products(answer: httpx.Response) -> Any:
    """What the model that ran says of itself."""
    assert answer.status_code == 200, answer.text
    return answer.json()["outputs"][0]["data"][0]


def test_a_fallback_answers_what_the_exact_model_cannot_in_time(url: str) -> None:
    """And says so; a request that forbids it is refused or expires, and one with time gets the exact model."""
    picture = httpx.get(f"{url}/status", timeout=30.0).json()["models"]["m"]
    assert picture["fallbacks"] == ["light"]
    half_ms = {"X-Timeout-Ms": str(500.0 * picture["latency_s"]["0"]["1"])}

    patient = ask(url)
    assert (products(patient), patient.headers.get("x-variant")) == (EXACT, None)
    hurried = ask(url, **half_ms)
    assert (products(hurried), hurried.headers.get("x-variant")) == (LIGHT, "light")
    assert hurried.json()["parameters"] == {"variant": "light"}
    strict = ask(url, **half_ms, **{"X-Fallback": "never"})
    assert (strict.status_code, strict.json()["code"]) in {(429, "deadline_unreachable"), (504, "deadline_exceeded")}

    page = httpx.get(f"{url}/metrics", timeout=30.0).text
    samples = {
        sample.name: sample.value for family in text_string_to_metric_families(page) for sample in family.samples
    }
    assert samples["serve_app_fallback_answers_total"] == 1
