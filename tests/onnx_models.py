"""Tiny ONNX models for tests, built on the spot.

Every model is deterministic and simple enough for a test to compute the expected answer by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Kind: TypeAlias = Literal[
    "add_one",
    "sum_diff",
    "string_identity",
    "fail_on_negative",
    "image_logits",
    "fixed_batch",
    "seq_mean",
    "waveform_logits",
    "convolution",
    "bfloat16",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

VOCABULARY = 1000
"""Token ids that `seq_mean` knows: 0 to 999."""

Shape: TypeAlias = Sequence[int | str | None]


def make(path: Path, kind: Kind) -> Path:
    """Write a model to ``path`` and return it. Missing folders are made.

    ==================== ====================================== ====================================================
    kind                 inputs                                 outputs
    ==================== ====================================== ====================================================
    ``add_one``          x FP32[-1,-1]                          y FP32[-1,-1] = x + 1
    ``sum_diff``         INPUT0, INPUT1 INT32[-1,16]            OUTPUT0 = sum, OUTPUT1 = difference
    ``string_identity``  INPUT0 BYTES[-1,-1]                    OUTPUT0 = INPUT0
    ``fail_on_negative`` x FP32[-1,-1]                          y = x; the run fails if any value is negative
    ``image_logits``     pixels FP32[-1,3,32,32]                logits FP32[-1,4]: mean red, green, blue; minus sum
    ``fixed_batch``      x FP32[4,8]                            y FP32[4,8] = 2 x
    ``seq_mean``         input_ids, attention_mask INT64[-1,-1] embedding FP32[-1,8]: masked mean of token_table()
    ``waveform_logits``  waveform FP32[-1,-1]                   logits FP32[-1,3]: mean, mean magnitude, mean square
    ``bfloat16``         x BF16[-1,-1]                          y BF16[-1,-1] = 2 x, and half FP32[-1,-1] = x / 2
    ``convolution``      x FP32[-1,1,-1,-1]                     y FP32[-1,1,-1,-1]: sums of 3 x 3 neighbours
    ==================== ====================================== ====================================================
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _BUILDERS[kind](path)
    return path


def token_table() -> npt.NDArray[np.float32]:
    """The embeddings of `seq_mean`: (VOCABULARY, 8) float32."""
    return np.sin(np.arange(VOCABULARY * 8, dtype=np.float32)).reshape(VOCABULARY, 8)


def write(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[tuple[str, int, Shape | None]],
    outputs: Sequence[tuple[str, int, Shape | None]],
    constants: dict[str, npt.NDArray[Any]] | None = None,
) -> Path:
    """Write a model of one's own: nodes, (name, `onnx.TensorProto` type, shape) of its ends, and constants by name."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(*end) for end in inputs],
        [helper.make_tensor_value_info(*end) for end in outputs],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def identity(path: Path, types: dict[str, int]) -> Path:
    """Write a model that gives what it takes: ``in_<name>`` [-1,-1] as ``out_<name>``, by name its ONNX type."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(
        path,
        [helper.make_node("Identity", [f"in_{name}"], [f"out_{name}"]) for name in types],
        [(f"in_{name}", code, ["rows", "width"]) for name, code in types.items()],
        [(f"out_{name}", code, ["rows", "width"]) for name, code in types.items()],
    )


