"""What every route does: one line per route in `OPERATIONS`. A test compares it with the routes that are served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from serve_app.api.content_type import JSON
from serve_app.api.openapi import bodies
from serve_app.api.openapi.schemas import reference
from serve_app.domain.service import ModelInfo

Body: TypeAlias = Callable[[Sequence[ModelInfo]], dict[str, Any]]
Content: TypeAlias = dict[str, Any]
"""Media types of an answer, and their schemas."""

_TEXT: Final = {"type": "string"}
_BYTES: Final = {"type": "string", "format": "binary"}

V2, PREDICT, HUGGING_FACE, OPENAI, SERVER = "Open Inference Protocol V2", "Media", "Hugging Face", "OpenAI", "Server"
TAGS: Final = {
    V2: "Tensors: JSON or binary.",
    PREDICT: "Pictures, sounds and texts as they are.",
    HUGGING_FACE: "The same at the URLs that Hugging Face's InferenceClient makes.",
    OPENAI: "Embeddings for OpenAI's clients.",
    SERVER: "For people, and what watches over the server.",
}

INFERENCE: Final = (400, 413, 415, 429, 500, 503, 504)
"""Statuses of whatever runs a model."""


class Operation(NamedTuple):
    """What one route does.

    Attributes:
        tag: A key of `TAGS`.
        summary: In one line.
        answers: What comes with 200.
        statuses: Which other statuses there are; 404 where the path names a model.
        body: Makes the description of the body.
        media: Whether only models that take media are served, not those that take tensors only.
        note: Whatever else has to be said.
    """

    tag: str
    summary: str
    answers: Content
    statuses: tuple[int, ...] = ()
    body: Body | None = None
    media: bool = False
    note: str = ""

    @property
    def runs(self) -> bool:
        """Whether it runs a model."""
        return set(self.statuses) >= set(INFERENCE)


def _json(*names: str) -> Content:
    schemas = [reference(name) for name in names]
    return {JSON: schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}


def _v2_model(path: str) -> dict[tuple[str, str], Operation]:
    """The routes of one model, with or without its version."""
    return {
        ("GET", path): Operation(V2, "A model's tensors", _json("ModelMetadata")),
        ("GET", f"{path}/ready"): Operation(V2, "Whether a model can take work", _json("ModelReady"), (503,)),
        ("GET", f"{path}/config"): Operation(V2, "A model's configuration (Triton's extension)", _json("ModelConfig")),
        ("GET", f"{path}/stats"): Operation(V2, "What a model has done (Triton's extension)", _json("Statistics")),
        ("POST", f"{path}/infer"): Operation(
            V2,
            "Run a model on tensors",
            {**_json("InferResponse"), bodies.OCTETS: _BYTES},
            (*INFERENCE, 501),
            bodies.infer,
            note="Where outputs are asked for as binary, they come behind the JSON of the answer, whose length then"
            " stands in Inference-Header-Content-Length.",
        ),
    }


_ANSWERS: Final = _json("Labels", "LabelsOfTexts", "Vectors", "Similarities")


def _settings(path: str, what: str) -> dict[tuple[str, str], Operation]:
    """The routes that show settings and change them."""
    content: Content = {JSON: {"type": "object"}}
    return {
        ("GET", path): Operation(V2, f"{what} (Triton's extension)", content),
        ("POST", path): Operation(V2, f"Change {what.lower()}", content, (400, 403, 413, 501), bodies.settings),
    }


def _shared_memory(kind: str) -> dict[tuple[str, str], Operation]:
    """The routes that tell that no memory is shared with clients."""
    path = f"/v2/{kind}sharedmemory"
    return {
        ("GET", f"{path}/status"): Operation(V2, "Memory shared with clients: none", {JSON: {"type": "array"}}),
        ("GET", f"{path}/region/{{region}}/status"): Operation(V2, "One region of it: there is none", {}),
        ("POST", f"{path}/unregister"): Operation(V2, "Share none", {}),
        ("POST", f"{path}/region/{{region}}/unregister"): Operation(V2, "Do not share this one", {}),
    }


def _media(tag: str, summary: str, note: str = "") -> Operation:
    return Operation(tag, summary, _ANSWERS, INFERENCE, bodies.predict, media=True, note=note)


OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = MappingProxyType(
    {
        ("GET", "/v2"): Operation(V2, "The server", _json("ServerMetadata")),
        ("GET", "/v2/health/live"): Operation(V2, "Whether the process works", _json("Live"), (503,)),
        ("GET", "/v2/health/ready"): Operation(V2, "Whether every model can take work", _json("Ready"), (503,)),
        ("GET", "/v2/models/stats"): Operation(V2, "What every model has done", _json("Statistics")),
        ("POST", "/v2/repository/index"): Operation(V2, "Every model", _json("RepositoryIndex")),
        **_v2_model("/v2/models/{model}"),
        **_v2_model("/v2/models/{model}/versions/{version}"),
        **_settings("/v2/logging", "How much is logged"),
        **_settings("/v2/trace/setting", "What is traced"),
        **_settings("/v2/models/{model}/trace/setting", "What is traced of a model"),
        **_shared_memory("system"),
        **_shared_memory("cuda"),
        ("POST", "/v1/models/{model}/predict"): _media(
            PREDICT,
            "Classify a picture, a sound or a text, or embed texts",
            "A text model answers with labels per text, vectors, or similarities to `source_sentence`; with"
            " `candidate_labels` an embedding model classifies (zero-shot). A body whose Content-Type says nothing is"
            " known by its first bytes.",
        ),
        ("POST", "/models/{model}"): _media(HUGGING_FACE, "As predict"),
        ("POST", "/models/{model}/pipeline/{task}"): _media(HUGGING_FACE, "As predict, for one task"),
        ("POST", "/"): _media(HUGGING_FACE, "As predict, by the one model that fits the request"),
        ("GET", "/health"): Operation(HUGGING_FACE, "Whether every model can take work", _json("Ready"), (503,)),
        ("GET", "/info"): Operation(HUGGING_FACE, "Every model", _json("ServerInformation")),
        ("GET", "/models/{model}/health"): Operation(
            HUGGING_FACE, "Whether a model can take work", _json("Ready"), (503,)
        ),
        ("GET", "/models/{model}/info"): Operation(HUGGING_FACE, "One model", _json("ModelInformation")),
        ("GET", "/v1/models"): Operation(OPENAI, "Every model", _json("OpenAIModels")),
        ("GET", "/v1/models/{model}"): Operation(OPENAI, "One model", _json("OpenAIModel")),
        ("POST", "/v1/embeddings"): Operation(
            OPENAI, "Embed texts", _json("EmbeddingsResponse"), (404, *INFERENCE), bodies.embeddings
        ),
        ("GET", "/"): Operation(
            SERVER, "What is served here, with a line to try per model", {"text/plain": _TEXT, **_json("Overview")}
        ),
        ("GET", "/status"): Operation(SERVER, "Queues, replicas and predictions", _json("Status")),
        ("GET", "/metrics"): Operation(SERVER, "Metrics in Prometheus' text format", {"text/plain": _TEXT}),
        ("GET", "/openapi.json"): Operation(SERVER, "This description", {JSON: {"type": "object"}}),
        ("GET", "/docs"): Operation(SERVER, "This description, to try out", {"text/html": _TEXT}),
        ("GET", "/docs/{asset}"): Operation(
            SERVER,
            "Parts of that page",
            {"text/css": _TEXT, "text/javascript": _TEXT, "image/png": _BYTES},
            (404,),
        ),
    }
)
"""Every route by method and path."""
