"""Processors by the Hugging Face name of their task."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from serve_app.config.processor import (
    PROCESSOR_OPTIONS,
    AudioOptions,
    EmbeddingOptions,
    ImageOptions,
    TextClassificationOptions,
)
from serve_app.errors import ConfigError
from serve_app.payloads import ModelSignature
from serve_app.processors.audio import AudioProcessor
from serve_app.processors.embedding import EmbeddingProcessor
from serve_app.processors.image import ImageProcessor
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.processor import Processor
from serve_app.processors.text_classification import TextClassificationProcessor


def create_processor(
    task: str, signature: ModelSignature, folder: Path | ModelFolder, options: Mapping[str, Any]
) -> Processor:
    """Make the processor of a model.

    Args:
        task: The Hugging Face task name, a key of `PROCESSOR_OPTIONS`.
        signature: The model's inputs and outputs.
        folder: Where the model's files lie, e.g. ``preprocessor_config.json`` and ``tokenizer.json``.
        options: What the configuration says under ``processor:``; wins over the files.

    Raises:
        ConfigError: The task is unknown, an option is wrong, a file is missing or wrong, or they do not fit the
            model. One line per fault.
    """
    kind = PROCESSOR_OPTIONS.get(task)
    if kind is None:
        close = difflib.get_close_matches(task, PROCESSOR_OPTIONS, n=1)
        known = f"did you mean {close[0]}?" if close else f"known are {', '.join(PROCESSOR_OPTIONS)}"
        raise ConfigError((f"task: unknown task {task}; {known}",))
    try:
        parsed = kind.model_validate(options)
    except ValidationError as error:
        raise ConfigError(_problems(error)) from None
    files = ModelFolder(folder) if isinstance(folder, Path) else folder
    match parsed:
        case ImageOptions():
            return ImageProcessor.create(signature, files, parsed)
        case AudioOptions():
            return AudioProcessor.create(signature, files, parsed)
        case TextClassificationOptions():
            return TextClassificationProcessor.create(signature, files, parsed)
        case EmbeddingOptions():
            return EmbeddingProcessor.create(task, signature, files, parsed)
    raise AssertionError(f"no processor takes {kind.__name__}")


def _problems(error: ValidationError) -> tuple[str, ...]:
    lines = []
    for fault in error.errors(include_url=False):
        place = ".".join(map(str, ("processor", *fault["loc"])))
        message = "unknown key" if fault["type"] == "extra_forbidden" else fault["msg"].replace("Input should", "must")
        lines.append(f"{place}: {message}, got {repr(fault['input'])[:60]}")
    return tuple(lines)
