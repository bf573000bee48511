"""ONNX Runtime alone: what an answer has to be, without anything of the server around it."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnxruntime

Array: TypeAlias = npt.NDArray[Any]
Tensors: TypeAlias = dict[str, Array]

DTYPES = {
    "tensor(bool)": np.dtype(np.bool_),
    **{f"tensor({sign}int{bits})": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "tensor(float16)": np.dtype(np.float16),
    "tensor(bfloat16)": np.dtype(ml_dtypes.bfloat16),
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(string)": np.dtype(np.object_),
}
"""What the Open Inference Protocol can carry, by ONNX Runtime's name of it."""

_BFLOAT16 = DTYPES["tensor(bfloat16)"]
_ONNX_BFLOAT16 = 16
_RELATIVE = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 2e-3, _BFLOAT16: 1.6e-2, np.dtype(np.float64): 1e-9}
"""What a number may be off by, as a part of the largest magnitude in its tensor."""


class Port(NamedTuple):
    """An input or output of a model: a number in ``shape`` is fixed, a text a symbol, ``None`` nothing."""

    name: str
    type: str
    shape: tuple[int | str | None, ...]


class Alone:
    """One model in a session of its own, with the options that the server takes by default.

    Args:
        model: The bytes of the ONNX file.

    Attributes:
        inputs: What it takes.
        outputs: What it gives.

    Raises:
        Exception: ONNX Runtime cannot load it.
    """

    def __init__(self, model: bytes) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.inputs = tuple(Port(port.name, port.type, tuple(port.shape)) for port in self._session.get_inputs())
        self.outputs = tuple(Port(port.name, port.type, tuple(port.shape)) for port in self._session.get_outputs())
        self._names = [port.name for port in self.outputs]
        self._bfloat16 = any(port.type == "tensor(bfloat16)" for port in (*self.inputs, *self.outputs))
        self._options = onnxruntime.RunOptions()
        self._options.log_severity_level = 4

    def run(self, inputs: Tensors) -> Tensors:
        """Every output by name.

        Raises:
            Exception: ONNX Runtime cannot run this.
        """
        if not self._bfloat16:
            return dict(zip(self._names, self._session.run(self._names, inputs, self._options), strict=True))
        values = {name: _value_of(array) for name, array in inputs.items()}
        given = self._session.run_with_ort_values(self._names, values, self._options)
        return {name: _array_of(value) for name, value in zip(self._names, given, strict=True)}


def difference(expected: Tensors, given: Tensors) -> str | None:
    """What tells two answers apart, in a line; ``None`` where they are the same."""
    if set(expected) != set(given):
        return f"outputs {sorted(given)} where {sorted(expected)} are expected"
    for name, wanted in expected.items():
        found = difference_of(wanted, given[name])
        if found is not None:
            return f"{name}: {found}"
    return None


def difference_of(expected: Array, given: Array) -> str | None:
    """As `difference`, of one tensor: its shape, its dtype and its values."""
    if expected.shape != given.shape:
        return f"shape {given.shape} where {expected.shape} is expected"
    if expected.dtype != given.dtype:
        return f"dtype {given.dtype} where {expected.dtype} is expected"
    tolerance = _RELATIVE.get(expected.dtype)
    if tolerance is None:
        same = np.equal(_texts(expected), _texts(given)) if expected.dtype == object else expected == given
    else:
        wide, found = expected.astype(np.float64), given.astype(np.float64)
        finite = np.isfinite(wide)
        scale = np.abs(wide[finite]).max(initial=0.0)
        with np.errstate(invalid="ignore"):
            close = np.abs(wide - found) <= tolerance * scale
        same = (wide == found) | (np.isnan(wide) & np.isnan(found)) | (finite & np.isfinite(found) & close)
    if np.all(same):
        return None
    where = tuple(int(at) for at in np.argwhere(~np.asarray(same))[0])
    return f"at {list(where)} {given[where]!r} where {expected[where]!r} is expected"


def _texts(array: Array) -> Array:
    made = np.empty(array.size, np.object_)
    made[:] = [item if isinstance(item, bytes) else str(item).encode() for item in array.ravel().tolist()]
    return made.reshape(array.shape)


def _value_of(array: Array) -> Any:
    if array.dtype != _BFLOAT16:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    words = np.ascontiguousarray(array).view(np.uint16)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(words.reshape(array.shape), _ONNX_BFLOAT16)


def _array_of(value: Any) -> Array:
    if value.element_type() != _ONNX_BFLOAT16:
        array: Array = value.numpy()
        return array
    shape = value.shape()
    return np.frombuffer(ctypes.string_at(value.data_ptr(), 2 * prod(shape)), _BFLOAT16).reshape(shape)
