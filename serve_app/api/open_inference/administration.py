"""V2 routes that show or change the server: logging, tracing, the repository and shared memory.

Clients can change the log level, and reload and unload models. The configuration controls everything else; the other
routes refuse, and report the actual state: no tracing, no shared memory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from serve_app.api.gateway import Gateway
from serve_app.api.open_inference.rest import repository_index
from serve_app.api.open_inference.wire import invalid
from serve_app.api.replies import json_response
from serve_app.api.routes import Route
from serve_app.domain.service import Administration, Inference
from serve_app.errors import InvalidRequest, Unsupported
from serve_app.http.body import BodyReader
from serve_app.http.errors import RouteNotFound

_LOGGER: Final = logging.getLogger("serve_app")
_PATIENCE_S: Final = 10.0
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])

_TRACE: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "trace_level": ["OFF"],
        "trace_rate": "0",
        "trace_count": "0",
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "triton",
    }
)

_SHARED_MEMORY: Final = ("systemsharedmemory", "cudasharedmemory")
_KINDS: Final = {bool: "true or false", int: "an integer", str: "a string"}

_WHY: Final[Mapping[str, str]] = MappingProxyType(
    {"register": "tensors travel in the bodies of requests and responses; no memory is shared with clients"}
)


def log_settings() -> dict[str, Any]:
    """The log settings of this process, in Triton's names."""
    return {
        "log_file": "",
        "log_info": _LOGGER.isEnabledFor(logging.INFO),
        "log_warning": _LOGGER.isEnabledFor(logging.WARNING),
        "log_error": _LOGGER.isEnabledFor(logging.ERROR),
        "log_verbose_level": int(_LOGGER.isEnabledFor(logging.DEBUG)),
        "log_format": "default",
    }


