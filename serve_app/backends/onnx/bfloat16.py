"""Runs models with BF16 inputs or outputs. ONNX Runtime has no numpy arrays for them: they are passed as memory.

Few CPU kernels support bfloat16. A model that casts it to FP32 first and back last runs anywhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from serve_app.payloads import DTYPES, ModelSignature, Tensors

_BFLOAT16 = DTYPES["BF16"]
_ONNX_BFLOAT16 = 16
"""`onnx.TensorProto.BFLOAT16`."""


def takes_or_gives_bfloat16(signature: ModelSignature) -> bool:
    """Whether a model needs `run_bfloat16`."""
    return any(spec.datatype == "BF16" for spec in (*signature.inputs, *signature.outputs))


def run_bfloat16(session: Any, outputs: Sequence[str], inputs: Tensors, options: Any) -> list[npt.NDArray[Any]]:
    """``session.run`` with arrays of `ml_dtypes.bfloat16` among inputs or outputs.

    Args:
        session: An `onnxruntime.InferenceSession`.
    """
    values: Mapping[str, Any] = {name: _value_of(array) for name, array in inputs.items()}
    return [_array_of(value) for value in session.run_with_ort_values(list(outputs), values, options)]


def _value_of(array: npt.NDArray[Any]) -> Any:
    if array.dtype != _BFLOAT16:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    words = np.ascontiguousarray(array).view(np.uint16).reshape(array.shape)  # which made an array of a scalar
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(words, _ONNX_BFLOAT16)


def _array_of(value: Any) -> npt.NDArray[Any]:
    if value.element_type() != _ONNX_BFLOAT16:
        array: npt.NDArray[Any] = value.numpy()
        return array
    shape = value.shape()
    # A copy: the memory is ONNX Runtime's, and goes with the value.
    return np.frombuffer(ctypes.string_at(value.data_ptr(), 2 * prod(shape)), _BFLOAT16).reshape(shape)
