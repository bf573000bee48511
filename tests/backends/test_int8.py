"""Models in 8 bits: close to the original, and the same in any batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_models
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from serve_app.backends.onnx.int8.balance import make_session
from serve_app.backends.onnx.int8.comparison import dependence, deviations
from serve_app.backends.onnx.int8.convert import Int8Report, convert_to_int8
from serve_app.backends.onnx.signature import read_signature
from serve_app.errors import ConfigError

RANDOM = np.random.default_rng(0)
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def normal(*shape: int) -> npt.NDArray[np.float32]:
    """Values of a normal distribution."""
    return RANDOM.standard_normal(shape, np.float32)


def matmul(path: Path) -> Path:
    """A product of (rows, tokens, 64) and constants, one channel of which is large."""
    return onnx_models.write(
        path,
        [helper.make_node("MatMul", ["x", "weights"], ["y"])],
        [("x", FLOAT, ["rows", "tokens", 64])],
        [("y", FLOAT, ["rows", "tokens", 48])],
        {"weights": normal(64, 48)},
    )


def chain(path: Path) -> Path:
    """Products of products, two of one tensor, and a table read twice."""
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["a"]),
        helper.make_node("Gather", ["table", "x"], ["b"]),
        helper.make_node("MatMul", ["a", "w"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["d"]),
        helper.make_node("MatMul", ["c", "v"], ["e"]),
        helper.make_node("Sum", ["b", "d", "e"], ["y"]),
    ]
    constants = {"table": normal(200, 32), "w": normal(32, 32), "v": normal(32, 32)}
    return onnx_models.write(
        path, nodes, [("x", INT64, ["rows", "tokens"])], [("y", FLOAT, ["rows", "tokens", 32])], constants
    )


def gemm(path: Path) -> Path:
    """Two layers: transposed weights, alpha, beta and a bias; then none of them."""
    layers = [
        helper.make_node("Gemm", ["x", "first", "bias"], ["a"], alpha=0.5, beta=2.0, transB=1),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Gemm", ["b", "second"], ["y"]),
    ]
    constants = {"first": normal(40, 64), "bias": normal(40), "second": normal(40, 32)}
    return onnx_models.write(path, layers, [("x", FLOAT, ["rows", 64])], [("y", FLOAT, ["rows", 32])], constants)


def embedding(path: Path) -> Path:
    """A table of 200 rows, then a product."""
    nodes = [helper.make_node("Gather", ["table", "x"], ["a"]), helper.make_node("MatMul", ["a", "weights"], ["y"])]
    constants = {"table": normal(200, 32), "weights": normal(32, 32)}
    return onnx_models.write(
        path, nodes, [("x", INT64, ["rows", "tokens"])], [("y", FLOAT, ["rows", "tokens", 32])], constants
    )


def convolution(path: Path) -> Path:
    """Two convolutions of pictures, then a product."""
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "second", "bias"], ["c"], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c"], ["d"]),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("Gemm", ["e", "weights"], ["y"]),
    ]
    constants = {
        "first": normal(32, 8, 3, 3),
        "second": normal(32, 32, 3, 3),
        "bias": normal(32),
        "weights": normal(32, 40),
    }
    return onnx_models.write(path, nodes, [("x", FLOAT, ["rows", 8, 12, 12])], [("y", FLOAT, ["rows", 40])], constants)


def inputs(name: str, rows: int) -> npt.NDArray[Any]:
    """Inputs of a model above."""
    if name in {"embedding", "chain"}:
        return RANDOM.integers(0, 200, (rows, 6))
    shape = {"matmul": (5, 64), "gemm": (64,), "convolution": (8, 12, 12)}[name]
    return normal(rows, *shape)


MODELS: dict[str, Callable[[Path], Path]] = {
    "matmul": matmul,
    "chain": chain,
    "gemm": gemm,
    "embedding": embedding,
    "convolution": convolution,
}


def convert(tmp_path: Path, name: str, *, with_samples: bool) -> tuple[Path, Path, Int8Report]:
    """Write a model and its int8 build."""
    source, target = MODELS[name](tmp_path / "source.onnx"), tmp_path / "target.onnx"
    samples = [tmp_path / "samples.npz"] if with_samples else []
    for file in samples:
        np.savez(file, x=inputs(name, 20))
    return source, target, convert_to_int8(source, target, samples, model="m")


@pytest.mark.parametrize("with_samples", [False, True])
@pytest.mark.parametrize("name", [*MODELS])
def test_answers_are_close_and_the_same_in_any_batch(tmp_path: Path, name: str, with_samples: bool) -> None:
    """Bit for bit the same alone, at any place, beside any neighbour; with and without samples."""
    source, target, _ = convert(tmp_path, name, with_samples=with_samples)
    assert read_signature(source, model="m") == read_signature(target, model="m")
    session, values = make_session(str(target)), inputs(name, 13)
    loud = values * 1000 if values.dtype.kind == "f" else values[::-1]
    for row in (0, 5, 12):
        (alone,) = session.run(None, {"x": values[row : row + 1]})
        for rows in (2, 3, 8, 13):
            for place in {0, rows // 2, rows - 1}:
                for neighbours in (values, loud, np.zeros_like(values)):
                    batch = neighbours[:rows].copy()
                    batch[place] = values[row]
                    assert np.array_equal(alone[0], session.run(None, {"x": batch})[0][place])
    (found,) = deviations(make_session(str(source)), session, [{"x": values}])
    assert found.least_cosine >= 0.99
    assert 0.0 == dependence(session, [{"x": values}])


def test_a_scale_per_batch_is_found_out(tmp_path: Path) -> None:
    """ONNX Runtime's dynamic quantisation, which the check has to see."""
    source, target = matmul(tmp_path / "source.onnx"), tmp_path / "target.onnx"
    quantize_dynamic(source, target, weight_type=QuantType.QInt8)
    assert dependence(make_session(str(target)), [{"x": inputs("matmul", 4)}]) > 0.01


