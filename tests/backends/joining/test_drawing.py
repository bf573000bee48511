"""Inputs for the experiment: different rows, in the ranges that the model takes."""

from __future__ import annotations

from pathlib import Path

import edge_case_models
import ml_dtypes
import numpy as np
import pytest
from joining_backends import Made, loaded, refusing

from serve_app.backends.joining.drawing import Varied
from serve_app.errors import InferenceFailed
from serve_app.payloads import Tensors


def example(rows: int, _: int) -> Tensors:
    """One input of each kind."""
    return {
        "floats": np.ones((rows, 64), np.float32),
        "narrow": np.ones((rows, 64), ml_dtypes.bfloat16),
        "ids": np.ones((rows, 64), np.int64),
        "truth": np.ones((rows, 64), np.bool_),
        "texts": np.full((rows, 64), "1", object),
    }


def test_the_same_seed_makes_the_same_rows() -> None:
    """Another one makes others, and no two rows of floats are the same."""
    draw = Varied(example)
    first, again, other = draw(3, 1, 1.0), draw(3, 1, 1.0), draw(3, 2, 1.0)
    assert first["floats"].tolist() == again["floats"].tolist()
    assert (3, 6) == tuple(
        len(np.unique(rows, axis=0)) for rows in (first["floats"], [*first["floats"], *other["floats"]])
    )


def test_floats_are_scaled_and_keep_their_dtype() -> None:
    """By a hundred, or to no number at all."""
    draw = Varied(example)
    one, hundred, none = draw(2, 1, 1.0), draw(2, 1, 100.0), draw(2, 1, np.nan)
    for name in ("floats", "narrow"):
        assert one[name].dtype == hundred[name].dtype == example(1, 0)[name].dtype
        assert pytest.approx(100.0, rel=0.02) == float(hundred[name][0, 0]) / float(one[name][0, 0])
        assert np.isnan(none[name].astype(np.float32)).all()


def test_what_is_configured_and_what_has_no_range_stays() -> None:
    """Truth values and texts are those of the example, and so are inputs that are kept and integers before `learn`."""
    drawn, given = Varied(example, ["floats"])(2, 5, 100.0), example(2, 5)
    assert [given[name].tolist() for name in ("floats", "ids", "truth", "texts")] == [
        drawn[name].tolist() for name in ("floats", "ids", "truth", "texts")
    ]


@pytest.mark.parametrize(("most", "below"), [(999, 1000), (998, 10), (9, 10), (1, 2), (0, 1)])
def test_integers_are_as_large_as_the_model_takes(most: int, below: int) -> None:
    """Below 1000, 10 or 2, whichever it takes first; else those of the example, which are 0 here."""
    draw = Varied(lambda rows, _: {"x": np.zeros((rows, 4000), np.int64)})
    draw.learn(Made(refusing(lambda inputs: bool((inputs["x"] > most).any()))))
    values = draw(2, 1, 1.0)["x"]
    assert (0, below - 1) == (values.min(), values.max())


def test_integers_stay_within_their_datatype() -> None:
    """An INT8 has no 999: nothing overflows, and its largest value is tried."""
    draw = Varied(lambda rows, _: {"x": np.zeros((rows, 4000), np.uint8)})
    draw.learn(Made(refusing(lambda inputs: bool((inputs["x"] > 200).any()))))
    assert 9 == draw(2, 1, 1.0)["x"].max()


def test_a_model_that_runs_not_even_the_example_says_so(tmp_path: Path) -> None:
    """With the model's own words."""
    draw = Varied(lambda rows, _: {"ids": np.zeros((rows, 2), np.int64)})
    with pytest.raises(InferenceFailed, match="failed on this input"):
        draw.learn(loaded(edge_case_models.ids(tmp_path / "ids" / "model.onnx")))
