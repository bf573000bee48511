"""The cases of the `onnx` package that every ONNX runtime is tested with, in forms that a server has to deal with.

======== ===================================================================================================
form     what is done to the model
======== ===================================================================================================
as-is    nothing
symbolic the first dimension of every input and output that has one is the same symbol
distinct likewise, but every input and output has a symbol of its own
frozen   as symbolic, and all inputs but the first are constants, as weights are
======== ===================================================================================================
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args
from unittest.mock import patch

import numpy as np
import onnx
from onnx import numpy_helper

from conformance.alone import DTYPES, Alone, Array, Tensors
from conformance.row_requests import is_deterministic

Form: TypeAlias = Literal["as-is", "symbolic", "distinct", "frozen"]
FORMS: tuple[Form, ...] = get_args(Form)
_KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted", "real")
_FROZEN_IR = 4
"""The first version of the format in which a constant need not be an input."""
_NEWEST_IR = 13
_NEWEST_OPSET = 26
"""The newest that ONNX Runtime reads. What is newer is taken for that: the judge reads the same file as the server."""


class Case(NamedTuple):
    """One model with data of its own.

    Attributes:
        name: Its kind and name.
        model: The model.
        data: Inputs by name, at least one set.
    """

    name: str
    model: onnx.ModelProto
    data: list[Tensors]


class Cases(NamedTuple):
    """What can be served, and what of the package cannot.

    Attributes:
        usable: Cases whose tensors the protocol can carry.
        left_out: How many others, by reason.
    """

    usable: list[Case]
    left_out: Counter[str]


def load_cases() -> Cases:
    """Make all of them, in a fixed order. Takes a second: the package computes its data anew."""
    usable: list[Case] = []
    left_out: Counter[str] = Counter()
    for found in _found():
        case = found if isinstance(found, str) else _usable(*found)
        if isinstance(case, str):
            left_out[case] += 1
        else:
            usable.append(case)
    return Cases(sorted(usable), left_out)


def in_form(case: Case, form: Form) -> Case | None:
    """The case in another form; ``None`` where that changes nothing about it."""
    if form == "as-is":
        return case
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graph = model.graph
    del graph.value_info[:]
    first, data = graph.input[0].name if graph.input else "", case.data
    if form == "frozen":
        if len(case.data[0]) < 2:
            return None
        others = {name: array for name, array in case.data[0].items() if name != first}
        graph.initializer.extend(_tensor(name, array) for name, array in others.items())
        del graph.input[1:]
        model.ir_version = max(model.ir_version, _FROZEN_IR)
        data = [{first: tensors[first]} for tensors in case.data]
    taken = [value for value in graph.input if _dims(value)]
    if not taken or (form == "distinct" and len(taken) < 2):
        return None
    for number, value in enumerate((*taken, *(value for value in graph.output if _dims(value)))):
        _dims(value)[0].dim_param = f"rows_{number}" if form == "distinct" else "rows"
    return Case(case.name, model, data)


def alone(case: Case) -> Alone | str:
    """The case in ONNX Runtime alone, or why it does not count."""
    try:
        made = Alone(case.model.SerializeToString())
    except Exception as error:  # of ONNX Runtime, whose exceptions share no base but Exception
        return f"ONNX Runtime cannot load it ({type(error).__name__})"
    if not is_deterministic(made, case.data[0]):
        return "ONNX Runtime cannot run it, or answers twice differently"
    return made


def _found() -> Iterator[str | tuple[str, onnx.ModelProto, Sequence[Any]]]:
    from onnx.backend.test.loader import load_model_tests

    # The answers that the package expects are not looked at. Three quarters of its time are for those of pooling.
    pooling = patch("onnx.reference.ops.op_pool_common.pool", _of_the_shape_of_a_pool)
    with warnings.catch_warnings(), np.errstate(all="ignore"), pooling:
        warnings.simplefilter("ignore")  # about overflows in data that is meant to overflow
        for kind in _KINDS:
            for test in load_model_tests(kind=kind):
                name = f"{kind}/{test.name}"
                if test.model is not None:
                    yield name, test.model, [inputs for inputs, _ in test.data_sets or ()]
                elif test.model_dir is None:
                    yield "its data would have to be downloaded or generated at scale"
                else:
                    folder = Path(test.model_dir)
                    yield name, onnx.load(folder / "model.onnx"), [*_read(folder)]


def _of_the_shape_of_a_pool(
    padded: Array, x_shape: Sequence[int], kernel: Any, strides: Any, out: Any, *_: Any, **__: Any
) -> Array:
    return np.zeros((*x_shape[:2], *out), padded.dtype)


def _read(folder: Path) -> Iterator[list[onnx.TensorProto]]:
    for data in sorted(folder.glob("test_data_set_*")):
        files = sorted(data.glob("input_*.pb"), key=lambda file: int(file.stem.removeprefix("input_")))
        yield [onnx.TensorProto.FromString(file.read_bytes()) for file in files]


def _usable(name: str, model: onnx.ModelProto, sets: Sequence[Sequence[Any]]) -> Case | str:
    constants = {tensor.name for tensor in model.graph.initializer}
    taken = [value for value in model.graph.input if value.name not in constants]
    known = {onnx.helper.np_dtype_to_tensor_dtype(dtype) for dtype in DTYPES.values() if not dtype.hasobject}
    known.add(onnx.TensorProto.STRING)
    for value in (*taken, *model.graph.output):
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            return f"the protocol carries no {str(kind).removesuffix('_type')}"
        if value.type.tensor_type.elem_type not in known:
            found = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
            return f"the protocol carries no {found}"
    data = [
        {value.name: _array(given, value) for value, given in zip(taken, inputs, strict=False)}
        for inputs in sets
        if len(inputs) >= len(taken)
    ]
    model.ir_version = min(model.ir_version, _NEWEST_IR)
    for used in model.opset_import:
        if not used.domain:
            used.version = min(used.version, _NEWEST_OPSET)
    return Case(name, model, data) if data else "it has no data"


def _array(given: Any, value: onnx.ValueInfoProto) -> Array:
    array = numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else np.asarray(given)
    if value.type.tensor_type.elem_type != onnx.TensorProto.STRING:
        return np.ascontiguousarray(array).reshape(array.shape)
    texts = np.empty(array.size, np.object_)
    texts[:] = [item.decode() if isinstance(item, bytes) else str(item) for item in array.ravel().tolist()]
    return texts.reshape(array.shape)


def _tensor(name: str, array: Array) -> onnx.TensorProto:
    if array.dtype != object:
        return numpy_helper.from_array(array, name)
    return onnx.helper.make_tensor(name, onnx.TensorProto.STRING, array.shape, [s.encode() for s in array.ravel()])


def _dims(value: onnx.ValueInfoProto) -> Any:
    return value.type.tensor_type.shape.dim
