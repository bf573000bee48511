"""Kinds of input, by the name of a model's task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["tensors", "image", "audio", "text", "json", "parts"]
"""``parts``: inputs of a pipeline, several values by name."""

JSON_TYPE = "application/json"

_KINDS_OF_TASKS: Mapping[str, Kind] = {
    "tensors": "tensors",
    "json": "json",
    "pipeline": "parts",
    "depth-estimation": "image",
    "keypoint-detection": "image",
    "mask-generation": "image",
    "object-detection": "image",
    "zero-shot-image-classification": "image",
    "zero-shot-object-detection": "image",
    "automatic-speech-recognition": "audio",
    "voice-activity-detection": "audio",
    "zero-shot-audio-classification": "audio",
}
"""Hugging Face's tasks whose first word does not tell the kind, and our own."""

_KINDS_OF_WORDS: Mapping[str, Kind] = {"image": "image", "audio": "audio", "tabular": "json"}


def kind_of(task: str) -> Kind:
    """The input of a model of this task, from Hugging Face's naming: ``image-...``, ``audio-...``, ``tabular-...``.

    Others take text, and ``json`` any JSON.
    """
    word, dash, _ = task.partition("-")
    return _KINDS_OF_TASKS.get(task) or (_KINDS_OF_WORDS.get(word, "text") if dash else "text")
