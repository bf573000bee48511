"""Texts become labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from serve_app.errors import InvalidRequest
from serve_app.payloads import ModelSignature, TensorSpec, Texts
from serve_app.processors import create_processor
from serve_app.processors.processor import Cost, Processor


@pytest.fixture
def sentiment(text_folder: Path) -> Processor:
    """The processor of a model with two classes, named in config.json."""
    (text_folder / "config.json").write_text(json.dumps({"id2label": {"0": "NEGATIVE", "1": "POSITIVE"}}))
    inputs = tuple(TensorSpec(name, "INT64", (-1, -1)) for name in ("input_ids", "attention_mask"))
    signature = ModelSignature(inputs, (TensorSpec("logits", "FP32", (-1, 2)),))
    return create_processor("text-classification", signature, text_folder, {"top_k": 1})


def test_every_text_gets_its_list_of_labels(sentiment: Processor) -> None:
    """Hugging Face's shape: a list per text, also for one."""
    payload = Texts(["hello", "hello world"], {})
    logits = np.log(np.array([[0.9, 0.1], [0.2, 0.8]], np.float32))

    assert sentiment.postprocess(payload, {"logits": logits}, {}) == [
        [{"label": "NEGATIVE", "score": pytest.approx(0.9)}],
        [{"label": "POSITIVE", "score": pytest.approx(0.8)}],
    ]
    assert sentiment.labels == ("NEGATIVE", "POSITIVE")


def test_texts_are_rows_of_one_bucket(sentiment: Processor) -> None:
    """The longest text decides; the estimate is the mean, since each runs at its own length."""
    payload = Texts(["hello", "hello " * 30], {"top_k": 2})

    tensors = sentiment.preprocess(payload)

    assert sentiment.estimate(payload) == Cost(2, 32)
    assert tensors["input_ids"].shape == (2, 32)
    assert sentiment.bucket(tensors) == 32
    assert sentiment.pad(tensors, 64)["attention_mask"].sum(axis=1).tolist() == [3, 32]
    assert sentiment.lengths(tensors) == [3, 32]
    assert sentiment.cut(tensors, [0], 8)["attention_mask"].tolist() == [[1] * 3 + [0] * 5]
    assert sentiment.example(3, 16)["input_ids"].shape == (3, 16)
    assert sentiment.buckets[::8] == (8, 72, 144, 288)
    assert sentiment.buckets[-1] == 512


def test_wrong_requests_are_refused_before_queueing(sentiment: Processor) -> None:
    """No texts, or parameters of another task."""
    with pytest.raises(InvalidRequest, match="none came"):
        sentiment.estimate(Texts([], {}))
    with pytest.raises(InvalidRequest, match=r"^parameters\.candidate_labels: unknown; known here: top_k"):
        sentiment.estimate(Texts(["a"], {"candidate_labels": ["b"]}))
