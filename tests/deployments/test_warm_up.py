"""A real server whose model runs on none of our own inputs: it starts, says so, and serves."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import particular_models
import pytest
from serve_process import ServeProcess

pytestmark = pytest.mark.cluster

REQUEST = {"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1003, 1007]}]}


def test_a_model_that_refuses_our_values_is_served_and_marked(tmp_path: Path) -> None:
    """Beside the same model with a sample, which is warm and whose costs are known from the start."""
    particular_models.ids(tmp_path / "ids" / "1" / "model.onnx")
    (tmp_path / "sample.json").write_text(json.dumps(REQUEST))
    common = {
        "path": str(tmp_path / "ids"),
        "resources": {"cpus": 0.1},
        "autoscaling": {"min_replicas": 1, "max_replicas": 1},
    }
    models = [
        common | {"name": "unknown"},
        common | {"name": "known", "warm_up": {"samples": [str(tmp_path / "sample.json")]}},
    ]
    with ServeProcess({"models": models}, tmp_path / "server") as server:
        status = httpx.get(f"{server.url}/status", timeout=30.0).json()["models"]
        assert [status["known"]["warm_up"], status["unknown"]["warm_up"]["warmed"]] == [{"warmed": True}, False]
        reason = status["unknown"]["warm_up"]["reason"]
        assert reason.startswith("model 'unknown' runs on no known input: the model failed on this input: ")
        assert (list(status["known"]["latency_s"]), status["unknown"]["latency_s"]) == (["0"], {})

        for model in ("known", "unknown"):
            answer = httpx.post(f"{server.url}/v2/models/{model}/infer", json=REQUEST, timeout=30.0)
            assert (answer.status_code, answer.json()["outputs"][0]["data"]) == (200, [3.0, 7.0])
        learnt = httpx.get(f"{server.url}/status", timeout=30.0).json()["models"]["unknown"]["latency_s"]
        assert list(learnt) == ["0"]
