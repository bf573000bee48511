"""Labels of a request are compared with its texts by a model of natural language inference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serve_app.errors import ConfigError, InferenceFailed, InvalidRequest
from serve_app.payloads import ModelSignature, TensorSpec, Texts
from serve_app.processors import create_processor
from serve_app.processors.processor import Processor

INPUTS = tuple(TensorSpec(name, "INT64", (-1, -1)) for name in ("input_ids", "attention_mask"))
LABELS = {"contradiction": 0, "neutral": 1, "entailment": 2}


def made(folder: Path, labels: dict[str, Any] | None = None) -> Processor:
    """The processor of a classifier of pairs."""
    config = {"architectures": ["BertForSequenceClassification"], "label2id": LABELS if labels is None else labels}
    (folder / "config.json").write_text(json.dumps(config))
    signature = ModelSignature(INPUTS, (TensorSpec("logits", "FP32", (-1, 3)),))
    return create_processor("zero-shot-classification", signature, folder, {})


def test_each_text_is_compared_with_each_label(text_folder: Path) -> None:
    """Scores are the softmax over the labels; with `multi_label`, over entailment and contradiction."""
    processor = made(text_folder)
    asked = Texts(["hello", "world"], {"candidate_labels": "a, b", "hypothesis_template": "is {}"})
    logits = np.log(np.array([[1, 5, 1], [1, 7, 3], [4, 1, 1], [1, 1, 1]], np.float32))

    inputs = processor.preprocess(asked)
    answer = processor.postprocess(asked, {"logits": logits}, inputs)

    assert inputs["input_ids"].shape[0] == processor.estimate(asked).rows == 4
    assert [[each["label"] for each in row] for row in answer] == [["b", "a"], ["a", "b"]]
    assert [each["score"] for each in answer[0]] == pytest.approx([0.75, 0.25])
    several = processor.postprocess(
        Texts(asked.texts, {**asked.parameters, "multi_label": True}), {"logits": logits}, inputs
    )
    assert [each["score"] for each in several[0]] == pytest.approx([0.75, 0.5])
    assert [each["score"] for each in several[1]] == pytest.approx([0.5, 0.2])


@pytest.mark.parametrize(
    ("texts", "parameters", "problem"),
    [
        (["hello"], {}, "candidate_labels: required"),
        ([["a", "b"]], {"candidate_labels": ["a"]}, "expected one or more texts"),
        ([], {"candidate_labels": ["a"]}, "expected one or more texts"),
        (["hello"], {"candidate_labels": ["a"], "normalize": True}, "parameters.normalize: has no effect"),
        (["hello"], {"candidate_labels": ["a"], "hypothesis_template": "is"}, "must say where the label goes"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    text_folder: Path, texts: list[Any], parameters: dict[str, Any], problem: str
) -> None:
    """By parameter."""
    with pytest.raises(InvalidRequest, match=problem):
        made(text_folder).estimate(Texts(texts, parameters))


def test_a_model_without_entailment_is_refused(text_folder: Path) -> None:
    """It could not compare anything."""
    with pytest.raises(ConfigError, match="names no label entailment"):
        made(text_folder, {"good": 0, "bad": 1})


def test_an_answer_that_is_no_number_is_none(text_folder: Path) -> None:
    """It is the model's fault."""
    asked = Texts(["hello"], {"candidate_labels": ["a"]})
    with pytest.raises(InferenceFailed, match="not a finite number"):
        made(text_folder).postprocess(asked, {"logits": np.array([[np.nan, 0, 0]], np.float32)}, {})


def test_the_rows_of_many_labels_are_counted(text_folder: Path) -> None:
    """The server refuses too many rows by their number, before it makes any."""
    asked = Texts([""] * 2_048, {"candidate_labels": [f"label {number}" for number in range(1_000)]})

    assert made(text_folder).estimate(asked).rows == 2_048_000
