"""The V2 routes beside infer: health, metadata, configuration and statistics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serve_app import __version__
from serve_app.api.gateway import Gateway
from serve_app.api.open_inference.configuration import joinable_parameters, model_config
from serve_app.api.replies import json_response
from serve_app.api.routes import Route
from serve_app.domain.service import Administration, Inference, ModelInfo
from serve_app.errors import ModelUnavailable, some_of
from serve_app.payloads import TensorSpec

__all__ = ["EXTENSIONS", "model_config", "model_metadata", "routes"]

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "logging",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
)
"""What `GET /v2` lists: the protocol's extensions that are served here."""


def routes(gateway: Gateway) -> list[Route]:
    """The routes."""
    endpoints = _MetadataEndpoints(gateway.inference, gateway.administration)
    found = [
        Route("GET", "/v2", endpoints.server),
        Route("GET", "/v2/health/live", endpoints.live, "health"),
        Route("GET", "/v2/health/ready", endpoints.ready, "health"),
        Route("GET", "/v2/models/stats", endpoints.all_statistics),
    ]
    for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        found += [
            Route("GET", model, endpoints.model),
            Route("GET", f"{model}/ready", endpoints.model_ready),
            Route("GET", f"{model}/config", endpoints.config),
            Route("GET", f"{model}/stats", endpoints.statistics),
        ]
    return found


def model_metadata(info: ModelInfo) -> dict[str, Any]:
    """A model's metadata object. Its parameters tell whether requests share runs, and why."""
    return {
        "name": info.name,
        "versions": list(info.versions),
        "platform": info.platform,
        "inputs": _metadata_tensors(info.signature.inputs),
        "outputs": _metadata_tensors(info.signature.outputs),
        "parameters": joinable_parameters(info),
    }


def server_metadata() -> dict[str, Any]:
    """The server's metadata object."""
    return {"name": "serve-app", "version": __version__, "extensions": list(EXTENSIONS)}


def repository_index(inference: Inference, *, ready_only: bool = False) -> list[dict[str, str]]:
    """All models and their readiness; ``ready_only`` omits those not ready."""
    entries = []
    every = [inference.find(name, version) for name, info in inference.models.items() for version in info.versions]
    for info in every:
        ready = inference.model_ready(info.key or info.name)
        if ready_only and not ready:
            continue
        entries.append(
            {
                "name": info.name,
                "version": info.version,
                "state": "READY" if ready else "UNAVAILABLE",
                "reason": "" if ready else info.fault or "no replica can take work",
            }
        )
    if not ready_only:
        entries += [
            {"name": info.name, "version": info.version, "state": "UNAVAILABLE", "reason": "unloaded"}
            for infos in inference.unloaded.values()
            for info in infos
        ]
    return entries


def _metadata_tensors(specs: Iterable[TensorSpec]) -> list[dict[str, Any]]:
    # Of a model with rows any number of them may be sent, whatever batch the file was exported with.
    return [{"name": spec.name, "datatype": spec.datatype, "shape": list(spec.public_shape)} for spec in specs]


class _MetadataEndpoints:
    def __init__(self, inference: Inference, administration: Administration) -> None:
        self._inference = inference
        self._administration = administration

    async def server(self, _: Request) -> Response:
        return json_response(server_metadata())

    async def live(self, _: Request) -> Response:
        if not self._administration.live():
            raise ModelUnavailable("the server is not live")
        return json_response({"live": True})

    async def ready(self, _: Request) -> Response:
        if not self._administration.ready():
            waiting = [name for name in self._inference.models if not self._inference.model_ready(name)]
            raise ModelUnavailable("not ready to take work" + (f" for: {some_of(waiting)}" if waiting else ""))
        return json_response({"ready": True})

    async def model(self, request: Request) -> Response:
        return json_response(model_metadata(self._find(request)))

    async def model_ready(self, request: Request) -> Response:
        info = self._find(request)
        if not self._inference.model_ready(info.key or info.name):
            raise ModelUnavailable(info.fault or f"model {info.name!r} has no ready replica")
        return json_response({"name": info.name, "ready": True})

    async def config(self, request: Request) -> Response:
        return json_response(model_config(self._find(request)))

    async def statistics(self, request: Request) -> Response:
        info = self._find(request)
        # Without a version, those of all versions.
        asked = info.key if info.key and "version" in request.path_params else info.name
        return json_response({"model_stats": await self._administration.total_statistics([asked])})

    async def all_statistics(self, _: Request) -> Response:
        return json_response({"model_stats": await self._administration.total_statistics(self._inference.models)})

    def _find(self, request: Request) -> ModelInfo:
        return self._inference.find(request.path_params["model"], request.path_params.get("version"))
