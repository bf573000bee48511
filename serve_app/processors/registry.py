"""Processors by the Hugging Face name of their task. Another one is a module of its own, and a row here."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from serve_app.config.processor import PROCESSOR_OPTIONS
from serve_app.errors import ConfigError
from serve_app.payloads import ModelSignature
from serve_app.processors.audio import AudioProcessor
from serve_app.processors.embedding import EmbeddingProcessor
from serve_app.processors.image import ImageProcessor
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.processor import Processor
from serve_app.processors.text_classification import TextClassificationProcessor

PROCESSORS: dict[str, Callable[[ModelSignature, ModelFolder, Any], Processor]] = {
    "image-classification": ImageProcessor.create,
    "audio-classification": AudioProcessor.create,
    "feature-extraction": partial(EmbeddingProcessor.create, "feature-extraction"),
    "text-classification": TextClassificationProcessor.create,
    "zero-shot-classification": partial(EmbeddingProcessor.create, "zero-shot-classification"),
}
"""What makes the processor of a task, of the model's tensors, the files beside it and the options of the task."""


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
    return PROCESSORS[task](signature, files, parsed)


def _problems(error: ValidationError) -> tuple[str, ...]:
    lines = []
    for fault in error.errors(include_url=False):
        place = ".".join(map(str, ("processor", *fault["loc"])))
        message = "unknown key" if fault["type"] == "extra_forbidden" else fault["msg"].replace("Input should", "must")
        lines.append(f"{place}: {message}, got {repr(fault['input'])[:60]}")
    return tuple(lines)
