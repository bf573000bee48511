"""The OpenAPI 3.1 document: ``openapi.yaml`` completed for the server and its models."""

from __future__ import annotations

import base64
import importlib.resources
import io
import wave
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import yaml

from serve_app import __version__
from serve_app.access.guard import Policy
from serve_app.api.content_type import JSON
from serve_app.api.hugging_face import EMBEDDING, tasks_of
from serve_app.api.openai import render_error
from serve_app.api.overview import row_of_zeros
from serve_app.api.routes import Errors, Route
from serve_app.domain.pipeline import Pipeline, PipelineInput
from serve_app.domain.service import ModelInfo
from serve_app.domain.tasks import kind_of
from serve_app.payloads import TENSORS

_OCTETS: Final = "application/octet-stream"
_KEYED: Final = ("401", "403", "429")
"""Statuses of routes that take an API key."""
_ERROR_SCHEMAS: Final[Mapping[Errors, str]] = {render_error: "OpenAIError"}
"""Names of the schemas of errors of another shape than `Error`, by what renders them."""
_PICTURE: Final = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAEklEQVR42mP4//8/AwOIoIwBALniL9GKDAwtAAAAAElFTkSuQmCC"
"""A 1 of 8 x 8 pixels, as PNG in base64."""
_KINDS: Final = {"text/plain": {"text"}, "image/*": {"image"}, "audio/*": {"audio"}, _OCTETS: {"image", "audio"}}
"""What a model has to take, by the media type of a body; whatever is not here goes with any."""
_SAMPLES: Final = 2000
_RATE: Final = 8000


@cache
def template() -> Mapping[str, Any]:
    """The document of a server without models. Parts are shared; never change it."""
    text = importlib.resources.files(__package__).joinpath("openapi.yaml").read_bytes()
    loaded: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    return loaded


def describe(
    served: Iterable[Route], models: Sequence[ModelInfo], is_open: Callable[[Policy], bool] | None = None
) -> dict[str, Any]:
    """Make the OpenAPI 3.1 document.

    Args:
        served: Every route. Those unknown to ``openapi.yaml``, whose order the document has, are omitted.
        is_open: Whether a policy needs no API key; ``None``: none does.
    """
    document = {**template()}
    paths: dict[str, Any] = {}
    routes = {(route.path, route.method.lower()): route for route in served}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if (route := routes.get((path, method))) is None:
                continue
            described = paths.setdefault(path, {})[method] = _for_models(operation, models)
            if is_open is not None and not is_open(route.policy):
                described["security"] = [{name: []} for name in document["components"]["securitySchemes"]]
                described["responses"] = described["responses"] | _refused(route)
    components = {**document["components"]}
    components["parameters"] = {**components["parameters"], "X-Variant": _variants(components["parameters"], models)}
    if is_open is None:
        del components["securitySchemes"]
    return {**document, "info": {**document["info"], "version": __version__}, "paths": paths, "components": components}


