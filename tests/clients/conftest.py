"""A server on a real port, for clients of other projects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx_models
import pytest
from client_models import TYPES
from local_server import LocalServer

from serve_app.api.http_app import HttpSettings


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of a server with small models.

    ``simple`` is `onnx_models` kind ``sum_diff``, ``wide`` is ``add_one``, ``bfloat16`` and ``image_logits`` are as
    they are called there, and ``mirror`` gives back every datatype of `TYPES`.
    """
    folder = tmp_path_factory.mktemp("models")
    kinds: dict[str, onnx_models.Kind] = {
        "simple": "sum_diff",
        "wide": "add_one",
        "bfloat16": "bfloat16",
        "image_logits": "image_logits",
    }
    models: list[dict[str, object]] = [
        {"name": name, "path": str(folder / name), "batching": {"max_rows": 8}} for name in [*kinds, "mirror"]
    ]
    for name, kind in kinds.items():
        onnx_models.make(folder / name / "1" / "model.onnx", kind)
    onnx_models.identity(folder / "mirror" / "1" / "model.onnx", TYPES)
    labels = ["red", "green", "blue", "dark"]
    models[list(kinds).index("image_logits")] |= {"task": "image-classification", "processor": {"labels": labels}}
    # Triton lets everybody change its settings, and its clients are meant to try
    with LocalServer({"models": models}, HttpSettings(open_administration=True)) as server:
        yield server.url.removeprefix("http://")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return Path(__file__).resolve().parent.parent.parent
