"""How much an answer takes to write, which decides whether that leaves the event loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from api.protocol_service import TEXT
from serve_app.api.gateway import Operation
from serve_app.api.open_inference.codec import ModelCodec
from serve_app.api.open_inference.generate import Generate, GenerateCodec
from serve_app.api.open_inference.infer import Infer, ParsedInferRequest
from serve_app.api.parts import Parts
from serve_app.api.predict import MediaRequest, Predict
from serve_app.domain.pipeline import PIPELINE, Pipeline
from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer, ModelInfo

BODY = b'{"inputs": [{"name": "x", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}]%s}'
CHAIN = TEXT._replace(task=PIPELINE, pipeline=Pipeline("chain", {}, {}, {}))


def infer(more: bytes) -> ParsedInferRequest:
    """A V2 request that asks for texts."""
    codec = ModelCodec(TEXT)
    parsed = codec.parse(BODY % more, None)
    return ParsedInferRequest(codec, parsed, codec.select(parsed))


GENERATE = GenerateCodec(TEXT)


@pytest.mark.parametrize(
    ("operation", "info", "parsed"),
    [
        pytest.param(Infer(), TEXT, infer(b""), id="infer"),
        pytest.param(Infer(), TEXT, infer(b', "parameters": {"binary_data_output": true}'), id="infer, binary"),
        pytest.param(Generate(), TEXT, GENERATE.parse(b'{"x": "a"}'), id="generate"),
        pytest.param(Predict(), CHAIN, MediaRequest(Parts({})), id="a pipeline"),
    ],
)
def test_long_texts_are_not_written_for_nothing(
    operation: Operation[Any, Any, Any], info: ModelInfo, parsed: Any
) -> None:
    """The array of them holds references."""
    long = np.array([[b"a" * 100_000]], np.object_)
    answer = Answer({"y": long}, Priority.NORMAL, 0.0, 0.0)
    assert operation.write_cost(info, parsed, answer) == 100_008
