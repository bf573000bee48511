"""Logits become labels with scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.config.processor import ClassificationOptions
from serve_app.errors import ConfigError, InferenceFailed, InvalidRequest
from serve_app.payloads import GraphEnds, ModelSignature, TensorSpec
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.ranking import Ranking, RankingParameters, activate


def ranking(folder: Path, classes: int = 3, **options: Any) -> Ranking:
    """The ranking of a model with that many classes."""
    signature = ModelSignature((), (TensorSpec("other", "INT64", (-1,)), TensorSpec("probs", "FP32", (-1, classes))))
    return Ranking.create(signature, ModelFolder(folder), ClassificationOptions(**options))


def test_labels_come_from_options_then_files_then_numbers(tmp_path: Path) -> None:
    """A list, a named file, config.json, labels.txt; LABEL_0 and so on if there is nothing."""
    assert ranking(tmp_path).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    (tmp_path / "labels.txt").write_text("\ufeffa\nb\n\nc\n")  # editors write the mark in front
    assert ranking(tmp_path).labels == ("a", "b", "c")
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"2": "z", "0": "x", "1": "y"}}))
    assert ranking(tmp_path).labels == ("x", "y", "z")
    assert ranking(tmp_path, labels="labels.txt").labels == ("a", "b", "c")
    assert ranking(tmp_path, labels=["1", "2", "3"]).labels == ("1", "2", "3")


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("{", "config.json: is not valid JSON"),
        ("[]", "config.json: must hold a JSON object, not list"),
        ('{"id2label": {"0": "a", "2": "b", "3": "c"}}', "config.json: id2label must number the labels from 0 to 2"),
        ('{"id2label": {"a": "b"}}', "config.json: id2label must map numbers to labels"),
        ('{"id2label": {"0": "a"}}', "config.json: id2label: 1 labels, but output probs has 3 classes"),
    ],
)
def test_broken_files_are_refused_at_the_start(tmp_path: Path, config: str, problem: str) -> None:
    """The line names the file."""
    (tmp_path / "config.json").write_text(config)

    with pytest.raises(ConfigError) as raised:
        ranking(tmp_path)

    assert raised.value.problems[0].startswith(problem)


def test_multi_label_models_score_independently(tmp_path: Path) -> None:
    """Sigmoid by config.json, unless an option says otherwise."""
    (tmp_path / "config.json").write_text(json.dumps({"problem_type": "multi_label_classification"}))

    assert ranking(tmp_path).activation == "sigmoid"
    assert ranking(tmp_path, activation="none").activation == "none"


def test_equal_scores_keep_the_order_of_the_classes(tmp_path: Path) -> None:
    """Answers are the same every time."""
    rows = ranking(tmp_path).rank({"probs": np.zeros((1, 3), np.float32)}, RankingParameters())

    assert [entry["label"] for entry in rows[0]] == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_top_k_may_exceed_the_classes(tmp_path: Path) -> None:
    """All of them are the answer then; five are if nobody says."""
    logits = {"probs": np.arange(9, dtype=np.float32)[None]}

    assert len(ranking(tmp_path, 9).rank(logits, RankingParameters())[0]) == 5
    assert len(ranking(tmp_path, 9, top_k=7).rank(logits, RankingParameters())[0]) == 7
    assert len(ranking(tmp_path, 9).rank(logits, RankingParameters(top_k=99))[0]) == 9


def test_outputs_that_are_no_answer_are_the_model_s_failure(tmp_path: Path) -> None:
    """NaN, or another number of classes than labels."""
    made = ranking(tmp_path, -1, labels=["a", "b"])

    with pytest.raises(InferenceFailed, match="output probs of the model is not a finite number"):
        made.rank({"probs": np.array([[np.nan, 1]], np.float32)}, RankingParameters())
    with pytest.raises(InferenceFailed, match="the model gave 3 scores for 2 labels"):
        made.rank({"probs": np.zeros((1, 3), np.float32)}, RankingParameters())


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"top_k": 1.5}, "parameters.top_k: expected `int | null`, got `float`"),
        ({"top_k": True}, "parameters.top_k: expected `int | null`, got `bool`"),
        ({"top_k": -1}, "parameters.top_k: expected `int` >= 1"),
        ({"function_to_apply": "relu"}, "parameters.function_to_apply: invalid enum value 'relu'"),
        ({"x": 1}, "parameters.x: unknown; known here: top_k, function_to_apply"),
    ],
)
def test_wrong_parameters_are_named(tmp_path: Path, parameters: dict[str, Any], message: str) -> None:
    """What came and what was expected."""
    with pytest.raises(InvalidRequest) as raised:
        ranking(tmp_path).parameters(parameters)

    assert raised.value.message == message


def test_parameters_may_be_null(tmp_path: Path) -> None:
    """Clients send null for what their user did not say."""
    assert ranking(tmp_path).parameters({"top_k": None, "function_to_apply": None}) == RankingParameters()


@given(st.lists(st.floats(-3e38, 3e38), min_size=1, max_size=6), st.sampled_from(["softmax", "sigmoid"]))
def test_scores_are_probabilities_whatever_the_logits(logits: list[float], activation: Any) -> None:
    """Nothing overflows."""
    scores = activate(np.array([logits]), activation)

    assert ((scores >= 0) & (scores <= 1)).all()
    if activation == "softmax":
        assert scores.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("config", "classes", "applied", "one_label", "activation"),
    [
        ({}, 3, "", "sigmoid", "softmax"),
        ({}, 1, "", "sigmoid", "sigmoid"),
        ({}, 1, "", "softmax", "softmax"),
        ({}, -1, "", "sigmoid", None),
        ({"id2label": {"0": "a"}}, -1, "", "sigmoid", "sigmoid"),
        ({"problem_type": "regression"}, 1, "", "sigmoid", "none"),
        ({"problem_type": "regression"}, 3, "", "sigmoid", "none"),
        ({"problem_type": "multi_label_classification"}, 3, "", "softmax", "sigmoid"),
        ({"problem_type": "single_label_classification"}, 1, "", "sigmoid", "sigmoid"),
        ({}, 3, "softmax", "sigmoid", "none"),
        ({"problem_type": "multi_label_classification"}, 3, "sigmoid", "sigmoid", "none"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, 1, "", "sigmoid", "none"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, 3, "", "sigmoid", "none"),
        ({"sentence_transformers": {"version": "4.1"}}, 1, "", "sigmoid", "sigmoid"),
    ],
)
def test_scores_are_made_by_the_function_of_the_library(
    tmp_path: Path, config: dict[str, Any], classes: int, applied: str, one_label: Any, activation: str | None
) -> None:
    """And never by a second one behind one of the model's file. What the configuration names wins."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = TensorSpec("logits", "FP32", (-1, classes))
    signature = ModelSignature((), (spec,), ends=GraphEnds({"logits": applied} if applied else {}))

    made = Ranking.create(signature, ModelFolder(tmp_path), ClassificationOptions.model_validate({}), one_label)
    chosen = Ranking.create(
        signature, ModelFolder(tmp_path), ClassificationOptions.model_validate({"activation": "softmax"}), one_label
    )

    assert made.activation == activation
    assert chosen.activation == "softmax"


def test_the_number_of_scores_decides_where_no_file_does(tmp_path: Path) -> None:
    """Of one its sigmoid, of several their softmax."""
    made = ranking(tmp_path, -1)

    assert made.rank({"probs": np.zeros((1, 1), np.float32)}, RankingParameters())[0][0]["score"] == 0.5
    assert made.rank({"probs": np.zeros((1, 4), np.float32)}, RankingParameters())[0][0]["score"] == 0.25
