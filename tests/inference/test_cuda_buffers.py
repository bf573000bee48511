"""Buffers that stay, recorded runs and TensorRT, on a real GPU."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_models
import onnxruntime
import pytest

from serve_app.errors import ConfigError, InferenceFailed
from serve_app.inference.binding import Filled
from serve_app.inference.device import TENSORRT, preload_cuda, preload_tensorrt
from serve_app.inference.memory import CudaMemory
from serve_app.inference.onnx import OnnxBackend, OnnxSettings

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


def test_page_locked_memory_goes_to_the_device_and_back() -> None:
    """Both directions, at any offset, of memory that the host may lose sight of."""
    preload_cuda()
    memory = CudaMemory()
    block = memory.host(1 << 20)
    block[:] = np.arange(1 << 20, dtype=np.uint64).astype(np.uint8)
    view = block[100:].view()
    del block
    on_device = onnxruntime.OrtValue.ortvalue_from_shape_and_type([len(view)], np.uint8, "cuda", 0)

    memory.upload(view, on_device.data_ptr())
    found = np.empty_like(view)
    memory.download(on_device.data_ptr(), found)

    np.testing.assert_array_equal(view, found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{"device_buffers": True}, {"device_buffers": True, "row_sizes": (1, 4, 16)}])
def test_answers_are_those_of_the_cpu(
    make_model: MakeModel, kind: onnx_models.Kind, settings: dict[str, object]
) -> None:
    """Batches of changing sizes, several parts, more rows than one run takes."""
    path = make_model(kind)
    backend, reference = loaded(path, **settings), on_cpu(path)
    assert backend.note is None
    random = np.random.default_rng(0)
    for rows in (3, 16, 1, 40, 2):
        inputs = {
            spec.name: random.integers(0, 3, (rows, *(abs(size) + 4 * (size < 0) for size in spec.shape[1:]))).astype(
                {"INT32": np.int32, "INT64": np.int64}.get(spec.datatype, np.float32)
            )
            for spec in backend.signature.inputs
        }
        parts = [{name: array[row : row + 1] for name, array in inputs.items()} for row in range(rows)]
        for name, expected in reference.run(inputs).items():
            np.testing.assert_allclose(backend.run_prepared(backend.prepare(parts))[name], expected, atol=0.02)


def test_recorded_runs_give_new_answers(make_model: MakeModel) -> None:
    """What is replayed reads the rows that are there now. Two batches at a time: a graph for each set of buffers."""
    path = make_model("fixed_batch")
    backend, reference = loaded(path, cuda_graphs=True), on_cpu(path)
    random = np.random.default_rng(0)
    waiting = []
    for rows in (4, 1, 3, 2, 4, 4):
        values = random.standard_normal((rows, 8), np.float32)
        waiting.append((values, backend.prepare([{"x": values}])))
        if len(waiting) == 2:
            values, prepared = waiting.pop(0)
            assert isinstance(prepared.staged, Filled)
            assert prepared.staged.slot.graph
            np.testing.assert_allclose(
                backend.run_prepared(prepared)["y"], reference.run({"x": values})["y"], atol=1e-5
            )


def test_recording_and_copying_do_not_disturb_each_other(make_model: MakeModel) -> None:
    """A thread prepares batches all the time, while another meets shape after shape."""
    path = make_model("seq_mean")
    backend = loaded(path, cuda_graphs=True, row_sizes=(1, 2, 4, 8))
    inputs = {
        spec.name: np.ones((8, *(5 if size < 0 else size for size in spec.shape[1:])), np.int64)
        for spec in backend.signature.inputs
    }
    faults: list[BaseException] = []
    done = threading.Event()

    def copy() -> None:
        try:
            while not done.is_set():
                backend.discard(backend.prepare([inputs]))
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        for length in range(2, 9):
            for rows in (1, 2, 4, 8):
                batch = {name: np.ones((rows, length), np.int64) for name in inputs}
                backend.run(batch)
    finally:
        done.set()
        thread.join()

    assert faults == []


def test_a_model_of_many_shapes_is_not_recorded(make_model: MakeModel) -> None:
    """The message says what to do."""
    with pytest.raises(ConfigError, match=r"set resources\.cuda_graphs: false$"):
        loaded(make_model("add_one"), cuda_graphs=True, row_sizes=(1, 4), few_lengths=False)


def test_a_failing_batch_leaves_the_buffers_usable(make_model: MakeModel) -> None:
    """Inputs that are not the model's."""
    backend = loaded(make_model("add_one"), device_buffers=True)

    with pytest.raises(InferenceFailed):
        backend.run({"x": np.zeros((1, 2), np.float64)})

    assert backend.run({"x": np.zeros((1, 2), np.float32)})["y"].tolist() == [[1, 1]]


@pytest.mark.skipif(not preload_tensorrt(), reason="needs TensorRT")
@pytest.mark.parametrize("fp16", [False, True])
def test_tensorrt_gives_the_answers_of_the_cpu(make_model: MakeModel, tmp_path: Path, fp16: bool) -> None:
    """And keeps its engine."""
    path = make_model("fixed_batch")
    backend = loaded(path, tensorrt=True, tensorrt_fp16=fp16, tensorrt_cache=tmp_path, max_rows=4)
    values = np.ones((3, 8), np.float32)

    assert backend.providers[0] == TENSORRT
    np.testing.assert_allclose(backend.run({"x": values})["y"], on_cpu(path).run({"x": values})["y"], atol=0.01)
    assert list(tmp_path.iterdir())
