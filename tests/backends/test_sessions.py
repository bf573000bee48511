"""What is asked of ONNX Runtime for a GPU, and what is refused. None of this needs one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import onnx_models
import pytest

from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="needs a machine without CUDA")
def test_a_gpu_that_cannot_be_used_is_noted(make_model: Callable[[onnx_models.Kind], Path]) -> None:
    """The model is served all the same, and the operator is told why it is slower."""
    backend = OnnxBackend(OnnxSettings("m", make_model("add_one"), gpu_available=True))
    backend.load()

    assert (backend.note or "").endswith("it runs on the CPU")
    assert (backend.device, backend.providers) == ("cpu", ("CPUExecutionProvider",))


def test_a_replica_without_a_gpu_asks_for_nothing(make_model: Callable[[onnx_models.Kind], Path]) -> None:
    """One configuration serves machines with a GPU and without."""
    backend = OnnxBackend(OnnxSettings("m", make_model("add_one")))
    backend.load()

    assert (backend.device, backend.note) == ("cpu", None)
