"""Bodies of requests, with an example for every model that takes them."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from serve_app.api.content_type import JSON, MULTIPART, kind_of
from serve_app.api.hugging_face import EMBEDDING, tasks_of
from serve_app.api.openapi.schemas import reference
from serve_app.api.overview import row_of_zeros
from serve_app.domain.service import ModelInfo

OCTETS: Final = "application/octet-stream"

_PICTURE: Final = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAEklEQVR42mP4//8/AwOIoIwBALniL9GKDAwtAAAAAElFTkSuQmCC"
"""A 1 of 8 x 8 pixels, as PNG in base64."""
_SAMPLES: Final = 2000
_RATE: Final = 8000


def infer(models: Sequence[ModelInfo]) -> dict[str, Any]:
    """Of V2 infer requests."""
    examples = {}
    for info in models:
        inputs, length = row_of_zeros(info)
        if not length:
            examples[info.name] = {"summary": f"A row of zeros for {info.name}", "value": {"inputs": inputs}}
    return _body(
        {
            JSON: {"schema": reference("InferRequest"), **_shown(examples)},
            OCTETS: {"schema": _BINARY},
        },
        "JSON; or JSON, of as many bytes as Inference-Header-Content-Length says, and the data of tensors behind it.",
    )


def predict(models: Sequence[ModelInfo]) -> dict[str, Any]:
    """Of requests with media, for these models."""
    examples = {}
    for info in models:
        for task in tasks_of(info):
            name = info.name if task == info.task else f"{info.name}: {task}"
            examples[name] = {"summary": f"{task} by {info.name}", "value": _example(info, task)}
    kinds = {kind_of(info.task) for info in models}
    content: dict[str, Any] = {
        JSON: {"schema": reference("PredictRequest"), **_shown(examples)},
        MULTIPART: {"schema": _FORM},
    }
    if "text" in kinds:
        content["text/plain"] = {"schema": {"type": "string", "minLength": 1}}
    content |= {f"{kind}/*": {"schema": _BINARY} for kind in ("image", "audio") if kind in kinds}
    if kinds & {"image", "audio"}:
        content[OCTETS] = {"schema": _BINARY}
    return _body(content, "A file as it is, in a form, or in base64; or text.")


def embeddings(models: Sequence[ModelInfo]) -> dict[str, Any]:
    """Of OpenAI's embeddings requests, for the models that make them."""
    names = [info.name for info in models if info.task == EMBEDDING]
    named = {"properties": {"model": {"enum": names}}} if names else {}
    examples = {name: {"value": {"model": name, "input": ["a text", "another"]}} for name in names}
    schema = {"allOf": [reference("EmbeddingsRequest"), named]} if named else reference("EmbeddingsRequest")
    return _body({JSON: {"schema": schema, **_shown(examples)}}, "")


def settings(_: Sequence[ModelInfo]) -> dict[str, Any]:
    """Of changes to settings."""
    return _body({JSON: {"schema": {"type": "object"}}}, "Names of settings and their new values.")


_BINARY: Final[dict[str, Any]] = {"type": "string", "format": "binary"}
_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "file": {**_BINARY, "description": "A picture or a sound. Any name will do."},
        "inputs": {"type": "string", "description": "A text; as many fields of this name as there are texts."},
        "parameters": {"type": "string", "contentMediaType": JSON, "description": "PredictParameters as JSON."},
    },
}


def _body(content: dict[str, Any], description: str) -> dict[str, Any]:
    return {"required": True, "content": content, **({"description": description} if description else {})}


def _shown(examples: dict[str, Any]) -> dict[str, Any]:
    return {"examples": examples} if examples else {}


def _example(info: ModelInfo, task: str) -> dict[str, Any]:
    match kind_of(info.task):
        case "image":
            return {"inputs": _PICTURE, "parameters": {"top_k": 3}}
        case "audio":
            return {"inputs": _sound(), "parameters": {"top_k": 3}}
        case _:
            return _text_example(task)


def _text_example(task: str) -> dict[str, Any]:
    if task == "sentence-similarity":
        return {"inputs": {"source_sentence": "a text", "sentences": ["a text", "something else"]}}
    if task == "zero-shot-classification":
        return {"inputs": "a text", "parameters": {"candidate_labels": ["prose", "verse"]}}
    return {"inputs": "a text"}


@cache
def _sound() -> str:
    """A quarter of a second of silence."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(_RATE)
        file.writeframes(b"\x80" * _SAMPLES)
    return base64.b64encode(buffer.getvalue()).decode()
