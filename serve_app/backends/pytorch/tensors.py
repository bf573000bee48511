"""Tensors of PyTorch and arrays of numpy, and what their types are called."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from serve_app.payloads import DTYPES

_BFLOAT16 = DTYPES["BF16"]


def import_torch() -> Any:
    """PyTorch. Importing it takes seconds and hundreds of MiB: only what runs a model does."""
    return importlib.import_module("torch")


def to_torch(torch: Any, array: npt.NDArray[Any], *, copy: bool) -> Any:
    """A tensor of the array's values.

    Args:
        torch: PyTorch.
        array: It may be read-only and need not be contiguous.
        copy: Whether the tensor has memory of its own. Otherwise it has the array's where that is contiguous, must not
            be written to, and must not outlive the array.
    """
    if copy or not array.flags.c_contiguous or not array.flags.aligned:
        array = np.array(array, order="C")
    words = array.view(np.uint16) if array.dtype == _BFLOAT16 else array
    if not words.flags.writeable:
        words = np.asarray(_Writable(words))
    tensor = torch.from_numpy(words)
    return tensor.view(torch.bfloat16) if array.dtype == _BFLOAT16 else tensor


def to_numpy(torch: Any, tensor: Any) -> npt.NDArray[Any]:
    """An array of the tensor's values, with memory of its own: the model may go on using the tensor's.

    Raises:
        TypeError, RuntimeError: It is of a type or layout that numpy does not have.
    """
    if tensor.dtype == torch.bfloat16:
        return np.array(tensor.detach().contiguous().view(torch.uint16).numpy(), order="C").view(_BFLOAT16)
    return np.array(tensor.detach().numpy(), order="C")


class _Writable:
    """The memory of a read-only array as that of a writable one: PyTorch has no read-only tensors, and warns."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        interface = array.__array_interface__
        self._array = array  # keeps the memory
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
