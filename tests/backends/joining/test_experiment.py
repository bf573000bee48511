"""The experiment: what it finds of models that are exact, deviate a little, or let requests meet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_models
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from joining_backends import Answer, Made, loaded, ones, refusing, shifted
from onnx import TensorProto, helper

from serve_app.backends.joining.drawing import Draw
from serve_app.backends.joining.experiment import (
    SAME,
    difference,
    of_floats,
    sensitivity,
    try_joining,
    try_padding,
    untried,
)
from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.errors import InferenceFailed
from serve_app.payloads import Joinable, Tensors

MakeModel = Callable[[onnx_models.Kind], Path]


def found(backend: Any, draw: Draw | None = None, **settings: Any) -> Joinable:
    """The verdict, with as much time as it takes."""
    given = {"max_rows": 64, "tolerance": None, "budget_s": 1e9, **settings}
    return try_joining(backend, draw or ones(), **given)


def written(folder: Path, *nodes: Any, constants: dict[str, Any] | None = None) -> Any:
    """A model ``x`` FP32[-1,4] -> ``y`` FP32 of the same shape, loaded."""
    shape: onnx_models.Shape = ["rows", 4]
    ends = [[(name, int(TensorProto.FLOAT), shape)] for name in "xy"]
    return loaded(onnx_models.write(folder / "model.onnx", nodes, ends[0], ends[1], constants))


def test_a_model_that_treats_rows_one_by_one_is_exact(make_model: MakeModel) -> None:
    """All six pairs are tried, and the reason says so."""
    told = "the graph treats rows one by one; 7 requests of 1 to 5 rows, alone and beside 1 to 63 others: the same"
    assert Joinable("exact", f"{told} bit for bit") == found(loaded(make_model("add_one")))


def test_what_was_tried_is_what_is_told() -> None:
    """Where batches are small there are fewer neighbours, and no run of more rows than that but for one neighbour."""
    backend = Made(lambda inputs: {"y": inputs["x"]})
    verdict = found(backend, max_rows=4)
    assert (True, 6) == (
        "6 requests of 1 to 5 rows, alone and beside 1 to 3 others" in verdict.reason,
        max(backend.runs),
    )


@pytest.mark.parametrize(
    ("dtype", "within", "beyond"),
    [
        (np.float64, 2.0**-42, 2.0**-38),
        (np.float32, 2.0**-18, 2.0**-15),
        (np.float16, 2.0**-10, 2.0**-8),
        (ml_dtypes.bfloat16, 2.0**-7, 2.0**-5),
    ],
    ids=["FP64", "FP32", "FP16", "BF16"],
)
def test_each_datatype_has_its_tolerance(dtype: Any, within: float, beyond: float) -> None:
    """What a sum in another order may differ by is close; more is another answer."""
    close, dependent = found(Made(shifted(dtype, within))), found(Made(shifted(dtype, beyond)))
    assert ("close", within, True) == (close.verdict, close.deviation, close.joins)
    assert f"output 'y' differs by {within:.2g} of its largest value" in close.reason
    assert ("dependent", beyond, False) == (dependent.verdict, dependent.deviation, dependent.joins)
    assert f"output 'y' of 5 rows differs by {beyond:.2g} of its largest value beside 2 others" in dependent.reason


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.bool_], ids=["INT8", "UINT64", "BOOL"])
def test_numbers_that_are_counted_have_to_be_the_same(dtype: Any) -> None:
    """Without a configured tolerance: a class is another class."""
    by = -1.0 if dtype is np.bool_ else 1.0
    assert "dependent" == found(Made(shifted(dtype, by))).verdict
    assert "exact" == found(Made(shifted(dtype, 0.0))).verdict


def test_truth_and_text_know_no_tolerance() -> None:
    """However large it is: a flipped truth value is no small difference."""
    words = {5: "few", 6: "many"}
    text: Answer = lambda inputs: {"y": np.full(len(inputs["x"]), words[min(6, max(5, len(inputs["x"])))], object)}  # noqa: E731
    answers = [shifted(np.bool_, -1.0), text]
    verdicts = [found(Made(answer), tolerance=1.0) for answer in answers]
    assert [("dependent", 1.0)] * 2 == [(verdict.verdict, verdict.deviation) for verdict in verdicts]
    same = found(Made(lambda inputs: {"y": np.full(len(inputs["x"]), "word", object)}))
    assert "exact" == same.verdict


def test_a_tolerance_of_zero_is_named_where_it_is_the_reason() -> None:
    """With it nothing but the same bits will do; the operator reads which key says so."""
    backend = shifted(np.float32, 2.0**-18)
    strict, loose = found(Made(backend), tolerance=0.0), found(Made(shifted(np.float32, 0.25)), tolerance=0.5)
    assert ("dependent", "close") == (strict.verdict, loose.verdict)
    assert strict.reason.endswith("more than batching.tolerance allows (0): raise it, or leave it out")


def _mean(inputs: Tensors) -> Tensors:
    return {"y": inputs["x"] + inputs["x"].mean()}


def _place(inputs: Tensors) -> Tensors:
    return {"y": inputs["x"] + np.arange(len(inputs["x"]), dtype=np.float32)[:, None]}


def _numbers_only(inputs: Tensors) -> Tensors:
    return {"y": np.where(np.isnan(inputs["x"]).any(), np.float32(7), inputs["x"])}


def _large_ones(inputs: Tensors) -> Tensors:
    return {"y": inputs["x"] + np.float32(len(inputs["x"]) > 30)}


def _behind(inputs: Tensors) -> Tensors:
    return {"y": np.concatenate([inputs["x"][:-1], inputs["x"][-1:] + inputs["x"][:1]])}


@pytest.mark.parametrize("answer", [_mean, _place, _numbers_only, _large_ones, _behind])
def test_an_answer_that_depends_on_who_else_is_there_is_dependent(answer: Answer) -> None:
    """On neighbours, on the place, on neighbours that are no numbers, on the size of the batch, on the row in front."""
    verdict = found(Made(answer))
    assert ("dependent", False, True) == (verdict.verdict, verdict.joins, verdict.deviation > 0.0), verdict


def test_dynamic_quantization_depends_on_its_neighbours(tmp_path: Path) -> None:
    """ONNX Runtime's own kernel: the range of the whole batch decides what every number is rounded to."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    assert "dependent" == found(written(tmp_path, *nodes)).verdict


