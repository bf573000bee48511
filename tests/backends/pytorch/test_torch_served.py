"""Models of PyTorch behind the server's protocols."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from local_server import LocalServer
from torch_models import Format, make, model, torch

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("kind", "keys", "joinable", "file"),
    [
        ("torch_export", {}, {"exact", "close"}, "model.pt2"),
        ("torchscript", {"backend_options": model("dense").options()}, {"unproven"}, "model.pt"),
        (
            "torchscript",
            {"backend_options": model("dense").options(), "batching": {"unverified": "allow"}},
            {"unverified"},
            "model.pt",
        ),
    ],
)
def test_a_model_is_served(kind: Format, keys: dict[str, Any], joinable: set[str], file: str, tmp_path: Path) -> None:
    """Found by its file, described, loaded, asked over V2; clients are told what runs it."""
    make(tmp_path / "dense", kind, "dense")
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}]}
    args = {"models": [{"name": "dense", "path": str(tmp_path / "dense"), **keys}]}
    with LocalServer(args) as server, httpx.Client(base_url=server.url) as client:
        reply = client.post("/v2/models/dense/infer", json=body)
        told = client.get("/v2/models/dense").json()
        config = client.get("/v2/models/dense/config").json()
        wrong = client.post("/v2/models/dense/infer", json={"inputs": [{**body["inputs"][0], "shape": [3, 2]}]})

    with torch.inference_mode():
        expected = model("dense").module(torch.arange(1, 7, dtype=torch.float32).reshape(2, 3)).numpy()
    (output,) = reply.json()["outputs"]
    np.testing.assert_allclose(np.reshape(output["data"], output["shape"]), expected, rtol=1e-5)
    assert (told["platform"], told["parameters"]["joinable"] in joinable) == ("pytorch_libtorch", True)
    assert (config["backend"], config["default_model_filename"]) == ("pytorch", file)
    assert wrong.status_code == 400
