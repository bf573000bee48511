"""What is asked of ONNX Runtime for a GPU, and what is refused. None of this needs one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import onnx_models
import pytest

from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.backends.onnx.device import preload_tensorrt
from serve_app.errors import ConfigError


@pytest.mark.skipif(preload_tensorrt(), reason="needs a machine without TensorRT")
def test_tensorrt_that_is_not_there_is_an_error_where_it_was_insisted_on(
    make_model: Callable[[onnx_models.Kind], Path],
) -> None:
    """ONNX Runtime names it as available all the same."""
    path = make_model("add_one")

    with pytest.raises(ConfigError) as caught:
        OnnxBackend(OnnxSettings("m", path, gpu_available=True, tensorrt=True)).load()

    (problem,) = caught.value.problems
    assert problem == (
        "model 'm': ONNX Runtime could not use TensorRT (is the wheel `tensorrt` of the CUDA version that ONNX Runtime"
        " was built for installed?)"
    )


@pytest.mark.skipif(preload_tensorrt(), reason="needs a machine without TensorRT")
@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="needs a machine without CUDA")
def test_what_is_taken_where_it_is_there_is_noted_where_it_is_not(
    make_model: Callable[[onnx_models.Kind], Path],
) -> None:
    """The model is served all the same, and the operator is told why it is slower."""
    settings = OnnxSettings("m", make_model("add_one"), gpu_available=True, tensorrt="auto")
    backend = OnnxBackend(settings)
    backend.load()

    first, _, second = (backend.note or "").partition("; it runs with CUDA; ")
    assert first.startswith("model 'm': ONNX Runtime could not use TensorRT")
    assert second.endswith("it runs on the CPU")
    assert (backend.device, backend.providers) == ("cpu", ("CPUExecutionProvider",))


def test_a_replica_without_a_gpu_asks_for_nothing(make_model: Callable[[onnx_models.Kind], Path]) -> None:
    """One configuration serves machines with a GPU and without."""
    backend = OnnxBackend(OnnxSettings("m", make_model("add_one"), tensorrt=True))
    backend.load()

    assert (backend.device, backend.note) == ("cpu", None)
