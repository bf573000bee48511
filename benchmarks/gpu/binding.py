"""What copying between host and GPU costs, and what bound or page-locked buffers would save.

Every way starts from the rows of a batch as they wait in a replica, apart, and ends with an answer of its own memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from benchmarks.gpu.subjects import Bench, distance, make_inputs, measure
from serve_app.inference.batch import assemble
from serve_app.inference.device import preload_cuda, providers_for
from serve_app.payloads import Tensors

_CASES = (("pool", (1, 8, 32, 128)), ("digits", (1, 32, 256)), ("wide", (1, 8, 64, 256)), ("resnet50", (1, 8, 32, 128)))


def check(bench: Bench) -> list[dict[str, Any]]:
    """Ways to run the same batch, each for several sizes."""
    if bench.device == "cuda":
        preload_cuda()
    return [_compare(bench, name, rows) for name, sizes in _CASES if bench.file(name).exists() for rows in sizes]


def _compare(bench: Bench, name: str, rows: int) -> dict[str, Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        bench.file(name), options, providers=providers_for(bench.device, None), enable_fallback=0
    )
    backend = bench.load(name)
    inputs = make_inputs(backend.signature, rows, 1)
    entries = [{name: array[row : row + 1].copy() for name, array in inputs.items()} for row in range(rows)]
    expected = backend.run(inputs)
    kept = {name: np.empty_like(array) for name, array in inputs.items()}
    ways: dict[str, Callable[[], Tensors]] = {
        "plain": lambda: backend.run(assemble(entries)),
        "kept buffer": lambda: backend.run(_assemble_into(kept, entries)),
    }
    if bench.device == "cuda":
        locked = _PageLocked()
        ways |= {
            "bound": _bound(session, entries, inputs, expected),
            "page-locked": _page_locked(session, entries, inputs, expected, locked),
            "page-locked, bound": _page_locked_bound(session, entries, inputs, expected, locked),
            "resident": _resident(session, inputs, expected),
        }
    found: dict[str, Any] = {
        "model": name,
        "rows": rows,
        "bytes_in": sum(array.nbytes for array in inputs.values()),
        "bytes_out": sum(array.nbytes for array in expected.values()),
        "ways": {},
    }
    for way, run in ways.items():
        timing = measure(run, bench.seconds / 5)
        found["ways"][way] = {**timing.as_json(), "distance": distance(run(), expected)}
    if bench.device == "cuda":
        locked.free()
    return found


def _assemble_into(buffers: Tensors, entries: Sequence[Tensors]) -> Tensors:
    """Join the rows in memory that is there already."""
    for name, buffer in buffers.items():
        np.concatenate([entry[name] for entry in entries], out=buffer)
    return buffers


def _bound(session: Any, entries: Sequence[Tensors], inputs: Tensors, expected: Tensors) -> Callable[[], Tensors]:
    """Buffers on the GPU that are filled and read by explicit copies."""
    binding = session.io_binding()
    on_gpu = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0) for name, array in inputs.items()}
    for name, value in on_gpu.items():
        binding.bind_ortvalue_input(name, value)
    for name in expected:
        binding.bind_output(name, "cuda", 0)

    def run() -> Tensors:
        for name, array in assemble(entries).items():
            on_gpu[name].update_inplace(array)
        session.run_with_iobinding(binding)
        return dict(zip(expected, binding.copy_outputs_to_cpu(), strict=True))

    return run


def _page_locked(
    session: Any, entries: Sequence[Tensors], inputs: Tensors, expected: Tensors, locked: _PageLocked
) -> Callable[[], Tensors]:
    """An ordinary run of a batch that was assembled in page-locked memory."""
    names = list(expected)
    staged = {name: locked.like(array) for name, array in inputs.items()}

    def run() -> Tensors:
        return dict(zip(names, session.run(names, _assemble_into(staged, entries)), strict=True))

    return run


def _page_locked_bound(
    session: Any, entries: Sequence[Tensors], inputs: Tensors, expected: Tensors, locked: _PageLocked
) -> Callable[[], Tensors]:
    """Page-locked host buffers bound as inputs and outputs; the answer is copied out of its buffer."""
    staged = {name: locked.like(array) for name, array in inputs.items()}
    results = {name: locked.like(array) for name, array in expected.items()}
    binding = session.io_binding()
    for name, array in results.items():
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def run() -> Tensors:
        for name, array in _assemble_into(staged, entries).items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)  # copies it to the GPU
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return {name: array.copy() for name, array in results.items()}

    return run


def _resident(session: Any, inputs: Tensors, expected: Tensors) -> Callable[[], Tensors]:
    """No copies at all: what is left is the model. Not a way to serve, but the floor of the others."""
    binding = session.io_binding()
    kept = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0) for name, array in inputs.items()}
    for name, value in kept.items():
        binding.bind_ortvalue_input(name, value)
    for name in expected:
        binding.bind_output(name, "cuda", 0)

    def run() -> Tensors:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return expected

    return run


class _PageLocked:
    """Page-locked host memory from the CUDA runtime that ONNX Runtime has loaded."""

    def __init__(self) -> None:
        major = onnxruntime.cuda_version.partition(".")[0]
        self._runtime = ctypes.CDLL(f"libcudart.so.{major}")
        self._blocks: list[ctypes.c_void_p] = []

    def like(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """An array of the same shape and dtype."""
        block = ctypes.c_void_p()
        status = self._runtime.cudaHostAlloc(ctypes.byref(block), ctypes.c_size_t(array.nbytes), ctypes.c_uint(0))
        if status != 0 or block.value is None:
            raise MemoryError(f"cudaHostAlloc gave error {status}")
        self._blocks.append(block)
        memory = (ctypes.c_byte * array.nbytes).from_address(block.value)
        return np.ctypeslib.as_array(memory).view(array.dtype).reshape(array.shape)

    def free(self) -> None:
        """Give it back. No array made of it may be used after that."""
        for block in self._blocks:
            self._runtime.cudaFreeHost(block)
        self._blocks.clear()
