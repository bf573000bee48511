"""What is asked of ONNX Runtime for a GPU, and what is refused. None of this needs one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import onnx_models
import pytest

from serve_app.errors import ConfigError
from serve_app.inference.device import preload_tensorrt
from serve_app.inference.onnx import OnnxBackend, OnnxSettings
from serve_app.inference.sessions import graph_fault
from serve_app.payloads import ModelSignature, TensorSpec

FIXED = TensorSpec("pixels", "FP32", (-1, 3, 8))
VARYING = TensorSpec("ids", "INT64", (-1, -1))
TEXT = TensorSpec("text", "BYTES", (-1, 1))


@pytest.mark.parametrize(
    ("spec", "rows_fixed", "few_lengths", "convolutions", "fault"),
    [
        (FIXED, True, False, True, None),
        (VARYING, True, True, False, None),
        (VARYING, True, False, False, "input 'ids' has axes of any size, and no processor pads them to a few"),
        (VARYING, True, True, True, "input 'ids' has axes that vary, and convolutions are prepared anew for each size"),
        (FIXED, False, True, False, "batches have any number of rows: name resources.row_sizes"),
        (TEXT, True, True, False, "it takes or gives text or BF16"),
    ],
)
def test_graphs_are_for_few_shapes(
    spec: TensorSpec, rows_fixed: bool, few_lengths: bool, convolutions: bool, fault: str | None
) -> None:
    """A graph is of one shape, so there must not be many."""
    signature = ModelSignature((spec,), ())

    assert fault == graph_fault(signature, rows_fixed=rows_fixed, few_lengths=few_lengths, convolutions=convolutions)


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
    settings = OnnxSettings("m", make_model("add_one"), gpu_available=True, tensorrt="auto", cuda_graphs=True)
    backend = OnnxBackend(settings)
    backend.load()

    first, _, second = (backend.note or "").partition("; it runs with CUDA; ")
    assert first.startswith("model 'm': ONNX Runtime could not use TensorRT")
    assert second.endswith("it runs on the CPU")
    assert (backend.device, backend.providers) == ("cpu", ("CPUExecutionProvider",))


def test_a_replica_without_a_gpu_asks_for_nothing(make_model: Callable[[onnx_models.Kind], Path]) -> None:
    """One configuration serves machines with a GPU and without."""
    backend = OnnxBackend(OnnxSettings("m", make_model("add_one"), tensorrt=True, cuda_graphs=True))
    backend.load()

    assert (backend.device, backend.note) == ("cpu", None)
