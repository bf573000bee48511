"""Fixtures that several areas share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_models
import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # how long an example takes depends on what else runs
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[onnx_models.Kind], Path]:
    """Makes the file of a tiny ONNX model by its kind, once per test session. Treat it as read-only.

    `onnx_models.make` writes one where a test wants it, e.g. at ``models/<name>/1/model.onnx``.
    """
    folder = tmp_path_factory.mktemp("onnx-models")

    def model_file(kind: onnx_models.Kind) -> Path:
        path = folder / kind / "1" / "model.onnx"
        return path if path.exists() else onnx_models.make(path, kind)

    return model_file
