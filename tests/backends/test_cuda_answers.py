"""Answers of CUDA, on a real GPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_models
import pytest

from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.errors import InferenceFailed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs a CUDA device"),
]

MakeModel = Callable[[onnx_models.Kind], Path]
KINDS = [kind for kind in onnx_models.KINDS if kind not in {"string_identity", "fail_on_negative"}]


def loaded(path: Path, **settings: object) -> OnnxBackend:
    """A model on the GPU."""
    backend = OnnxBackend(OnnxSettings("m", path, device="cuda", gpu_available=True, **settings))  # type: ignore[arg-type]
    backend.load()
    assert backend.device == "cuda"
    return backend


def on_cpu(path: Path) -> OnnxBackend:
    """The same model on the CPU."""
    backend = OnnxBackend(OnnxSettings("m", path, device="cpu"))
    backend.load()
    return backend


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row_sizes", [(), (1, 4, 16)])
def test_answers_are_those_of_the_cpu(
    make_model: MakeModel, kind: onnx_models.Kind, row_sizes: tuple[int, ...]
) -> None:
    """Batches of changing sizes, with more rows than one run takes."""
    path = make_model(kind)
    backend, reference = loaded(path, row_sizes=row_sizes), on_cpu(path)
    assert backend.note is None
    random = np.random.default_rng(0)
    for rows in (3, 16, 1, 40, 2):
        inputs = {
            spec.name: random.integers(0, 3, (rows, *(abs(size) + 4 * (size < 0) for size in spec.shape[1:]))).astype(
                {"INT32": np.int32, "INT64": np.int64}.get(spec.datatype, np.float32)
            )
            for spec in backend.signature.inputs
        }
        outputs = backend.run(inputs)
        for name, expected in reference.run(inputs).items():
            np.testing.assert_allclose(outputs[name], expected, atol=0.02)


def test_a_failing_batch_leaves_the_session_usable(make_model: MakeModel) -> None:
    """Inputs that are not the model's."""
    backend = loaded(make_model("add_one"))

    with pytest.raises(InferenceFailed):
        backend.run({"x": np.zeros((1, 2), np.float64)})

    assert backend.run({"x": np.zeros((1, 2), np.float32)})["y"].tolist() == [[1, 1]]
