"""The URLs of Hugging Face's ``InferenceClient``, beside a model's own predict route.

====================================  ========================================================================== ``POST
/models/{model}``              the model's predict route by another name ``POST /models/{model}/pipeline/...`` the same,
for one task: the request must be of that task ``POST /``                            the client was given the server's
base URL: the one model that fits ``GET .../health``, ``GET .../info``  what ``health_check`` and ``get_endpoint_info``
ask, of the server or one model ====================================
==========================================================================
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from serve_app import __version__
from serve_app.api.base64_text import from_base64
from serve_app.api.content_type import resolve, sniff
from serve_app.api.gateway import Gateway
from serve_app.api.media import Asked, Body, Document, Form, split_data_uri, text_of
from serve_app.api.parts import Parts
from serve_app.api.predict import MediaRequest, Predict
from serve_app.api.replies import json_response
from serve_app.api.routes import HttpCall, Route
from serve_app.domain.service import Administration, Inference, ModelInfo
from serve_app.domain.tasks import Kind, kind_of
from serve_app.errors import InvalidRequest, ModelUnavailable
from serve_app.payloads import Media, Payload, Texts

EMBEDDING: Final = "feature-extraction"
SIMILARITY: Final = "sentence-similarity"
ZERO_SHOT: Final = "zero-shot-classification"
CLASSIFICATION: Final = "text-classification"

_SERVED_BY: Final = {SIMILARITY: {EMBEDDING}, ZERO_SHOT: {EMBEDDING, ZERO_SHOT}}
"""Tasks that models of other tasks do."""
_TASK_OF_PARAMETER: Final = {
    "candidate_labels": ZERO_SHOT,
    "hypothesis_template": ZERO_SHOT,
    "multi_label": ZERO_SHOT,
    "normalize": EMBEDDING,
    "prompt_name": EMBEDDING,
    "truncate": EMBEDDING,
    "truncation_direction": EMBEDDING,
    "dimensions": EMBEDDING,
    "encoding_format": EMBEDDING,
    "top_k": CLASSIFICATION,
    "function_to_apply": CLASSIFICATION,
}
"""What a parameter tells of a text's task."""
_FIRST_BASE64: Final = 64
"""Characters of base64 that hold the first bytes of a file."""
_NAMES: Final[dict[Kind, str]] = {"image": "images", "audio": "audio", "text": "text", "tensors": "tensors"}


def routes(gateway: Gateway) -> list[Route]:
    """The routes."""
    service = gateway.inference
    about = _About(service, gateway.administration)
    return [
        Route("POST", "/", operation=_Fitting(service)),
        Route("GET", "/health", about.health, "health"),
        Route("GET", "/info", about.info),
        Route("POST", "/models/{model}", operation=Predict()),
        Route("GET", "/models/{model}/health", about.model_health),
        Route("GET", "/models/{model}/info", about.model_info),
        Route("POST", "/models/{model}/pipeline/{task}", operation=_Pipeline()),
    ]


def tasks_of(info: ModelInfo) -> list[str]:
    """Every task of this model, its own first; empty if it takes only tensors."""
    if info.task == "tensors":
        return []
    return [info.task, *(task for task, by in _SERVED_BY.items() if info.task in by and task != info.task)]


def choose(service: Inference, asked: Asked) -> ModelInfo:
    """The only model that fits a body.

    Raises:
        InvalidRequest: None fits, or several do; the message names them and the URL to use.
    """
    kind, task = _wanted(asked)
    if kind is None:
        raise InvalidRequest(
            "the media type cannot be detected from the content; set Content-Type, or name a model:"
            f" {_urls(service, service.models)}"
        )
    fitting = [
        info.name
        for info in service.models.values()
        if kind_of(info.task) == kind and (task is None or task in tasks_of(info))
    ]
    if len(fitting) == 1:
        return service.find(fitting[0])
    what = _NAMES[kind] + (f" for {task}" if task else "")
    if not fitting:
        raise InvalidRequest(f"no model accepts {what}; available models: {_urls(service, service.models)}")
    raise InvalidRequest(f"{len(fitting)} models accept {what}; name one of them: {_urls(service, fitting)}")


def _urls(service: Inference, names: Any) -> str:
    infos = [service.find(name) for name in names]
    return ", ".join(
        f"POST /v2/models/{info.segment}/infer"
        if info.task == "tensors"
        else f"POST /models/{info.segment} ({info.task})"
        for info in infos
    )


def _wanted(asked: Asked) -> tuple[Kind | None, str | None]:
    """The body's kind, ``None`` if ambiguous, and the task if a text body names it."""
    match asked:
        case Body(content, content_type):
            return _kind(resolve(content_type, content)), None
        case Form(field, content, content_type, texts, parameters):
            if texts or field == "inputs":
                return "text", _task(parameters.task)
            return (_kind(resolve(content_type, content)) if field else None), None
        case Document(inputs, parameters):
            first = bytes(memoryview(inputs)[:1])
            if first == b"{":
                return "text", SIMILARITY if b'"source_sentence"' in bytes(inputs) else CLASSIFICATION
            kind = _kind_of_string(text_of(inputs)) if first == b'"' else "text"
            return kind, _task(parameters.task) if kind == "text" else None
    raise AssertionError(f"no body: {asked!r}")


