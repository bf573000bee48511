"""The example of scikit-learn, in an environment made of wheels that are at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from local_server import LocalServer
from serve_process import ROOT

from serve_app.backends.python.environment import interpreter_of
from serve_app.backends.python.options import EnvironmentOptions

WHEELS = os.environ.get("SKLEARN_WHEELS", "")

pytestmark = pytest.mark.skipif(
    not WHEELS,
    reason="SKLEARN_WHEELS names no folder: pip download -d FOLDER -r examples/iris-sklearn/train-requirements.txt",
)


def test_the_pipeline_and_its_graph_answer_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained, served in an environment of its own, and served by ONNX Runtime."""
    monkeypatch.setenv("SERVE_APP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{ROOT / '.venv-uv/bin'}{os.pathsep}{os.environ['PATH']}")
    folder = tmp_path / "iris"
    shutil.copytree(ROOT / "examples" / "iris-sklearn", folder)
    to_train = EnvironmentOptions(requirements="train-requirements.txt", wheels=WHEELS)
    python = interpreter_of(to_train, folder, "iris")
    trained = subprocess.run([python, folder / "train.py"], check=True, capture_output=True, text=True)
    assert trained.stdout == "accuracy 0.973\n"

    environment = {"requirements": "requirements.txt", "wheels": WHEELS}
    interpreter_of(EnvironmentOptions.model_validate(environment), folder, "iris")  # before the server's time counts
    models: dict[str, dict[str, Any]] = {
        "pipeline": {"backend": "python", "backend_options": {"environment": environment}},
        "graph": {"backend": "onnx"},
    }
    flowers = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": [5.1, 3.5, 1.4, 0.2, 6.5, 3.0, 5.8, 2.2]}
    answers = []
    served = [{"name": name, "path": str(folder), **keys} for name, keys in models.items()]
    with LocalServer({"models": served}) as server:
        for name in models:
            url = f"{server.url}/v2/models/{name}/infer"
            answer = httpx.post(url, json={"inputs": [flowers]}, timeout=60.0)
            answers.append({output["name"]: output["data"] for output in answer.json()["outputs"]})
    pipeline, graph = answers
    assert pipeline["label"] == graph["label"] == [0, 2]
    assert pipeline["probabilities"] == pytest.approx(graph["probabilities"], rel=1e-4)
    assert pipeline["probabilities"] == pytest.approx([0.9847, 0.0153, 6.2e-8, 2.43e-5, 0.0246, 0.9754], rel=0.01)
