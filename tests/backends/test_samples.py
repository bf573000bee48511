"""Inputs that a model runs: configured, tried, drawn, and what is said of those that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import edge_case_models
import ml_dtypes
import numpy as np
import onnx_models
import pytest
from onnx import TensorProto, helper

from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.backends.samples import Samples, make_samples
from serve_app.backends.synthetic_inputs import SYNTHETIC_INPUTS, SyntheticInput, filled
from serve_app.backends.warm_up import first_that_runs, tensor_inputs, try_warm_up
from serve_app.domain.settings import InputRule, SampleFile, SampleSettings
from serve_app.errors import ConfigError, InferenceFailed
from serve_app.payloads import DTYPES, ModelSignature, Tensors, TensorSpec

MakeModel = Callable[[onnx_models.Kind], Path]

SIGNATURE = ModelSignature(
    (
        TensorSpec("ids", "INT64", (-1, -1)),
        TensorSpec("weight", "FP32", (-1, 2)),
        TensorSpec("words", "BYTES", (-1, 1)),
    ),
    (),
)


def of(rules: dict[str, InputRule] | None = None, *files: Tensors, rows: bool = True, **keys: Any) -> Samples:
    """Samples of `SIGNATURE`, or of the one given."""
    settings = SampleSettings(
        tuple(SampleFile(f"samples[{number}] (a.npz)", tensors) for number, tensors in enumerate(files)), rules or {}
    )
    return make_samples(keys.get("signature", SIGNATURE), settings, model="m", rows=rows)


def problems(rules: dict[str, InputRule], *files: Tensors, **keys: Any) -> list[str]:
    """What is said of samples that do not fit, without what all lines begin with."""
    with pytest.raises(ConfigError) as caught:
        of(rules, *files, **keys)
    return [problem.removeprefix("model 'm': warm_up.") for problem in caught.value.problems]


@pytest.fixture
def load() -> Iterator[Callable[[Path], OnnxBackend]]:
    """Loads models on the CPU, and closes them afterwards."""
    backends = []

    def loaded(path: Path) -> OnnxBackend:
        backend = OnnxBackend(OnnxSettings("m", path, device="cpu"))
        backend.load()
        backends.append(backend)
        return backend

    yield loaded
    for backend in backends:
        backend.close()


def first(samples: Samples, rows: int, bucket: int = 0) -> Tensors:
    """What the first of its candidates makes."""
    return next(samples.candidates())(rows, bucket)


def test_sample_rows_are_repeated() -> None:
    """Up to the rows that are wanted; what no sample gives is ours."""
    samples = of({}, {"ids": np.array([[1, 2], [3, 4], [5, 6]])})

    tensors = first(samples, 4)

    assert tensors["ids"].tolist() == [[1, 2], [3, 4], [5, 6], [1, 2]]
    assert tensors["weight"].tolist() == [[1.0, 1.0]] * 4
    assert tensors["words"].tolist() == [[""]] * 4
    assert first(samples, 1)["ids"].tolist() == [[1, 2]]


def test_rows_of_several_samples_come_one_after_the_other() -> None:
    """As if they were one file."""
    samples = of({}, {"weight": np.array([[1, 2]], np.float32)}, {"weight": np.array([[3, 4]], np.float32)})
    assert first(samples, 3)["weight"].tolist() == [[1, 2], [3, 4], [1, 2]]


def test_ranges_and_values_are_drawn_alike_at_every_start() -> None:
    """Integers reach both ends, floats stay between them, texts are among those given."""
    rules = {
        "ids": InputRule(limits=(5, 6), shape=(50,)),
        "weight": InputRule(limits=(-1.0, 1.0)),
        "words": InputRule(values=("yes", "no")),
    }
    tensors, again = first(of(rules), 4), first(of(rules), 4)

    assert (tensors["ids"].shape, set(tensors["ids"].ravel().tolist())) == ((4, 50), {5, 6})
    assert (tensors["weight"].dtype, bool((np.abs(tensors["weight"]) <= 1).all())) == (np.dtype(np.float32), True)
    assert set(tensors["words"].ravel().tolist()) <= {"yes", "no"}
    assert {name: array.tolist() for name, array in tensors.items()} == {
        name: array.tolist() for name, array in again.items()
    }


def test_the_size_of_a_free_dimension_can_be_given_alone() -> None:
    """The values are ours then."""
    assert first(of({"ids": InputRule(shape=(3,))}), 2)["ids"].tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize("datatype", DTYPES)
@pytest.mark.parametrize("filling", SYNTHETIC_INPUTS)
def test_every_datatype_can_be_filled(datatype: str, filling: SyntheticInput) -> None:
    """In the protocol's dtype, whatever the rank."""
    spec = TensorSpec("x", datatype, (-1, 300))
    for shape in ((2, 300), (3,), ()):
        array = filled(spec, shape, filling)
        assert (array.shape, array.dtype) == (shape, DTYPES[datatype])


