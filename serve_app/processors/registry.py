"""The built-in processors by Hugging Face task, and the creation of any processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError

from serve_app.config.processor import PROCESSOR_OPTIONS
from serve_app.errors import ConfigError
from serve_app.payloads import ModelSignature
from serve_app.processors.audio import AudioProcessor
from serve_app.processors.custom import find_class, make_custom
from serve_app.processors.embedding import EmbeddingParameters, EmbeddingProcessor
from serve_app.processors.image import ImageProcessor
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.processor import Processor
from serve_app.processors.ranking import RankingParameters
from serve_app.processors.text_classification import TextClassificationProcessor
from serve_app.processors.zero_shot import create_zero_shot

PROCESSORS: dict[str, Callable[[ModelSignature, ModelFolder, Any], Processor]] = {
    "image-classification": ImageProcessor.create,
    "audio-classification": AudioProcessor.create,
    "feature-extraction": partial(EmbeddingProcessor.create, "feature-extraction"),
    "text-classification": TextClassificationProcessor.create,
    "zero-shot-classification": create_zero_shot,
}
"""What makes the processor of a task, of the model's tensors, the files beside it and the options of the task."""

PARAMETERS: Mapping[str, type[msgspec.Struct]] = {
    "image-classification": RankingParameters,
    "audio-classification": RankingParameters,
    "text-classification": RankingParameters,
    "feature-extraction": EmbeddingParameters,
    "zero-shot-classification": EmbeddingParameters,
}
"""What the parameters of their requests may be; see `parse_parameters`."""


def create_processor(
    task: str,
    signature: ModelSignature,
    folder: Path | ModelFolder,
    options: Mapping[str, Any],
    custom: str | type[Any] | None = None,
) -> Processor:
    """Make the processor of a model.

    Args:
        task: A key of `PROCESSOR_OPTIONS`, or a task of an installed package's processor.
        folder: With e.g. ``preprocessor_config.json`` and ``tokenizer.json``.
        options: ``processor:`` of the configuration; wins over the files.
        custom: A class to use instead, or its name: ``module:Class`` or ``file.py:Class``.

    Raises:
        ConfigError: The task is unknown, an option is wrong, a file is missing or wrong, or they do not fit the model.
            One line per fault.
    """
    files = ModelFolder(folder) if isinstance(folder, Path) else folder
    kind = PROCESSOR_OPTIONS.get(task)
    if kind is None or custom is not None:
        cls = custom if isinstance(custom, type) else find_class(custom, task, files)
        return make_custom(cls, signature, files, options)
    try:
        parsed = kind.model_validate(options)
    except ValidationError as error:
        raise ConfigError(_problems(error)) from None
    return PROCESSORS[task](signature, files, parsed)


def _problems(error: ValidationError) -> tuple[str, ...]:
    lines = []
    for fault in error.errors(include_url=False):
        place = ".".join(map(str, ("processor", *fault["loc"])))
        message = "unknown key" if fault["type"] == "extra_forbidden" else fault["msg"].replace("Input should", "must")
        lines.append(f"{place}: {message}, got {repr(fault['input'])[:60]}")
    return tuple(lines)
