"""Models whose answers tell which of their files answered: 4 MiB of weights and a number, for each backend."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

MODEL = "constant"
SIZE = 1024
"""The models take rows of so many numbers, and have so many times so many weights."""

_PYTHON = """
import numpy as np

NUMBER = {number}

class Constant:
    inputs = {{"x": ("float32", [-1, {size}])}}
    outputs = {{"y": ("float32", [-1, 1])}}
    rows_independent = True
    files = ["weights.npz"]

    def setup(self, context):
        kept = np.load(context.folder / "weights.npz")
        self.weights = kept["weights"]
        self.number = NUMBER if kept["number"] == NUMBER else -1  # code and weights of two builds answer wrongly

    def predict(self, batch):
        nothing = (batch["x"] @ self.weights) * np.float32(0)
        return {{"y": nothing.max(axis=1, keepdims=True) + np.float32(self.number)}}
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of model.

    Attributes:
        files: Writes the model that answers with a number: the content of each file by name, in the order in which
            they are to be replaced.
        settings: Of a model of this kind, besides its name and path.
        needs: Module that this environment must have.
    """

    files: Callable[[int], Mapping[str, bytes]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs: str = "numpy"

    @property
    def usable(self) -> bool:
        """Whether this environment has what it needs."""
        return find_spec(self.needs) is not None

    def write(self, folder: Path, number: int) -> int:
        """Put the model that answers with this number into a folder; each file is replaced whole. Returns its bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        contents = self.files(number)
        for name, content in contents.items():
            beside = folder / "next.tmp"
            beside.write_bytes(content)
            beside.rename(folder / name)
        return sum(map(len, contents.values()))


def _weights(number: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(number).random((SIZE, SIZE), np.float32)


def _onnx(number: int) -> Mapping[str, bytes]:
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "weights"], ["product"]),
            helper.make_node("Mul", ["product", "zero"], ["nothing"]),
            helper.make_node("ReduceMax", ["nothing"], ["none"], axes=[1], keepdims=1),
            helper.make_node("Add", ["none", "constant"], ["y"]),
        ],
        MODEL,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])],
        [
            numpy_helper.from_array(_weights(number), "weights"),
            numpy_helper.from_array(np.zeros(1, np.float32), "zero"),
            numpy_helper.from_array(np.full(1, number, np.float32), "constant"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return {"model.onnx": model.SerializeToString()}


def _python(number: int) -> Mapping[str, bytes]:
    weights = io.BytesIO()
    np.savez(weights, weights=_weights(number), number=np.int64(number))
    return {"weights.npz": weights.getvalue(), "model.py": _PYTHON.format(number=number, size=SIZE).encode("ascii")}


@cache
def _module() -> Any:
    """A module that does what the ONNX model does. Its numbers are buffers, which are replaced."""
    import torch  # noqa: PLC0415 - only some environments have it

    class Constant(torch.nn.Module):  # type: ignore[misc]  # not in this environment
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weights", torch.zeros(SIZE, SIZE))
            self.register_buffer("number", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            return (torch.matmul(x, self.weights) * 0.0).amax(dim=1, keepdim=True) + self.number

    return Constant().eval()


@contextmanager
def _deprecated() -> Iterator[None]:
    """TorchScript is, says PyTorch at every step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@cache
def _scripted() -> Any:
    import torch  # noqa: PLC0415

    with _deprecated():
        return torch.jit.trace(_module(), torch.ones(2, SIZE))


@cache
def _exported() -> Any:
    import torch  # noqa: PLC0415

    return torch.export.export(_module(), (torch.ones(2, SIZE),), dynamic_shapes={"x": {0: torch.export.Dim("rows")}})


def _fill(state: Mapping[str, Any], number: int) -> None:
    import torch  # noqa: PLC0415

    state["weights"].copy_(torch.from_numpy(_weights(number)))
    state["number"].fill_(number)


def _torchscript(number: int) -> Mapping[str, bytes]:
    import torch  # noqa: PLC0415

    module, content = _scripted(), io.BytesIO()
    _fill(module.state_dict(), number)
    with _deprecated():
        torch.jit.save(module, content)
    return {"model.pt": content.getvalue()}


def _torch_export(number: int) -> Mapping[str, bytes]:
    import torch  # noqa: PLC0415

    program, content = _exported(), io.BytesIO()
    _fill(program.state_dict, number)
    torch.export.save(program, content)
    return {"model.pt2": content.getvalue()}


_TENSORS = {
    "inputs": {"x": {"dtype": "float32", "shape": [-1, SIZE]}},
    "outputs": {"y": {"dtype": "float32", "shape": [-1, 1]}},
}

KINDS: Mapping[str, Kind] = {
    "onnx": Kind(_onnx),
    "python": Kind(_python, {"backend": "python"}),
    "python-own": Kind(_python, {"backend": "python", "backend_options": {"environment": {"python": sys.executable}}}),
    "torchscript": Kind(
        _torchscript, {"backend_options": _TENSORS, "batching": {"unverified": "allow"}}, needs="torch"
    ),
    "torch-export": Kind(_torch_export, needs="torch"),
}
"""By backend; ``python-own`` is a class in a process of its own."""