@pytest.mark.parametrize(
    ("name", "with_samples", "quantized", "left"),
    [
        ("matmul", False, {"MatMul": 1}, {}),
        ("gemm", False, {"Gemm": 2}, {}),
        ("embedding", False, {"MatMul": 1, "Gather": 1}, {}),
        ("convolution", False, {"Gemm": 1}, {"Conv": 2}),
        ("convolution", True, {"Gemm": 1, "Conv": 2}, {}),
    ],
)
def test_the_report_says_what_was_done(
    tmp_path: Path, name: str, with_samples: bool, quantized: dict[str, int], left: dict[str, int]
) -> None:
    """What is in 8 bits, what is not and why, how far it is off, and that neighbours change nothing."""
    _, _, report = convert(tmp_path, name, with_samples=with_samples)
    assert (quantized, left) == (dict(report.quantized), dict(report.left))
    text = "\n".join(report.lines())
    assert with_samples == ("20 sample rows: cosine to the original 0.99" in text)
    assert with_samples != ("not measured, since there are no --samples" in text)
    assert ("Conv" in left) == ("give --samples to quantize it too" in text)
    assert "answers do not depend on the batch: " in text


def test_a_row_of_zeros_and_one_of_huge_values(tmp_path: Path) -> None:
    """Neither divides by zero nor spoils the other."""
    source, target, _ = convert(tmp_path, "gemm", with_samples=False)
    values = np.stack([np.zeros(64, np.float32), np.full(64, 1e6, np.float32)])
    (expected,) = make_session(str(source)).run(None, {"x": values})
    (actual,) = make_session(str(target)).run(None, {"x": values})
    np.testing.assert_allclose(actual[0], expected[0], atol=0.05 * np.abs(expected[0]).max())
    np.testing.assert_allclose(actual[1], expected[1], atol=0.05 * np.abs(expected[1]).max())