def update_log_settings(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Change the log level of this process.

    Args:
        changes: ``log_info`` (whether informational messages are logged) and ``log_verbose_level`` (0, or more for
            debug messages, including informational ones). Others may repeat their current values. ``None`` changes
            nothing.

    Returns:
        The settings afterwards.

    Raises:
        InvalidRequest: The setting is unknown, or its value has the wrong type.
        Unsupported: The setting cannot change while the server runs.
    """
    settings = log_settings()
    for name, value in changes.items():
        if name not in settings:
            raise InvalidRequest(f"{name[:64]!r} is no log setting; there are {', '.join(settings)}")
        if value is None:
            continue
        if type(value) is not type(settings[name]):
            raise InvalidRequest(f"{name}: expected {_KINDS[type(settings[name])]}")
        if name == "log_verbose_level" and value < 0:
            raise InvalidRequest(f"{name}: expected 0 or more")
        if name not in {"log_info", "log_verbose_level"} and value != settings[name]:
            raise Unsupported(f"{name} cannot be changed while the server runs; log_info and log_verbose_level can")
        settings[name] = value
    if settings["log_verbose_level"] and not settings["log_info"]:
        if changes.get("log_verbose_level") and changes.get("log_info") is False:
            raise InvalidRequest("log_verbose_level: verbose messages are logged only where log_info is true")
        if not changes.get("log_verbose_level"):
            settings["log_verbose_level"] = 0  # the change is that of log_info
    level = (
        logging.DEBUG if settings["log_verbose_level"] else logging.INFO if settings["log_info"] else logging.WARNING
    )
    if level != _LOGGER.getEffectiveLevel():
        _LOGGER.setLevel(level)
    return log_settings()


def trace_settings() -> dict[str, Any]:
    """The trace settings, in Triton's names: tracing is off."""
    return dict(_TRACE)


def update_trace_settings(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Accept only that tracing stays off.

    Args:
        changes: Current values, or ``None`` for the default.

    Raises:
        Unsupported: The change would enable tracing.
    """
    for name, value in changes.items():
        if name not in _TRACE:
            raise InvalidRequest(f"{name[:64]!r} is no trace setting; there are {', '.join(_TRACE)}")
        if value not in (None, _TRACE[name]):
            raise Unsupported(
                f"{name}: requests are not traced here; see the Server-Timing header, parameters.timings and /metrics"
            )
    return trace_settings()


def check_load_parameters(names: Iterable[str]) -> None:
    """Refuse parameters of a load or unload: files and settings are the server's own.

    Raises:
        Unsupported: Triton's parameter is not supported here.
    """
    for name in names:
        if name == "config" or name.startswith("file:"):
            raise Unsupported(
                f"parameters.{name[:64]}: what a model is made of, and how it is served, is said by the server's own"
                " files and configuration"
            )
        if name != "unload_dependents":  # no model depends on another
            raise InvalidRequest(f"parameters: there is no {name[:64]!r}")


def routes(gateway: Gateway) -> list[Route]:
    """The routes."""
    endpoints = _AdministrationEndpoints(gateway.inference, gateway.administration, gateway.bodies)
    found = [
        Route("GET", "/v2/logging", endpoints.logging),
        Route("POST", "/v2/logging", endpoints.update_logging, "administration"),
    ]
    for path in ("/v2/trace/setting", "/v2/models/{model}/trace/setting"):
        found += [
            Route("GET", path, endpoints.trace),
            Route("POST", path, endpoints.update_trace, "administration"),
        ]
    found.append(Route("POST", "/v2/repository/index", endpoints.index))
    for kind in _SHARED_MEMORY:
        found += [
            Route("GET", f"/v2/{kind}/status", endpoints.no_regions),
            Route("GET", f"/v2/{kind}/region/{{region}}/status", endpoints.no_region),
            Route("POST", f"/v2/{kind}/unregister", endpoints.unregister),
            Route("POST", f"/v2/{kind}/region/{{region}}/unregister", endpoints.unregister),
        ]
    found += [
        Route("POST", f"/v2/repository/models/{{model}}/{verb}", handler, "administration")
        for verb, handler in (("load", endpoints.load), ("unload", endpoints.unload))
    ]
    paths = tuple(f"{kind}/region/{{region}}/register" for kind in _SHARED_MEMORY)
    # Not in the description: there is nothing to do with them.
    return found + [Route("POST", f"/v2/{path}", endpoints.unsupported, described=False) for path in paths]


class _AdministrationEndpoints:
    def __init__(self, inference: Inference, administration: Administration, bodies: BodyReader) -> None:
        self._inference = inference
        self._administration = administration
        self._bodies = bodies

    async def logging(self, _: Request) -> Response:
        return json_response(log_settings())

    async def update_logging(self, request: Request) -> Response:
        return json_response(update_log_settings(await self._settings(request)))

    async def trace(self, request: Request) -> Response:
        self._check_model(request)
        return json_response(trace_settings())

    async def update_trace(self, request: Request) -> Response:
        self._check_model(request)
        return json_response(update_trace_settings(await self._settings(request)))

    def _check_model(self, request: Request) -> None:
        if "model" in request.path_params:
            self._inference.find(request.path_params["model"])

    async def index(self, request: Request) -> Response:
        wanted = await self._settings(request, may_be_empty=True)
        ready_only = wanted.get("ready") or False
        if not isinstance(ready_only, bool):
            raise InvalidRequest("ready: expected true or false")
        return json_response(repository_index(self._inference, ready_only=ready_only))

    async def load(self, request: Request) -> Response:
        await self._check_parameters(request)
        return json_response(structs.asdict(await self._administration.load(request.path_params["model"])))

    async def unload(self, request: Request) -> Response:
        await self._check_parameters(request)
        return json_response(structs.asdict(await self._administration.unload(request.path_params["model"])))

    async def _check_parameters(self, request: Request) -> None:
        given = (await self._settings(request, may_be_empty=True)).get("parameters") or {}
        if not isinstance(given, dict):
            raise InvalidRequest("parameters: expected an object")
        check_load_parameters(name for name, value in given.items() if value is not None)

    async def no_regions(self, _: Request) -> Response:
        return json_response([])

    async def no_region(self, request: Request) -> Response:
        raise RouteNotFound(
            f"no shared-memory region {request.path_params['region'][:64]!r} is registered: there is none"
        )

    async def unregister(self, _: Request) -> Response:
        return Response()

    async def unsupported(self, request: Request) -> Response:
        verb = request.url.path.rstrip("/").rpartition("/")[2]
        raise Unsupported(f"{verb} is not served here: {_WHY[verb]}")

    async def _settings(self, request: Request, *, may_be_empty: bool = False) -> dict[str, Any]:
        body = await self._bodies.read(request.receive, dict(request.scope["headers"]), _PATIENCE_S)
        try:
            return {} if may_be_empty and not len(body) else _OBJECT.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise invalid(error) from None
        finally:
            self._bodies.release(len(body))
