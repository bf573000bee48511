"""Processors by the name of their task."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from serve_app.config.processor import PROCESSOR_OPTIONS
from serve_app.errors import ConfigError
from serve_app.payloads import ModelSignature, TensorSpec
from serve_app.processors import create_processor
from serve_app.processors.registry import PROCESSORS

IMAGE = ModelSignature((TensorSpec("x", "FP32", (-1, 3, 8, 8)),), (TensorSpec("y", "FP32", (-1, 2)),))


def test_every_task_has_options_with_a_schema() -> None:
    """Editors complete them, and every option is described."""
    assert list(PROCESSOR_OPTIONS) == [
        "image-classification",
        "audio-classification",
        "feature-extraction",
        "text-classification",
        "zero-shot-classification",
    ]
    assert PROCESSORS.keys() == PROCESSOR_OPTIONS.keys()
    for options in PROCESSOR_OPTIONS.values():
        schema = options.model_json_schema()
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["additionalProperties"] is False
        assert [name for name, option in schema["properties"].items() if not option.get("description")] == []


def test_an_unknown_task_is_refused_with_the_nearest() -> None:
    """A typing error is easily corrected."""
    with pytest.raises(ConfigError, match="task: unknown task image-clasification; did you mean image-classification"):
        create_processor("image-clasification", IMAGE, Path(), {})


def test_every_wrong_option_is_a_line(tmp_path: Path) -> None:
    """Unknown keys and wrong values, all at once."""
    with pytest.raises(ConfigError) as raised:
        create_processor("image-classification", IMAGE, tmp_path, {"sise": 3, "top_k": 0, "max_pixels": 10**12})

    assert raised.value.problems == (
        "processor.top_k: must be greater than or equal to 1, got 0",
        "processor.max_pixels: must be less than or equal to 178956970, got 1000000000000",
        "processor.sise: unknown key, got 3",
    )