def test_a_ramp_rises_along_the_last_axis() -> None:
    """From 0 in every row, and texts are its digits."""
    assert filled(TensorSpec("x", "INT8", (-1, 4)), (2, 4), SYNTHETIC_INPUTS[-1]).tolist() == [[0, 1, 2, 3]] * 2
    assert filled(TensorSpec("x", "BYTES", (-1, 3)), (1, 3), SYNTHETIC_INPUTS[-1]).tolist() == [["0", "1", "2"]]
    assert filled(TensorSpec("x", "INT8", (-1, 129)), (1, 129), SYNTHETIC_INPUTS[-1])[0, 126:].tolist() == [126, 127, 0]


@pytest.mark.parametrize(
    ("rules", "files", "expected"),
    [
        pytest.param({}, (), 8, id="texts and a free dimension: four fillings at two sizes"),
        pytest.param({"ids": InputRule(shape=(4,))}, (), 4, id="no free dimension is left"),
        pytest.param({"ids": InputRule(shape=(4,)), "words": InputRule(values=("a",))}, (), 3, id="numbers only"),
        pytest.param(
            {"ids": InputRule(limits=(1, 2)), "weight": InputRule(limits=(0, 1)), "words": InputRule(values=("a",))},
            (),
            2,
            id="only a size is left open",
        ),
        pytest.param(
            {"weight": InputRule(limits=(0, 1)), "words": InputRule(values=("a",))},
            ({"ids": np.array([[7]])},),
            1,
            id="all is said",
        ),
    ],
)
def test_only_what_is_not_said_is_tried_in_several_ways(
    rules: dict[str, InputRule], files: tuple[Tensors, ...], expected: int
) -> None:
    """No candidate is there twice."""
    assert expected == len(list(of(rules, *files).candidates()))


