"""The composition root, without a cluster."""

from __future__ import annotations

from pathlib import Path

import onnx_models

from serve_app.app import build
from serve_app.config import ROUTER


def test_replicas_keep_to_the_version_that_the_router_describes(tmp_path: Path) -> None:
    """A version that appears later must not be picked up by the replicas that happen to start later."""
    onnx_models.make(tmp_path / "m" / "7" / "model.onnx", "add_one")
    application = build({"models": [{"name": "m", "path": str(tmp_path / "m")}]})
    deployment = application._bound_deployment
    assert deployment.name == ROUTER
    _, infos, models = deployment.init_args
    onnx_models.make(tmp_path / "m" / "8" / "model.onnx", "add_one")
    (config,) = models["m"]._bound_deployment.init_args
    assert infos["m"].version == "7"
    assert config.locations()[""].version == "7"
