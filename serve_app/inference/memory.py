"""Where a session keeps its inputs and outputs, and how rows get there and back.

The narrow seam to the device: what is above it is the same on the CPU, where the tests run.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnxruntime

_ALIGNMENT = 64
"""Bytes. ONNX Runtime aligns its own tensors to this; a cache line, and the widest vector register."""

_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2  # cudaMemcpyKind
_NON_BLOCKING = 1  # cudaStreamNonBlocking: does not wait for the default stream, nor the default stream for it


class Memory(Protocol):
    """The memory of one device. Its methods may be called from several threads."""

    @property
    def device(self) -> str:
        """The device in ONNX Runtime's words: ``cpu`` or ``cuda``."""

    def host(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Bytes on the host, at least one, that `upload` reads fastest. They live as long as arrays made of them."""

    def upload(self, array: npt.NDArray[Any], address: int) -> None:
        """Copy a contiguous array to an address of the device, and wait for it. Raises ``RuntimeError``."""

    def download(self, address: int, array: npt.NDArray[Any]) -> None:
        """Fill a contiguous array from an address of the device, and wait for it. Raises ``RuntimeError``."""


class HostMemory:
    """The memory of the CPU."""

    device = "cpu"

    def host(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Aligned bytes."""
        block = np.empty(max(nbytes, 1) + _ALIGNMENT, np.uint8)
        start = -block.ctypes.data % _ALIGNMENT
        return block[start : start + max(nbytes, 1)]

    def upload(self, array: npt.NDArray[Any], address: int) -> None:
        """Copy."""
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def download(self, address: int, array: npt.NDArray[Any]) -> None:
        """Copy."""
        ctypes.memmove(array.ctypes.data, address, array.nbytes)


class CudaMemory:
    """The memory of the process's first GPU.

    ONNX Runtime's own copy, `OrtValue.update_inplace`, holds Python's lock until it is done, so it would stop every
    other thread. These copies are made by the CUDA runtime that ONNX Runtime has loaded: foreign calls hold no lock.
    They have a stream for each direction, and ONNX Runtime computes on one of its own, so all three overlap.

    Raises:
        OSError: There is no CUDA runtime.
        RuntimeError: It has no device.
    """

    device = "cuda"

    def __init__(self) -> None:
        major = str(onnxruntime.cuda_version).partition(".")[0]
        self._runtime = ctypes.CDLL(f"libcudart.so.{major}")
        self._runtime.cudaMemcpyAsync.argtypes = (
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_void_p,
        )
        self._runtime.cudaStreamSynchronize.argtypes = (ctypes.c_void_p,)
        self._runtime.cudaHostAlloc.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_uint)
        self._runtime.cudaFreeHost.argtypes = (ctypes.c_void_p,)
        self._in = self._stream()
        self._out = self._stream()

    def host(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Page-locked bytes."""
        pointer = ctypes.c_void_p()
        self._call("cudaHostAlloc", ctypes.byref(pointer), max(nbytes, 1), 0)
        assert pointer.value is not None
        block = (ctypes.c_uint8 * max(nbytes, 1)).from_address(pointer.value)
        # Not at exit: the runtime may be gone by then, and the process gives everything back anyway.
        weakref.finalize(block, self._runtime.cudaFreeHost, pointer).atexit = False
        return np.ctypeslib.as_array(block)

    def upload(self, array: npt.NDArray[Any], address: int) -> None:
        """Copy beside whatever computes."""
        self._copy(address, array.ctypes.data, array.nbytes, _HOST_TO_DEVICE, self._in)

    def download(self, address: int, array: npt.NDArray[Any]) -> None:
        """Copy beside whatever computes."""
        self._copy(array.ctypes.data, address, array.nbytes, _DEVICE_TO_HOST, self._out)

    def _copy(self, target: int, source: int, nbytes: int, kind: int, stream: ctypes.c_void_p) -> None:
        if nbytes == 0:
            return
        self._call("cudaMemcpyAsync", target, source, nbytes, kind, stream)
        self._call("cudaStreamSynchronize", stream)

    def _stream(self) -> ctypes.c_void_p:
        stream = ctypes.c_void_p()
        self._call("cudaStreamCreateWithFlags", ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING))
        return stream

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._runtime, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"CUDA error {status} in {name}")