def _for_models(operation: Mapping[str, Any], models: Sequence[ModelInfo]) -> dict[str, Any]:
    """An operation with the possible names of its path, and a body for these models."""
    described = {**operation}
    body = operation.get("requestBody", {"content": {}})
    schema = body["content"].get(JSON, {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
    if schema == "PredictRequest":
        models = [info for info in models if tasks_of(info)]
    elif schema == "GenerateRequest":
        models = [info for info in models if info.task == TENSORS]
    if (fill := _CONTENTS.get(schema)) is not None:
        described["requestBody"] = {**body, "content": fill(body["content"], models)}
    if "parameters" in operation:
        described["parameters"] = [_named(parameter, models) for parameter in operation["parameters"]]
    return described


def _refused(route: Route) -> dict[str, Any]:
    shape = _ERROR_SCHEMAS.get(route.errors, "Error")
    return {status: {"$ref": f"#/components/responses/{shape}{status}"} for status in _KEYED}


def _named(parameter: dict[str, Any], models: Sequence[ModelInfo]) -> dict[str, Any]:
    """A parameter; for the path, with its possible values."""
    known: dict[str, Iterable[str]] = {
        "model": (info.name for info in models),
        "version": sorted({version for info in models for version in info.versions}),
        "task": dict.fromkeys(task for info in models for task in tasks_of(info)),
    }
    values = [*known.get(parameter.get("name", ""), ())]
    return {**parameter, "schema": {**parameter["schema"], "enum": values}} if values else parameter


def _variants(parameters: Mapping[str, Any], models: Sequence[ModelInfo]) -> dict[str, Any]:
    parameter: dict[str, Any] = parameters["X-Variant"]
    if variants := sorted({variant for info in models for variant in info.variants}):
        return {**parameter, "schema": {**parameter["schema"], "enum": variants}}
    return {**parameter, "description": parameter["description"] + "; no model here has one"}


# --- Bodies, with an example for every model that takes them --------------------------------------------------------


def _infer(content: dict[str, Any], models: Sequence[ModelInfo]) -> dict[str, Any]:
    examples = {}
    for info in models:
        inputs, length = row_of_zeros(info)
        if not length:
            examples[info.name] = {"summary": f"A row of zeros for {info.name}", "value": {"inputs": inputs}}
    return _with_examples(content, examples)


def _generate(content: dict[str, Any], models: Sequence[ModelInfo]) -> dict[str, Any]:
    examples = {}
    for info in models:
        inputs, length = row_of_zeros(info)
        if not length:
            value = {tensor["name"]: tensor["data"] for tensor in inputs}
            examples[info.name] = {"summary": f"A row of zeros for {info.name}", "value": value}
    return _with_examples(content, examples)


def _predict(content: dict[str, Any], models: Sequence[ModelInfo]) -> dict[str, Any]:
    """Only media types of some model."""
    examples = {}
    for info in models:
        for task in tasks_of(info):
            name = info.name if task == info.task else f"{info.name}: {task}"
            examples[name] = {"summary": f"{task} by {info.name}", "value": _example(info, task)}
    kinds = {kind_of(info.task) for info in models}
    taken = {media: said for media, said in content.items() if media not in _KINDS or kinds & _KINDS[media]}
    if named := [_parts_schema(info.pipeline) for info in models if info.pipeline is not None]:
        taken[JSON] = {**taken[JSON], "schema": {"anyOf": [taken[JSON]["schema"], *named]}}
    return _with_examples(taken, examples)


def _parts_schema(plan: Pipeline) -> dict[str, Any]:
    """A pipeline's JSON body."""
    return {
        "type": "object",
        "properties": {name: {} for name in plan.inputs},
        "required": list(plan.inputs),
        "additionalProperties": False,
    }


def _embeddings(content: dict[str, Any], models: Sequence[ModelInfo]) -> dict[str, Any]:
    names = [info.name for info in models if info.task == EMBEDDING]
    if not names:
        return content
    examples = {name: {"value": {"model": name, "input": ["a text", "another"]}} for name in names}
    schema = {"allOf": [content[JSON]["schema"], {"properties": {"model": {"enum": names}}}]}
    return _with_examples({JSON: {"schema": schema}}, examples)


_CONTENTS: Final = {
    "InferRequest": _infer,
    "GenerateRequest": _generate,
    "PredictRequest": _predict,
    "EmbeddingsRequest": _embeddings,
}
"""What makes the content of a body, by the schema of its JSON."""


def _with_examples(content: dict[str, Any], examples: dict[str, Any]) -> dict[str, Any]:
    return {**content, JSON: {**content[JSON], "examples": examples}} if examples else content


def _example(info: ModelInfo, task: str) -> dict[str, Any]:
    match kind_of(info.task):
        case "image":
            return {"inputs": _PICTURE, "parameters": {"top_k": 3}}
        case "audio":
            return {"inputs": _sound(), "parameters": {"top_k": 3}}
        case "json":
            return {"inputs": {}}
        case "parts" if info.pipeline is not None:
            return {given.name: _part(given) for given in info.pipeline.inputs.values()}
        case _:
            return _text_example(task)


def _part(given: PipelineInput) -> Any:
    part: Any = {"image": {"b64": _PICTURE}, "audio": {"b64": _sound()}, "text": "a text", "json": {}}.get(given.kind)
    if given.kind == "tensor":
        part = {"BOOL": False, "BYTES": ""}.get(given.datatype, 0)
        for size in reversed(given.shape):
            part = [part] * max(1, size)
    return [part] if given.many else part


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
