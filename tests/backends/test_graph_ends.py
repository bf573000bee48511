"""Which function a graph applies last, and which inputs it does not read."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from serve_app.backends.onnx.ends import read_ends
from serve_app.payloads import GraphEnds

APPLIED = {
    "softmax": ("{ y = Softmax(x) }", "softmax"),
    "sigmoid": ("{ y = Sigmoid(x) }", "sigmoid"),
    "renamed": ("{ a = Softmax(x) b = Identity(a) y = Identity(b) }", "softmax"),
    "in another type": ("{ a = Softmax(x) y = Cast<to = 1>(a) }", "softmax"),
    "of parts": (
        "{ a, b = Split<axis = 1, num_outputs = 2>(x) c = Softmax(a) d = Softmax(b) y = Concat<axis = 1>(c, d) }",
        "softmax",
    ),
    "written out": ("<int64[1] k = {1}> { e = Exp(x) s = ReduceSum(e, k) y = Div(e, s) }", "softmax"),
    "of scikit-learn": ('{ y = ai.onnx.ml.Normalizer<norm = "L1">(x) }', "classifier"),
    "none": ("{ a = Softmax(x) y = Mul(a, x) }", ""),
    "before the last product": ("<float[4,4] w> { a = Softmax(x) y = MatMul(a, w) }", ""),
    "of some parts": ("{ a, b = Split<axis = 1, num_outputs = 2>(x) c = Softmax(a) y = Concat<axis = 1>(c, b) }", ""),
    "input": ("{ y = Identity(x) }", ""),
}


def written(folder: Path, graph: str) -> Path:
    """A file with a graph in ONNX's text format."""
    header = '<ir_version: 9, opset_import: ["" : 18, "ai.onnx.ml" : 3]>'
    file = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(f"{header} g {graph}"), file)
    return file


@pytest.mark.parametrize(("graph", "function"), APPLIED.values(), ids=APPLIED)
def test_the_last_function_is_found(tmp_path: Path, graph: str, function: str) -> None:
    """Through what keeps values, and not through what changes them."""
    ends = read_ends(written(tmp_path, f"(float[n,4] x) => (float[n,4] y) {graph}"))

    assert ends.applied.get("y", "") == function


def test_inputs_that_nothing_reads_are_found(tmp_path: Path) -> None:
    """A mask that a graph takes and ignores."""
    file = written(tmp_path, "(float[n,4] x, int64[n,4] mask) => (float[n,4] y) { y = Relu(x) }")

    assert read_ends(file) == GraphEnds({}, ("mask",))


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    """By the error that whoever asks expects."""
    (tmp_path / "model.onnx").write_bytes(b"\xff" * 40)

    with pytest.raises(ValueError, match="no ONNX model"):
        read_ends(tmp_path / "model.onnx")
