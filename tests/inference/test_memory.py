"""The seam to the device's memory."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from serve_app.inference.device import preload_cuda
from serve_app.inference.memory import CudaMemory, HostMemory


def test_memory_of_the_host_is_aligned() -> None:
    """ONNX Runtime need not copy it."""
    blocks = [HostMemory().host(size) for size in (0, 1, 65)]

    assert [(block.ctypes.data % 64, len(block)) for block in blocks] == [(0, 1), (0, 1), (0, 65)]


def test_what_goes_up_comes_down() -> None:
    """The CPU is a device, too."""
    memory = HostMemory()
    on_device = memory.host(12)
    found = np.empty(3, np.float32)

    memory.upload(np.array([1, 2, 3], np.float32), on_device.ctypes.data)
    memory.download(on_device.ctypes.data, found)

    assert found.tolist() == [1, 2, 3]


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="needs a machine without CUDA")
def test_without_a_gpu_there_is_no_memory_on_one() -> None:
    """Either there is no CUDA runtime, or it finds no device."""
    preload_cuda()

    with pytest.raises((OSError, RuntimeError), match=r"libcudart|CUDA error \d+ in cudaStreamCreateWithFlags"):
        CudaMemory()