@pytest.mark.parametrize("opset", [11, 18])
def test_old_and_new_operator_sets(tmp_path: Path, opset: int) -> None:
    """Older models are raised to one that can scale rows, and newer ones spell some operators in another way."""
    source, target = matmul(tmp_path / "source.onnx"), tmp_path / "target.onnx"
    model = onnx.load(source)
    model.opset_import[0].version = opset
    onnx.save(model, source)
    assert {"MatMul": 1} == dict(convert_to_int8(source, target, [], model="m").quantized)
    (found,) = deviations(make_session(str(source)), make_session(str(target)), [{"x": inputs("matmul", 3)}])
    assert found.least_cosine >= 0.99


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"y": normal(2, 5, 64)}, "holds 'y', and the model takes 'x'; name the arrays so"),
        ({"x": normal(2, 5, 63)}, "'x' has the shape (2, 5, 63), and the model takes (rows, any, 64)"),
        ({"x": normal(2, 64)}, "'x' has the shape (2, 64), and the model takes (rows, any, 64)"),
        (
            {"x": np.zeros((2, 5, 64))},
            "'x' is float64, and the model takes float32; use .astype('float32')",
        ),
        ({"x": normal(0, 5, 64)}, "has 0 rows, and needs one at least"),
        ({"x": np.full((1, 5, 64), np.nan, np.float32)}, "'x' holds values that are no finite numbers"),
    ],
)
def test_samples_that_do_not_fit(tmp_path: Path, arrays: dict[str, Any], problem: str) -> None:
    """Are told by file and array, and nothing is written."""
    file, target = tmp_path / "samples.npz", tmp_path / "target.onnx"
    np.savez(file, **arrays)
    with pytest.raises(ConfigError) as raised:
        convert_to_int8(matmul(tmp_path / "source.onnx"), target, [file], model="m")
    assert (f"samples {file}: {problem}",) == raised.value.problems
    assert not target.exists()


def test_files_that_hold_no_samples(tmp_path: Path) -> None:
    """One line for each: not there, not an NPZ file, one array alone, damaged."""
    missing, text, alone, damaged = (tmp_path / name for name in ("none.npz", "text.npz", "alone.npy", "damaged.npz"))
    text.write_text("no", "utf-8")
    np.save(alone, normal(2, 2))
    damaged.write_bytes(b"PK\x03\x04broken")
    advice = "make it with numpy.savez, one array per input, rows first"
    with pytest.raises(ConfigError) as raised:
        convert_to_int8(matmul(tmp_path / "source.onnx"), tmp_path / "o", [missing, text, alone, damaged], model="m")
    assert (
        f"samples {missing}: cannot be read: No such file or directory",
        f"samples {text}: is not an NPZ file; {advice}",
        f"samples {alone}: is not an NPZ file; {advice}",
        f"samples {damaged}: is a damaged NPZ file; {advice}",
    ) == raised.value.problems


def test_nothing_to_quantize(tmp_path: Path) -> None:
    """A model without weights is refused, and one that needs samples says so."""
    source, target = onnx_models.make(tmp_path / "source.onnx", "add_one"), tmp_path / "target.onnx"
    with pytest.raises(ConfigError, match=r"holds nothing to quantize .* use it as it is"):
        convert_to_int8(source, target, [], model="m")
    onnx_models.write(
        source,
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        [("x", FLOAT, ["rows", 8, 12, 12])],
        [("y", FLOAT, ["rows", 32, 10, 10])],
        {"w": normal(32, 8, 3, 3)},
    )
    with pytest.raises(ConfigError, match=r"as they are: 1 Conv.; give --samples to quantize Conv$"):
        convert_to_int8(source, target, [], model="m")
    assert not target.exists()


def test_what_is_quantized_already_is_refused(tmp_path: Path) -> None:
    """By ONNX Runtime with a scale per batch, or by this."""
    dynamic, target = tmp_path / "dynamic.onnx", tmp_path / "again.onnx"
    source, ours, _ = convert(tmp_path, "matmul", with_samples=False)
    quantize_dynamic(source, dynamic, weight_type=QuantType.QInt8)
    for model in (dynamic, ours):
        with pytest.raises(ConfigError, match=r"is quantized already .* convert the FP32 model it was made of$"):
            convert_to_int8(model, target, [], model="m")
    assert not target.exists()
