"""Puts the description together: what the routes do, for the models that are served."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from serve_app import __version__
from serve_app.access.guard import Policy
from serve_app.api.hugging_face import tasks_of
from serve_app.api.openai import render_error
from serve_app.api.openapi.operations import OPERATIONS, TAGS, Operation
from serve_app.api.openapi.schemas import components
from serve_app.api.routes import Route
from serve_app.domain.options import MAX_TIMEOUT_S
from serve_app.domain.service import ModelInfo
from serve_app.http.errors import STATUSES
from serve_app.scheduling.entry import Priority

ASSETS: Final = ("start.js", "swagger-ui.css", "swagger-ui-bundle.js", "favicon-32x32.png")
"""Parts of the page at /docs."""

_KEYED: Final = (401, 403, 429)
"""Statuses of whatever takes an API key."""
_SCHEMES: Final[dict[str, Any]] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key as bearer token"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "An API key in its own header"},
}
_SECURITY: Final[list[dict[str, list[str]]]] = [{name: []} for name in _SCHEMES]
_CLASSES: Final = [priority.label for priority in Priority]
_MEANING: Final = {
    400: "What was sent cannot be understood, or does not fit the model",
    401: "The API key is missing or wrong",
    403: "The API key may not do this",
    404: "There is no such model, version or path",
    405: "This path takes another method",
    413: "The body is too large",
    415: "The model does not take this kind of media",
    429: "There is no room, it could not be answered in time, or the API key is used too often: not started",
    500: "The model failed, or the server has a fault",
    501: "Part of a protocol that is not served here",
    503: "No replica can take work now",
    504: "The deadline passed, or is shorter than the request takes on an idle server",
}
_DESCRIPTION: Final = """\
Every request that runs a model may say how urgent it is (`X-Priority`), until when its answer is worth something
(`X-Timeout-Ms`), and whether a lighter build of the model may answer (`X-Variant`, `X-Fallback`). Every error says what
is wrong and what to do about it, with a stable code. Bodies may be compressed (`Content-Encoding`).
"""


def describe(
    served: Iterable[Route], models: Sequence[ModelInfo], is_open: Callable[[Policy], bool] | None = None
) -> dict[str, Any]:
    """Make the OpenAPI 3.1 document.

    Args:
        served: Every route. What `OPERATIONS` does not know is left out.
        models: The models.
        is_open: Whether what has a policy takes no API key; ``None`` where nothing does.
    """
    paths: dict[str, Any] = {}
    for route in served:
        if (operation := OPERATIONS.get((route.method, route.path))) is not None:
            described = paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, operation, models)
            if is_open is not None and not is_open(route.policy):
                described["security"] = _SECURITY
                described["responses"] |= _responses(route, _KEYED)
    secured = {} if is_open is None else {"securitySchemes": _SCHEMES}
    return {
        "openapi": "3.1.0",
        "info": {"title": "serve-app", "version": __version__, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": description} for name, description in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": components(),
            "responses": {
                _error_name(status, openai=openai): _error(status, openai=openai)
                for openai in (False, True)
                for status in _MEANING
            },
            "parameters": _parameters(models),
            "headers": _HEADERS,
            **secured,
        },
    }


def _operation(route: Route, operation: Operation, models: Sequence[ModelInfo]) -> dict[str, Any]:
    path = route.path
    if operation.media:
        models = [info for info in models if tasks_of(info)]
    statuses = {*operation.statuses, *((404,) if "{" in path else ())}
    described: dict[str, Any] = {
        "tags": [operation.tag],
        "summary": operation.summary,
        "operationId": _identifier(route.method, path),
        "responses": {
            "200": {
                "description": "The answer",
                "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in _headers_of(path, operation)},
                "content": {media: {"schema": schema} for media, schema in operation.answers.items()},
            },
            **_responses(route, statuses),
        },
    }
    if operation.note:
        described["description"] = operation.note
    parameters = [_path_parameter(name, models) for name in re.findall(r"{(\w+)}", path)]
    if operation.runs:
        parameters += [{"$ref": f"#/components/parameters/{name}"} for name in _REQUEST_HEADERS]
        if path.endswith("/infer"):
            parameters.append(_HEADER_LENGTH)
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = operation.body(models)
    return described


def _responses(route: Route, statuses: Iterable[int]) -> dict[str, Any]:
    openai = route.errors is render_error
    return {
        str(status): {"$ref": f"#/components/responses/{_error_name(status, openai=openai)}"}
        for status in sorted(statuses)
    }


def _identifier(method: str, path: str) -> str:
    """A name that code generators can use: ``post_v1_models_predict``."""
    return "_".join([method.lower(), *re.findall(r"\w+", path.replace("openapi.json", "openapi"))])


# --- Parameters -----------------------------------------------------------------------------------------------------


def _path_parameter(name: str, models: Sequence[ModelInfo]) -> dict[str, Any]:
    known: dict[str, list[str]] = {
        "model": [info.name for info in models],
        "version": sorted({version for info in models for version in info.versions}),
        "task": list(dict.fromkeys(task for info in models for task in tasks_of(info))),
        "asset": list(ASSETS),
    }
    values = known.get(name)
    schema = {"type": "string", **({"enum": values} if values else {})}
    return {"name": name, "in": "path", "required": True, "schema": schema}


_REQUEST_HEADERS: Final = ("X-Priority", "X-Timeout-Ms", "X-Variant", "X-Fallback", "Cache-Control", "X-Request-Id")


def _parameters(models: Sequence[ModelInfo]) -> dict[str, Any]:
    variants = sorted({variant for info in models for variant in info.variants})
    named = {"anyOf": [{"type": "string", "enum": _CLASSES}, {"type": "string", "pattern": "^[0-9]{1,19}$"}]}
    milliseconds = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_S * 1e3}
    lighter = "A lighter build of the model" + ("" if variants else "; no model here has one")
    described = {
        "X-Priority": _header(
            "The class; normal by default. Or its number: 1 is the most urgent, 0 the default", named
        ),
        "X-Timeout-Ms": _header(
            "The deadline, milliseconds from now; each class has its default, a slow model more", milliseconds
        ),
        "X-Variant": _header(lighter, {"type": "string", **({"enum": variants} if variants else {})}),
        "X-Fallback": _header(
            "Whether a fallback may answer where the exact model would be too late; allow by default",
            {"type": "string", "enum": ["allow", "never"]},
        ),
        "Cache-Control": _header(
            "Where the model has a response cache: no-store to leave it alone, no-cache for an answer made anew",
            {"type": "string"},
        ),
        "X-Request-Id": _header(
            "Comes back with the answer; up to 128 printable characters, anything else is replaced", {"type": "string"}
        ),
    }
    return {name: {"name": name, **parameter} for name, parameter in described.items()}


def _header(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"in": "header", "required": False, "description": description, "schema": schema}


_HEADER_LENGTH: Final[dict[str, Any]] = {
    "name": "Inference-Header-Content-Length",
    **_header(
        "Bytes of JSON before binary tensors; without it the whole body is JSON. 0: the body is the one input's data",
        {"type": "integer", "minimum": 0},
    ),
}

# --- Answers --------------------------------------------------------------------------------------------------------

_HEADERS: Final[dict[str, Any]] = {
    "X-Request-Id": {"description": "Names the request, here and in the log", "schema": {"type": "string"}},
    "X-Priority": {
        "description": "The class in which it was served",
        "required": True,
        "schema": {"type": "string", "enum": _CLASSES},
    },
    "X-Variant": {"description": "What answered, where it was not the exact model", "schema": {"type": "string"}},
    "X-Cache": {
        "description": "Whether the answer came from the response cache, where the model has one",
        "schema": {"type": "string", "enum": ["hit", "miss", "shared"]},
    },
    "X-Unverified": {
        "description": "What was done without proof that it changes no answer: `batch` for sharing a run with others",
        "schema": {"type": "string", "enum": ["batch"]},
    },
    "Server-Timing": {"description": "Where the time went, milliseconds", "schema": {"type": "string"}},
    "Inference-Header-Content-Length": {
        "description": "Bytes of JSON before binary tensors",
        "schema": {"type": "integer", "minimum": 0},
    },
    "Retry-After": {
        "description": "Seconds until it is worth trying again",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
}


def _headers_of(path: str, operation: Operation) -> list[str]:
    names = ["X-Request-Id"]
    if operation.runs:
        names += ["X-Priority", "X-Variant", "X-Cache", "X-Unverified", "Server-Timing"]
    return [*names, "Inference-Header-Content-Length"] if path.endswith("/infer") else names


def _error_name(status: int, *, openai: bool) -> str:
    return f"{'OpenAI' if openai else ''}Error{status}"


def _error(status: int, *, openai: bool) -> dict[str, Any]:
    codes = [code for code, statuses in STATUSES.items() if statuses.http == status]
    name = "OpenAIError" if openai else "Error"
    code = {"properties": {"code": {"enum": codes}}}
    narrowed = {"properties": {"error": code}} if openai else code
    headers = ["X-Request-Id", *(["Retry-After"] if status in {429, 503} else [])]
    return {
        "description": f"{_MEANING[status]} (`{'`, `'.join(codes)}`)",
        "headers": {header: {"$ref": f"#/components/headers/{header}"} for header in headers},
        "content": {"application/json": {"schema": {"allOf": [{"$ref": f"#/components/schemas/{name}"}, narrowed]}}},
    }