def test_what_differs_from_run_to_run_cannot_be_compared(tmp_path: Path) -> None:
    """A model that draws random numbers is not joined, and the reason says why."""
    verdict = found(written(tmp_path, helper.make_node("RandomNormalLike", ["x"], ["y"])))
    assert ("dependent", True) == (verdict.verdict, verdict.reason.startswith("output 'y' differs from run to run"))


@pytest.mark.parametrize(("budget_s", "pairs"), [(0.0, 2), (8.0, 2), (30.0, 4), (1e9, 7)])
def test_the_budget_ends_it_but_for_the_first_two_pairs(budget_s: float, pairs: int) -> None:
    """A run takes one second here. Two runs tell whether the model is steady, and each pair takes three."""
    backend = Made(lambda inputs: {"y": inputs["x"]}, seconds=1.0)
    verdict = found(backend, budget_s=budget_s, clock=backend.clock)
    assert (2 + 3 * pairs, True) == (len(backend.runs), f"; {pairs} requests of" in verdict.reason)


def test_neighbours_that_the_model_refuses_are_replaced(tmp_path: Path) -> None:
    """A model that fails on NaN is tried with ordinary neighbours instead."""
    nodes = [
        helper.make_node("IsNaN", ["x"], ["missing"]),
        helper.make_node("Cast", ["missing"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "index"], ["ones"], axis=0),
        helper.make_node("Mul", ["x", "ones"], ["y"]),
    ]
    verdict = found(written(tmp_path, *nodes, constants={"table": np.ones(1, np.float32)}))
    assert ("exact", True) == (verdict.verdict, "; 7 requests" in verdict.reason)


def test_a_model_that_runs_none_of_it_is_told() -> None:
    """Nothing is known then, and the verdict that stands for it says what to do."""
    with pytest.raises(InferenceFailed) as caught:
        found(Made(refusing(lambda inputs: len(inputs["x"]) > 1)))
    verdict = untried(caught.value)
    assert ("proven", False) == (verdict.verdict, verdict.joins)
    assert verdict.reason.endswith("refused; give some in warm_up, or wait for the first requests")