@pytest.mark.parametrize(
    ("rules", "files", "expected"),
    [
        pytest.param(
            {},
            ({"idz": np.array([[1]])},),
            "samples[0] (a.npz): the model has no input 'idz'; it takes 'ids', 'weight', 'words'",
            id="name",
        ),
        pytest.param(
            {},
            ({"weight": np.ones((1, 2))},),
            "samples[0] (a.npz): input 'weight' takes FP32 (numpy's float32), got float64; save it with that dtype",
            id="dtype",
        ),
        pytest.param(
            {},
            ({"words": np.array([[1]])},),
            "samples[0] (a.npz): input 'words' takes BYTES (texts), got int64; save it with that dtype",
            id="no text",
        ),
        pytest.param(
            {},
            ({"weight": np.ones((4, 3), np.float32)},),
            "samples[0] (a.npz): input 'weight' has the shape [rows, 2], got [4, 3]; dimension 0 is rows",
            id="shape",
        ),
        pytest.param(
            {},
            ({"ids": np.ones((0, 3), np.int64)},),
            "samples[0] (a.npz): input 'ids' has the shape [rows, any], got [0, 3]; dimension 0 is rows",
            id="no rows",
        ),
        pytest.param(
            {},
            ({"ids": np.ones((2, 3), np.int64), "weight": np.ones((1, 2), np.float32)},),
            "samples[0] (a.npz): every input must have the same number of rows (dimension 0),"
            " found 'ids' 2, 'weight' 1",
            id="rows",
        ),
        pytest.param(
            {}, ({},), "samples[0] (a.npz): it holds no input; the model takes 'ids', 'weight', 'words'", id="empty"
        ),
        pytest.param(
            {},
            ({"ids": np.ones((2, 3), np.int64)}, {"ids": np.ones((2, 4), np.int64)}),
            "samples[1] (a.npz): a row of input 'ids' has the shape [4], and [3] in samples[0] (a.npz);"
            " give all samples one shape",
            id="two shapes",
        ),
        pytest.param(
            {},
            ({"ids": np.ones((2, 3), np.int64)}, {"weight": np.ones((2, 2), np.float32)}),
            "samples[1] (a.npz): gives 'weight', but samples[0] (a.npz) 'ids'; give the same inputs in all samples",
            id="other inputs",
        ),
        pytest.param(
            {"ids": InputRule(limits=(0, 1))},
            ({"ids": np.ones((2, 3), np.int64)},),
            "inputs.ids: samples[0] (a.npz) gives this input, too; leave one of them out",
            id="twice",
        ),
        pytest.param(
            {"nobody": InputRule(limits=(0, 1))},
            (),
            "inputs.nobody: the model has no input 'nobody'; it takes 'ids', 'weight', 'words'",
            id="rule of no input",
        ),
        pytest.param(
            {"words": InputRule(limits=(0, 1))},
            (),
            "inputs.words.range: input 'words' takes BYTES, which has no range; give values",
            id="range of texts",
        ),
        pytest.param(
            {"ids": InputRule(limits=(0, 1.5))},
            (),
            "inputs.ids.range: input 'ids' takes INT64: whole numbers from -9223372036854775808 to"
            " 9223372036854775807, got 1.5",
            id="part of an integer",
        ),
        pytest.param(
            {"weight": InputRule(limits=(0, 1e300))},
            (),
            "inputs.weight.range: input 'weight' takes FP32: finite numbers that it can hold, got 1e+300",
            id="too large",
        ),
        pytest.param(
            {"words": InputRule(values=("a", 1))},
            (),
            "inputs.words.values: input 'words' takes BYTES: texts (in quotes), got 1",
            id="value of another kind",
        ),
        pytest.param(
            {"weight": InputRule(shape=(4, 2))},
            (),
            "inputs.weight.shape: input 'weight' has the shape [rows, 2], got [4, 2]; leave the rows out",
            id="shape with rows",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(rules: dict[str, InputRule], files: tuple[Tensors, ...], expected: str) -> None:
    """The model, the place, what was expected and what to do."""
    assert [expected] == problems(rules, *files)


def test_a_drawn_row_is_not_repeated_before_all_have_come() -> None:
    """Inputs of one row stay together, and the seed decides."""
    ids = np.arange(5).reshape(5, 1)
    samples = of({}, {"ids": ids, "weight": np.hstack([ids, ids]).astype(np.float32)})

    drawn = samples.draw(10, seed=3)

    order = drawn["ids"].ravel().tolist()
    assert [sorted(order[:5]), sorted(order[5:])] == [[0, 1, 2, 3, 4]] * 2
    assert order == drawn["weight"][:, 0].tolist()
    assert order == samples.draw(10, seed=3)["ids"].ravel().tolist()
    assert len({tuple(samples.draw(10, seed)["ids"].ravel().tolist()) for seed in range(8)}) > 1
    assert [len(array) for array in samples.draw(3, seed=0).values()] == [3, 3, 3]


@pytest.mark.parametrize("datatype", DTYPES)
def test_rows_that_nothing_is_configured_of_differ(datatype: str) -> None:
    """Of every datatype, and in it."""
    signature = ModelSignature((TensorSpec("x", datatype, (-1, -1)),), ())

    like = {"x": np.empty((2, 20), DTYPES[datatype])}

    drawn = make_samples(signature, model="m").draw(4, 1, like)["x"]

    assert (drawn.shape, drawn.dtype) == ((4, 20), DTYPES[datatype])
    assert len({str(row) for row in drawn.tolist()}) == 4


def test_without_rows_a_sample_is_used_as_it_is() -> None:
    """A scalar, a fixed dimension 0, and a dimension 0 that is not rows; several samples are several choices."""
    signature = ModelSignature(
        (
            TensorSpec("scale", "FP32", ()),
            TensorSpec("matrix", "FP32", (3, 2)),
            TensorSpec("time", "FP32", (-1, 4)),
        ),
        (),
    )
    given = [{"time": np.full((7, 4), value, np.float32)} for value in (1, 2)]
    samples = of({}, *given, rows=False, signature=signature)

    assert [array.shape for array in first(samples, 5).values()] == [(), (3, 2), (7, 4)]
    assert {1.0, 2.0} == {float(samples.draw(5, seed)["time"][0, 0]) for seed in range(20)}
    unnamed = first(of(rows=False, signature=signature), 5)
    assert [array.shape for array in unnamed.values()] == [(), (3, 2), (1, 4)]
    inputs = tensor_inputs(signature, {"time": (6, 4)}, rows=False)(5, 0)
    assert [array.shape for array in inputs.values()] == [(), (3, 2), (6, 4)]
    assert [()] == [array.shape for array in tensor_inputs(ModelSignature(signature.inputs[:1], ()))(5, 0).values()]
    (line,) = problems({}, {"matrix": np.ones((2, 2), np.float32)}, rows=False, signature=signature)
    assert line == "samples[0] (a.npz): input 'matrix' has the shape [3, 2], got [2, 2]; give it whole"


def test_bfloat16_comes_from_a_file_as_bytes(tmp_path: Path) -> None:
    """Numpy's files do not know the type."""
    signature = ModelSignature((TensorSpec("x", "BF16", (-1, 2)),), ())
    np.savez(tmp_path / "a.npz", x=np.array([[1.5, -2.0]], ml_dtypes.bfloat16))
    with np.load(tmp_path / "a.npz") as stored:
        samples = of({}, dict(stored), signature=signature)
    made = first(samples, 2)["x"]
    assert (made.dtype, made.tolist()) == (DTYPES["BF16"], [[1.5, -2.0], [1.5, -2.0]])


def test_the_first_inputs_that_run_are_taken(tmp_path: Path, load: Callable[[Path], OnnxBackend]) -> None:
    """A model that reads numbers takes no empty text, and its warm-up is as any other."""
    backend = load(edge_case_models.numbers(tmp_path / "numbers.onnx"))

    warm = try_warm_up(backend, make_samples(backend.signature, model="m").candidates(), max_rows=4, repeats=1)

    assert warm.make_inputs is not None
    assert warm.make_inputs(1, 0)["text"].tolist() == [["0"] * 4]
    assert ([execution.rows for execution in warm.executions], warm.reason) == ([1, 2, 4], None)


def test_a_kernel_needs_more_than_one_pixel(make_model: MakeModel, load: Callable[[Path], OnnxBackend]) -> None:
    """A convolution over pictures of any size is warmed up on larger ones."""
    backend = load(make_model("convolution"))
    make_inputs = first_that_runs([backend], make_samples(backend.signature, model="m").candidates())
    assert make_inputs(1, 0)["x"].shape == (1, 1, 16, 16)


def test_what_takes_none_of_ours_is_told(tmp_path: Path, load: Callable[[Path], OnnxBackend]) -> None:
    """What the model said to the first of them; configured ids run."""
    backend = load(edge_case_models.ids(tmp_path / "ids.onnx"))
    own = make_samples(backend.signature, model="m")

    refused = try_warm_up(backend, own.candidates(), max_rows=4)

    assert (refused.executions, refused.make_inputs) == ([], None)
    assert "the model failed on this input: indices element out of data bounds, idx=999" in str(refused.reason)
    with pytest.raises(InferenceFailed, match="idx=999"):
        first_that_runs([backend], own.candidates())
    rules = {"ids": InputRule(limits=(1000, 1007))}
    ranged = of(rules, signature=backend.signature)
    warm = try_warm_up(backend, ranged.candidates(), max_rows=4, repeats=1)
    assert ([execution.rows for execution in warm.executions], warm.reason) == ([1, 2, 4], None)


def test_a_failure_at_a_larger_shape_keeps_what_was_measured(
    tmp_path: Path, load: Callable[[Path], OnnxBackend]
) -> None:
    """And says where it happened."""
    path = onnx_models.write(
        tmp_path / "one.onnx",
        [helper.make_node("MatMul", ["x", "x"], ["y"])],
        [("x", TensorProto.FLOAT, ["rows", 1])],
        [("y", TensorProto.FLOAT, ["rows", 1])],
    )
    backend = load(path)

    warm = try_warm_up(backend, make_samples(backend.signature, model="m").candidates(), max_rows=4, repeats=1)

    assert [execution.rows for execution in warm.executions] == [1]
    assert warm.make_inputs is not None
    assert str(warm.reason).startswith("warm-up with 2 rows: the model failed on this input: ")
