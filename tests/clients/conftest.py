"""A server on a real port, for clients of other projects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx_models
import pytest
from client_models import TYPES
from local_server import serving


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of a server with small models.

    ``simple`` is `onnx_models` kind ``sum_diff``, ``wide`` is ``add_one``, ``bfloat16`` and ``image_logits`` are as
    they are called there, and ``mirror`` gives back every datatype of `TYPES`.
    """
    folder = tmp_path_factory.mktemp("models")
    files = {
        "simple": onnx_models.make(folder / "simple.onnx", "sum_diff"),
        "wide": onnx_models.make(folder / "wide.onnx", "add_one"),
        "bfloat16": onnx_models.make(folder / "bfloat16.onnx", "bfloat16"),
        "image_logits": onnx_models.make(folder / "image_logits.onnx", "image_logits"),
        "mirror": onnx_models.identity(folder / "mirror.onnx", TYPES),
    }
    with serving(files, {"image_logits": ("red", "green", "blue", "dark")}) as found:
        yield found


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return Path(__file__).resolve().parent.parent.parent
