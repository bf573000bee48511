"""Overview pages for people: ``GET /``, ``/status`` and ``/metrics``."""

from __future__ import annotations

import math
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from serve_app import __version__
from serve_app.api.gateway import Gateway
from serve_app.api.replies import json_response
from serve_app.api.routes import Route
from serve_app.domain.service import Administration, Inference, ModelInfo
from serve_app.domain.tasks import kind_of
from serve_app.payloads import DTYPES

_INLINE_VALUES = 64
_LISTED = 100
"""Models that the page for people lists, at most."""


def routes(gateway: Gateway) -> list[Route]:
    """The routes."""
    endpoints = _OverviewEndpoints(gateway.inference, gateway.administration)
    return [
        Route("GET", "/", endpoints.index),
        Route("GET", "/status", endpoints.status, "status"),
        Route("GET", "/metrics", endpoints.metrics, "metrics"),
    ]


def example(info: ModelInfo, base_url: str) -> str:
    """A shell command that sends a valid request to this model."""
    predict = f"{base_url}/v1/models/{info.segment}/predict"
    match kind_of(info.task):
        case "image":
            return f"curl {predict} -H 'Content-Type: image/png' --data-binary @picture.png"
        case "audio":
            return f"curl {predict} -H 'Content-Type: audio/wav' --data-binary @sound.wav"
        case "text":
            return f"curl {predict} -H 'Content-Type: application/json' -d '{{\"inputs\": \"any text\"}}'"
        case "json":
            return f"curl {predict} -H 'Content-Type: application/json' -d '{{\"inputs\": {{}}}}'"
        case "parts":
            return f"curl {predict}{_part_fields(info)}"
        case "tensors":
            return _tensor_example(info, f"{base_url}/v2/models/{info.segment}/infer")


_PART_FILES: Final = {"image": "@picture.png", "audio": "@sound.wav", "text": "'any text'", "json": "'{}'"}


def _part_fields(info: ModelInfo) -> str:
    """Curl's arguments for a pipeline: one part per input."""
    inputs = () if info.pipeline is None else info.pipeline.inputs.values()
    return "".join(f" -F {given.name}={_PART_FILES.get(given.kind, '@numbers.json')}" for given in inputs)


def row_of_zeros(info: ModelInfo) -> tuple[list[dict[str, Any]], int]:
    """The ``inputs`` of a V2 request for one row of zeros, and the bytes of binary data to follow.

    JSON if short or for models of texts (0 bytes follow), otherwise binary.
    """
    shapes = {spec.name: [1, *(max(size, 1) for size in spec.shape[1:])] for spec in info.signature.inputs}
    values = sum(math.prod(shape) for shape in shapes.values())
    datatypes = {spec.datatype for spec in info.signature.inputs}
    binary = (values > _INLINE_VALUES or "BF16" in datatypes) and "BYTES" not in datatypes
    inputs: list[dict[str, Any]] = []
    total = 0
    for spec in info.signature.inputs:
        shape = shapes[spec.name]
        tensor: dict[str, Any] = {"name": spec.name, "shape": shape, "datatype": spec.datatype}
        count = math.prod(shape)
        if binary:
            size = count * DTYPES[spec.datatype].itemsize
            tensor["parameters"] = {"binary_data_size": size}
            total += size
        else:
            zero = {"BYTES": "", "BOOL": False}.get(spec.datatype, 0)
            tensor["data"] = [zero] * count
        inputs.append(tensor)
    return inputs, total


def _tensor_example(info: ModelInfo, url: str) -> str:
    """One row of zeros: JSON if short, otherwise binary data from /dev/zero."""
    inputs, following = row_of_zeros(info)
    options = {}
    if any(spec.datatype == "BF16" for spec in info.signature.outputs):
        options["parameters"] = {"binary_data_output": True}
    request = orjson.dumps({"inputs": inputs, **options}).decode()
    if not following:
        return f"curl {url} -d '{request}'"
    return (
        f"(printf %s '{request}'; head -c {following} /dev/zero) | curl {url}"
        f" -H 'Inference-Header-Content-Length: {len(request)}' --data-binary @-"
    )


class _OverviewEndpoints:
    def __init__(self, inference: Inference, administration: Administration) -> None:
        self._inference = inference
        self._administration = administration

    async def index(self, request: Request) -> Response:
        base_url = str(request.base_url).rstrip("/")
        models = [
            {
                "name": info.name,
                "version": info.version,
                "task": info.task,
                "ready": self._inference.model_ready(info.name),
                "example": example(info, base_url),
            }
            for info in self._inference.models.values()
        ]
        if "application/json" in request.headers.get("accept", ""):
            return json_response({"name": "serve-app", "version": __version__, "models": models})
        lines = [f"serve-app {__version__}", ""]
        for model in models[:_LISTED]:
            state = "ready" if model["ready"] else "not ready"
            lines += [
                f"{model['name']} (version {model['version']}, {model['task']}, {state})",
                f"  {model['example']}",
            ]
        if (more := len(models) - _LISTED) > 0:
            lines.append(f"and {more:,} more: /v1/models lists all")
        lines += [
            "",
            "Any request may carry X-Priority (high, normal, low) and X-Timeout-Ms.",
            "Also here: /docs (every route, to try out), /openapi.json, /v2 (Open Inference Protocol), /v1/models and",
            "/v1/embeddings (OpenAI), /models/NAME (Hugging Face), /status, /metrics",
            "",
        ]
        return PlainTextResponse("\n".join(lines))

    async def status(self, _: Request) -> Response:
        return json_response(self._administration.status())

    async def metrics(self, _: Request) -> Response:
        page, content_type = await self._administration.metrics()
        return Response(page, headers={"Content-Type": content_type})