def adder(path: Path, number: float) -> Path:
    """Write a model that adds a number: x FP32[-1,-1] to y FP32[-1,-1] = x + number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(
        path,
        [helper.make_node("Add", ["x", "number"], ["y"])],
        [("x", TensorProto.FLOAT, ["rows", "width"])],
        [("y", TensorProto.FLOAT, ["rows", "width"])],
        {"number": np.array([number], np.float32)},
    )


def _add_one(path: Path) -> None:
    adder(path, 1.0)


def _sum_diff(path: Path) -> None:
    write(
        path,
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
        [(name, TensorProto.INT32, ["rows", 16]) for name in ("INPUT0", "INPUT1")],
        [(name, TensorProto.INT32, ["rows", 16]) for name in ("OUTPUT0", "OUTPUT1")],
    )


def _string_identity(path: Path) -> None:
    write(
        path,
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])],
        [("INPUT0", TensorProto.STRING, ["rows", "width"])],
        [("OUTPUT0", TensorProto.STRING, ["rows", "width"])],
    )


def _fail_on_negative(path: Path) -> None:
    # A negative value becomes index 1 into a table that has only index 0.
    write(
        path,
        [
            helper.make_node("Less", ["x", "zero"], ["negative"]),
            helper.make_node("Cast", ["negative"], ["index"], to=TensorProto.INT64),
            helper.make_node("Gather", ["table", "index"], ["ones"], axis=0),
            helper.make_node("Mul", ["x", "ones"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["rows", "width"])],
        [("y", TensorProto.FLOAT, ["rows", "width"])],
        {"zero": np.array([0], np.float32), "table": np.array([1], np.float32)},
    )


def _image_logits(path: Path) -> None:
    write(
        path,
        [
            helper.make_node("ReduceMean", ["pixels"], ["means"], axes=[2, 3], keepdims=0),
            helper.make_node("MatMul", ["means", "weights"], ["logits"]),
        ],
        [("pixels", TensorProto.FLOAT, ["rows", 3, 32, 32])],
        [("logits", TensorProto.FLOAT, ["rows", 4])],
        {"weights": np.array([[1, 0, 0, -1], [0, 1, 0, -1], [0, 0, 1, -1]], np.float32)},
    )


def _fixed_batch(path: Path) -> None:
    write(
        path,
        [helper.make_node("Mul", ["x", "two"], ["y"])],
        [("x", TensorProto.FLOAT, [4, 8])],
        [("y", TensorProto.FLOAT, [4, 8])],
        {"two": np.array([2], np.float32)},
    )


def _seq_mean(path: Path) -> None:
    write(
        path,
        [
            helper.make_node("Gather", ["table", "input_ids"], ["tokens"], axis=0),
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["mask", "last"], ["mask3"]),
            helper.make_node("Mul", ["tokens", "mask3"], ["kept"]),
            helper.make_node("ReduceSum", ["kept", "middle"], ["total"], keepdims=0),
            helper.make_node("ReduceSum", ["mask", "middle"], ["count"], keepdims=1),
            helper.make_node("Div", ["total", "count"], ["embedding"]),
        ],
        [(name, TensorProto.INT64, ["rows", "length"]) for name in ("input_ids", "attention_mask")],
        [("embedding", TensorProto.FLOAT, ["rows", 8])],
        {"table": token_table(), "last": np.array([2], np.int64), "middle": np.array([1], np.int64)},
    )


def _waveform_logits(path: Path) -> None:
    write(
        path,
        [
            helper.make_node("Abs", ["waveform"], ["magnitude"]),
            helper.make_node("Mul", ["waveform", "waveform"], ["square"]),
            helper.make_node("ReduceMean", ["waveform"], ["mean"], axes=[1], keepdims=1),
            helper.make_node("ReduceMean", ["magnitude"], ["mean_magnitude"], axes=[1], keepdims=1),
            helper.make_node("ReduceMean", ["square"], ["mean_square"], axes=[1], keepdims=1),
            helper.make_node("Concat", ["mean", "mean_magnitude", "mean_square"], ["logits"], axis=1),
        ],
        [("waveform", TensorProto.FLOAT, ["rows", "samples"])],
        [("logits", TensorProto.FLOAT, ["rows", 3])],
    )


def _convolution(path: Path) -> None:
    write(
        path,
        [helper.make_node("Conv", ["x", "weights"], ["y"], kernel_shape=[3, 3])],
        [("x", TensorProto.FLOAT, ["rows", 1, "height", "width"])],
        [("y", TensorProto.FLOAT, ["rows", 1, "lower", "narrower"])],
        {"weights": np.ones((1, 1, 3, 3), np.float32)},
    )


def _bfloat16(path: Path) -> None:
    # ONNX Runtime adds no bfloat16 on the CPU, but casts it.
    write(
        path,
        [
            helper.make_node("Cast", ["x"], ["exact"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["exact", "exact"], ["doubled"]),
            helper.make_node("Cast", ["doubled"], ["y"], to=TensorProto.BFLOAT16),
            helper.make_node("Div", ["exact", "two"], ["half"]),
        ],
        [("x", TensorProto.BFLOAT16, ["rows", "width"])],
        [("y", TensorProto.BFLOAT16, ["rows", "width"]), ("half", TensorProto.FLOAT, ["rows", "width"])],
        {"two": np.array([2], np.float32)},
    )


_BUILDERS: dict[Kind, Callable[[Path], None]] = {
    "add_one": _add_one,
    "sum_diff": _sum_diff,
    "string_identity": _string_identity,
    "fail_on_negative": _fail_on_negative,
    "image_logits": _image_logits,
    "fixed_batch": _fixed_batch,
    "seq_mean": _seq_mean,
    "waveform_logits": _waveform_logits,
    "convolution": _convolution,
    "bfloat16": _bfloat16,
}


def zero_padded_pooling(path: Path) -> Path:
    """Write a model of the largest number of each 3 x 3 window, with zeros around the picture: x [-1,2,8,8] -> y."""
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["wide"]),
        helper.make_node("MaxPool", ["wide"], ["y"], kernel_shape=[3, 3], strides=[2, 2]),
    ]
    constants = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)}
    ends = ("x", TensorProto.FLOAT, ("rows", 2, 8, 8)), ("y", TensorProto.FLOAT, ("rows", 2, 4, 4))
    return write(path, nodes, ends[:1], ends[1:], constants)


def zero_padded_pooled(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """What that model gives."""
    wide = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    return np.asarray(windows.max(axis=(-1, -2)))
