"""Models whose rows depend on each other: eight clients at once must get what each would get alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_models
import pytest
from local_server import LocalServer
from onnx import TensorProto, helper

from conformance.alone import Array, difference_of
from conformance.asking import CLIENTS, Ask, Reply, Way, ask_together
from conformance.serving import model_args, server_args

_AXIS = {"axis": np.array(0, np.int64)}


def _serve(folder: Path, nodes: Sequence[object], shape: onnx_models.Shape) -> LocalServer:
    """A server of one model that takes ``x`` and gives ``y``, FP32 of this shape both."""
    file = folder / "model" / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    ends = (TensorProto.FLOAT, shape)
    constants = _AXIS if any("axis" in node.input for node in nodes) else None  # type: ignore[attr-defined]
    onnx_models.write(file, nodes, [("x", *ends)], [("y", *ends)], constants)
    return LocalServer(server_args([model_args("model", folder / "model")]))


def _ask(server: LocalServer, inputs: Sequence[Array], way: Way = "binary") -> list[Reply]:
    return ask_together(server, [[Ask("model", {"x": x}, way) for x in inputs]])[0]


def test_a_running_sum_begins_with_each_request(tmp_path: Path) -> None:
    """100 ones end at 100, whatever others send at the same moment."""
    nodes = [helper.make_node("CumSum", ["x", "axis"], ["y"])]
    with _serve(tmp_path, nodes, ["n"]) as server:
        replies = _ask(server, [np.ones(100, np.float32)] * CLIENTS)
    ends = [(reply.status, None if reply.outputs is None else float(reply.outputs["y"][-1])) for reply in replies]
    assert [(200, 100.0)] * CLIENTS == ends


def test_a_distribution_over_time_is_over_the_time_of_one_request(tmp_path: Path) -> None:
    """Softmax over ``[time, 4]``: eight recordings of different lengths, and each of its four columns sums to 1."""
    rng = np.random.default_rng(1)
    sent = [rng.normal(size=(time, 4)).astype(np.float32) for time in (1, 2, 3, 5, 8, 2, 1, 7)]
    powers = [np.exp(x.astype(np.float64)) for x in sent]
    expected = [(power / power.sum(axis=0)).astype(np.float32) for power in powers]
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=0)]
    with _serve(tmp_path, nodes, ["time", 4]) as server:
        replies = _ask(server, sent)
    given = [reply.outputs["y"] for reply in replies if reply.outputs is not None]
    assert [200] * CLIENTS == [reply.status for reply in replies]
    assert [None] * CLIENTS == [difference_of(*pair) for pair in zip(expected, given, strict=True)]


@pytest.mark.parametrize(("way", "status"), [("binary", 400), ("json", 400), ("grpc", "INVALID_ARGUMENT")])
def test_a_fixed_dimension_is_exactly_that(way: Way, status: int | str, tmp_path: Path) -> None:
    """``[5]`` where the model takes ``[16]`` is the client's fault, and it is told both; ``[16]`` is answered."""
    nodes = [helper.make_node("CumSum", ["x", "axis"], ["y"])]
    with _serve(tmp_path, nodes, [16]) as server:
        (refused,) = _ask(server, [np.ones(5, np.float32)], way)
        (answered,) = _ask(server, [np.ones(16, np.float32)], way)
    assert (status, True, True) == (refused.status, "16" in refused.message, "5" in refused.message), refused
    assert (200, True) == (answered.status, "x" in refused.message), refused
    assert answered.outputs is not None
    assert 16.0 == float(answered.outputs["y"][-1])