def _longer(tensors: Tensors) -> Tensors:
    return {name: np.pad(array, [(0, 0), (0, 4)]) for name, array in tensors.items()}


def test_padding_that_is_masked_changes_nothing(make_model: MakeModel) -> None:
    """A text model looks at the mask, and its answer has one size."""

    def drawn(length: int) -> Tensors:
        ids = np.arange(2 * length, dtype=np.int64).reshape(2, length)
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}

    found = try_padding(loaded(make_model("seq_mean")), drawn(3), _longer, drawn(7), tolerance=None)
    assert (SAME.relative, True) == (found.relative, found.allowed)


def test_padding_that_counts_is_found() -> None:
    """The mean over what is padded is another one."""
    backend = Made(lambda inputs: {"y": inputs["x"].mean(axis=1)})
    found = try_padding(backend, ones()(2, 1, 1.0), _longer, None, tolerance=None)
    assert (False, "y") == (found.allowed, found.output)
    assert pytest.approx(0.5) == found.relative


def test_padding_that_counts_beside_a_longer_one_is_found() -> None:
    """Alone it is masked; in a run that holds something longer it is not."""

    def answer(inputs: Tensors) -> Tensors:
        x = inputs["x"]
        full = (x != 0).all(axis=1).any() and not (x != 0).all()
        return {"y": x.sum(axis=1) / (x.shape[1] if full else (x != 0).sum(axis=1))}

    short, longer = {"x": np.ones((1, 4), np.float32)}, {"x": np.ones((1, 8), np.float32)}
    assert try_padding(Made(answer), short, _longer, None, tolerance=None).allowed
    assert not try_padding(Made(answer), short, _longer, longer, tolerance=None).allowed


def test_of_outputs_that_grow_the_part_in_front_is_compared(make_model: MakeModel) -> None:
    """What answers the padding is nobody's answer."""
    found = try_padding(loaded(make_model("add_one")), ones()(2, 1, 1.0), _longer, None, tolerance=None)
    assert SAME._replace(output=found.output) == found


_VALUES = arrays.arrays(np.float32, (3, 2), elements=st.floats(width=32))


@given(_VALUES)
def test_what_is_the_same_has_no_difference(values: Any) -> None:
    """Whatever it holds: NaN and infinities are what they are."""
    assert SAME == difference({"y": values}, {"y": values.copy()}, 0.0)


@given(st.floats(1e-3, 1e3), st.floats(1e-4, 1.0))
def test_a_difference_is_relative_to_the_largest_value(largest: float, part: float) -> None:
    """Not to the value that differs, which may be next to nothing."""
    alone = np.array([[largest, 0.0]])
    found = difference({"y": alone}, {"y": np.array([[largest, largest * part]])}, 2.0)
    assert pytest.approx(part) == found.relative


@pytest.mark.parametrize("other", [np.nan, np.inf])
def test_no_tolerance_is_wide_enough_for_what_is_no_number(other: float) -> None:
    """Where the other answer has a number."""
    found = difference({"y": np.ones(2)}, {"y": np.array([1.0, other])}, 1.0)
    assert (np.inf, False) == (found.relative, found.allowed)


def test_the_worst_output_is_named() -> None:
    """One that is not allowed is worse than a larger difference that is."""
    alone: Tensors = {"half": np.ones(2, np.float16), "whole": np.full(2, 10, np.int32)}
    together: Tensors = {"half": np.full(2, 1 + 2**-10, np.float16), "whole": alone["whole"]}
    assert "half" == difference(alone, together, None).output
    assert "whole" == difference(alone, together | {"whole": np.array([10, 11], np.int32)}, None).output


def test_floats_of_two_bytes_count_as_floats(tmp_path: Path) -> None:
    """BF16 is no float to numpy: its rounding is measured, and its last bits are moved."""
    backend = OnnxBackend(OnnxSettings("m", onnx_models.make(tmp_path / "m.onnx", "bfloat16"), device="cpu"))
    backend.load()
    inputs = {"x": np.ones((2, 2), ml_dtypes.bfloat16)}
    answer = backend.run(inputs)
    rounded = {name: np.nextafter(array, np.full_like(array, 4)) for name, array in answer.items()}

    assert of_floats({"y": answer["y"]}, {"y": rounded["y"]}).relative == 2**-7
    assert sensitivity(backend, inputs, answer) == 2**-7