def _kind(content_type: str) -> Kind | None:
    for prefix, kind in _KINDS.items():
        if content_type.startswith(prefix):
            return kind
    return None


_KINDS: Final[dict[str, Kind]] = {
    "image/": "image",
    "audio/": "audio",
    "video/": "audio",  # Ogg and WebM sounds are called so
    "application/ogg": "audio",
    "text/": "text",
}


def _kind_of_string(inputs: str) -> Kind:
    """Base64 of an image or audio, or else text."""
    content_type, encoded = split_data_uri(inputs)
    if content_type:
        return _kind(content_type) or "text"
    try:
        start = from_base64("".join(encoded[: 2 * _FIRST_BASE64].split())[:_FIRST_BASE64], "inputs")
    except InvalidRequest:
        return "text"
    return _kind(sniff(start)) or "text"


def _task(parameters: dict[str, Any]) -> str | None:
    tasks = [_TASK_OF_PARAMETER[name] for name in parameters if name in _TASK_OF_PARAMETER]
    return ZERO_SHOT if ZERO_SHOT in tasks else next(iter(tasks), None)


class _Fitting(Predict):
    """Requests for the only model that fits the body."""

    def __init__(self, service: Inference) -> None:
        self._service = service

    def parse(self, call: HttpCall, info: ModelInfo | None, body: bytes | memoryview) -> MediaRequest:
        """Parse the body, and choose the model."""
        return self._chosen(super().parse(call, info, body))

    async def parse_form(self, call: HttpCall, info: ModelInfo | None, body: bytes | memoryview) -> MediaRequest:
        """Parse the form, and choose the model."""
        return self._chosen(await super().parse_form(call, info, body))

    def _chosen(self, parsed: MediaRequest) -> MediaRequest:
        assert not isinstance(parsed.asked, Parts)  # the path names no pipeline
        parsed.model = choose(self._service, parsed.asked).name
        return parsed

    def target(self, parsed: MediaRequest) -> tuple[str, None]:
        """The chosen model."""
        return parsed.model, None


class _Pipeline(Predict):
    """Requests for one task of the path's model."""

    def check(self, info: ModelInfo, call: HttpCall) -> None:
        """Refuse tasks of other models."""
        tasks, task = tasks_of(info), call.params["task"]
        if tasks and task not in tasks:
            raise InvalidRequest(f"model {info.name!r} does {', '.join(tasks)}, not {task[:64]!r}")
        super().check(info, call)

    def decode(self, info: ModelInfo, parsed: MediaRequest) -> Payload:
        """Make the model's input, and refuse that of its other tasks."""
        payload = super().decode(info, parsed)
        came = info.task if isinstance(payload, dict) else _task_of(info, payload)
        if came != parsed.task:
            raise InvalidRequest(f"this is a request for {came}; send it to /models/{info.segment}/pipeline/{came}")
        return payload


class _About:
    """Information for Hugging Face's clients about the server and its models."""

    def __init__(self, service: Inference, administration: Administration) -> None:
        self._service = service
        self._administration = administration

    async def health(self, _: Request) -> Response:
        if not self._administration.ready():
            raise ModelUnavailable("not every model is ready; GET / says which are")
        return json_response({"ready": True})

    async def model_health(self, request: Request) -> Response:
        info = self._service.find(request.path_params["model"])
        if not self._service.model_ready(info.name):
            raise ModelUnavailable(info.fault or f"model {info.name!r} has no ready replica")
        return json_response({"ready": True})

    async def info(self, _: Request) -> Response:
        models = [_info(info) for info in self._service.models.values()]
        return json_response({"version": __version__, "models": models})

    async def model_info(self, request: Request) -> Response:
        info = self._service.find(request.path_params["model"])
        return json_response({"version": __version__, **_info(info)})


def _task_of(info: ModelInfo, payload: Media | Texts) -> str:
    parameters = payload.parameters
    if info.task == EMBEDDING and "source_sentence" in parameters:
        return SIMILARITY
    return ZERO_SHOT if info.task == EMBEDDING and "candidate_labels" in parameters else info.task


def _info(info: ModelInfo) -> dict[str, Any]:
    """In the keys of Hugging Face's servers, where they exist."""
    return {
        "model_id": info.name,
        "model_pipeline_tag": None if info.task == "tensors" else info.task,
        "max_client_batch_size": info.max_request_rows,
        "max_batch_size": info.max_rows,
        "variants": list(info.variants),
    }
