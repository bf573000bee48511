"""Members of a measured pool: many models of one size, each with an answer of its own, and requests to them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.requests import Request
from benchmarks.wires import binary_request

WIDTH = 1448
"""Of the square of weights: 8 MB."""
_DEPTH = 128
"""How often a row runs through the weights, so that one row costs some milliseconds."""
_INPUTS = 16
_VALUES = 1024
"""Requests differ in their value: no answer to one is that to another, of this member or of any."""
_MARK = np.float32(123456.78)
"""Stands where the member's own constant comes."""


def member_name(number: int) -> str:
    """The name of the member of this number."""
    return f"member-{number:04d}"


def write_members(folder: Path, count: int) -> int:
    """Write ``member-0000/1/model.onnx`` and so on.

    The file of each gives ``y = largest of x + 1024 * its number``, exactly: with the zeros that the weights come to.

    Returns:
        Bytes of one.
    """
    content = bytearray(_graph().SerializeToString())
    mark = content.find(_MARK.tobytes())
    if mark < 0 or content.find(_MARK.tobytes(), mark + 1) >= 0:
        raise ValueError("the mark of the constant does not stand in the file once")
    for number in range(count):
        content[mark : mark + 4] = _constant(number).tobytes()
        file = folder / member_name(number) / "1" / "model.onnx"
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
    return len(content)


def request(value: int) -> Request:
    """What is sent to any member."""
    return binary_request({"x": np.full((1, _INPUTS), value % _VALUES, np.float32)})


def answer(number: int, value: int) -> bytes:
    """What the answer to `request` ends with, of the member of this number."""
    return (_constant(number) + np.float32(value % _VALUES)).tobytes()


def requests_and_answers(numbers: Iterable[int]) -> tuple[list[Request], list[bytes]]:
    """A request to each of these members, and what its answer ends with."""
    bodies = [request(value) for value in range(_VALUES)]
    chosen = list(enumerate(numbers))
    return [bodies[value % _VALUES] for value, _ in chosen], [answer(number, value) for value, number in chosen]


def _constant(number: int) -> np.float32:
    return np.float32(_VALUES * number)


def _graph() -> onnx.ModelProto:
    random = np.random.default_rng(1)
    node = helper.make_node
    constants = {
        "weights": random.random((WIDTH, WIDTH), dtype=np.float32),
        "offsets": random.random((1, _DEPTH, WIDTH), dtype=np.float32),
        "last": np.array([2], np.int64),
        "zero": np.zeros(1, np.float32),
        "constant": np.array([_MARK]),
    }
    graph = helper.make_graph(
        [
            node("ReduceMax", ["x"], ["largest"], axes=[1], keepdims=1),
            node("Unsqueeze", ["largest", "last"], ["each"]),
            node("Add", ["each", "offsets"], ["several"]),
            node("MatMul", ["several", "weights"], ["product"]),
            node("Mul", ["product", "zero"], ["nothing"]),
            node("ReduceMax", ["nothing"], ["nothing_each"], axes=[2], keepdims=0),
            node("ReduceMax", ["nothing_each"], ["none"], axes=[1], keepdims=1),
            node("Add", ["none", "largest"], ["sum"]),
            node("Add", ["sum", "constant"], ["y"]),
        ],
        "member",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", _INPUTS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
