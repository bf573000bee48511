"""What only a real GPU can show: the limit of its memory arena, and a GPU that is hidden."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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

_MIB = 1 << 20
_LOAD_WITHOUT_DEVICE = """
import sys
from pathlib import Path
from serve_app.errors import ConfigError
from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
for device in ("auto", "cuda"):
    backend = OnnxBackend(OnnxSettings("m", Path(sys.argv[1]), device=device, gpu_available=True))
    try:
        backend.load()
        print(backend.device, backend.note)
    except ConfigError as error:
        print(error)
"""


@pytest.fixture
def limited(make_model: Callable[[onnx_models.Kind], Path]) -> OnnxBackend:
    """`add_one` in an arena of 64 MiB."""
    settings = OnnxSettings("m", make_model("add_one"), device="cuda", gpu_available=True, gpu_memory_bytes=64 * _MIB)
    backend = OnnxBackend(settings)
    backend.load()
    return backend


def test_a_batch_beyond_the_limit_fails_alone(limited: OnnxBackend) -> None:
    """The error says why, without places in the server's code, and the session goes on."""
    small = np.ones((2, 3), np.float32)

    with pytest.raises(InferenceFailed, match=r"^the model failed on this input: ") as caught:
        limited.run({"x": np.zeros((64, 4 * _MIB // 4), np.float32)})

    assert "/" not in caught.value.message.partition(": ")[2].partition(";")[0]
    np.testing.assert_array_equal(small + 1, limited.run({"x": small})["y"])


def test_batches_inside_the_limit_run_again_and_again(limited: OnnxBackend) -> None:
    """What a run took is there for the next one."""
    values = np.ones((8, _MIB // 4), np.float32)

    for _ in range(20):
        np.testing.assert_array_equal(values + 1, limited.run({"x": values})["y"])


@pytest.mark.parametrize("kind", ["convolution", "image_logits"])
def test_a_session_for_each_row_size(make_model: Callable[[onnx_models.Kind], Path], kind: onnx_models.Kind) -> None:
    """Batches of any size are answered as on the CPU."""
    path = make_model(kind)
    on_gpu = OnnxBackend(
        OnnxSettings(
            "m",
            path,
            device="cuda",
            gpu_available=True,
            row_sizes=(1, 4, 16),
        )
    )
    on_cpu = OnnxBackend(OnnxSettings("m", path, device="cpu"))
    on_gpu.load()
    on_cpu.load()
    (spec,) = on_cpu.signature.inputs
    values = np.random.default_rng(0).standard_normal((40, *(abs(size) + 3 for size in spec.shape[1:])), np.float32)
    values = values[(slice(None), *(slice(size) if size > 0 else slice(None) for size in spec.shape[1:]))]

    assert on_gpu.row_sizes == (1, 4, 16)
    for rows in (1, 3, 16, 2, 5, 40, 1, 17):
        inputs = {spec.name: values[:rows]}
        for name, expected in on_cpu.run(inputs).items():
            np.testing.assert_allclose(on_gpu.run(inputs)[name], expected, atol=0.01)


def test_a_memory_limit_is_divided_among_sessions(make_model: Callable[[onnx_models.Kind], Path]) -> None:
    """Each has its part of it, and batches run as without a limit."""
    backend = OnnxBackend(
        OnnxSettings(
            "m",
            make_model("convolution"),
            device="cuda",
            gpu_available=True,
            gpu_memory_bytes=256 * _MIB,
            row_sizes=(1, 4, 16),
        )
    )

    assert backend.load() is None
    assert backend.run({"x": np.ones((17, 1, 4, 4), np.float32)})["y"].shape == (17, 1, 2, 2)


def test_a_gpu_that_is_hidden_is_noticed(make_model: Callable[[onnx_models.Kind], Path]) -> None:
    """``auto`` moves to the CPU and says so; ``cuda`` refuses. A process of its own: CUDA looks for devices once."""
    fault = (
        "model 'm': a GPU was given, but ONNX Runtime could not use CUDA (are the CUDA and cuDNN libraries of the extra"
        " `cuda` installed?)"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": os.pathsep.join(sys.path)}

    done = subprocess.run(
        [sys.executable, "-c", _LOAD_WITHOUT_DEVICE, str(make_model("add_one"))],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    assert done.stdout.splitlines() == [f"cpu {fault}; it runs on the CPU", fault]
