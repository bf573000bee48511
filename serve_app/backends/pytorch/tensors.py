"""Converts between tensors of PyTorch and arrays of numpy."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from serve_app.payloads import DTYPES

_BFLOAT16 = DTYPES["BF16"]


def import_torch() -> Any:
    """Import PyTorch, which takes seconds and hundreds of MiB: only for running a model."""
    return importlib.import_module("torch")


def to_torch(torch: Any, array: npt.NDArray[Any], *, copy: bool) -> Any:
    """A tensor of the array's values.

    Args:
        array: Possibly read-only or not contiguous.
        copy: Whether the tensor owns its memory. Otherwise it shares that of a contiguous array, must not be written
            to, and must not outlive the array.
    """
    if copy or not array.flags.c_contiguous or not array.flags.aligned:
        array = np.array(array, order="C")
    words = array.view(np.uint16) if array.dtype == _BFLOAT16 else array
    if not words.flags.writeable:
        words = np.asarray(_Writable(words))
    tensor = torch.from_numpy(words)
    return tensor.view(torch.bfloat16) if array.dtype == _BFLOAT16 else tensor


def to_numpy(torch: Any, tensor: Any) -> npt.NDArray[Any]:
    """A copy of the tensor's values, since the model may reuse the tensor's memory."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return np.array(tensor.contiguous().view(torch.uint16).numpy(), order="C").view(_BFLOAT16)
    return np.array(tensor.numpy(), order="C")


class _Writable:
    """Presents a read-only array's memory as writable: PyTorch has no read-only tensors, and warns."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        interface = array.__array_interface__
        self._array = array  # keeps the memory
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
