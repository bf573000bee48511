"""OpenAI's API for embedding models: ``/v1/models`` and ``/v1/embeddings``."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
from starlette.requests import Request
from starlette.responses import Response

from serve_app.api.gateway import Gateway
from serve_app.api.left_out import NULL, BodyDecoder
from serve_app.api.open_inference.wire import invalid
from serve_app.api.replies import dump_json, json_response
from serve_app.api.routes import HttpCall, HttpOperation, Reply, Route
from serve_app.domain.options import Hints
from serve_app.domain.service import Answer, Inference, ModelInfo
from serve_app.errors import InvalidRequest, ServeAppError, some_of
from serve_app.http.errors import Rendered, code_of, message_of, rendered, status_of
from serve_app.payloads import Embeddings, Texts

EMBEDDING_TASK: Final = "feature-extraction"

_Token = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_SPACE: Final = b" \t\r\n"
# Clients branch on the status; the types are those that OpenAI's documentation names.
_ERROR_TYPES: Final[Mapping[int, str]] = MappingProxyType(
    {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    | dict.fromkeys((500, 501, 503, 504), "server_error")
)


class _EmbeddingsRequest(msgspec.Struct):
    model: str
    input: msgspec.Raw
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    prompt_name: str | None = None
    normalize: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["left", "right"] | None = None


_PARAMETERS: Final = ("dimensions", "prompt_name", "normalize", "truncate", "truncation_direction")
"""What is passed on to the model's processor."""
_KNOWN: Final = ("model", "input", "encoding_format", "user", *_PARAMETERS)
_MOST_BESIDE: Final = 2**20


class _KnownOnly(_EmbeddingsRequest, forbid_unknown_fields=True):
    user: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_STRICT: Final = msgspec.json.Decoder(_KnownOnly)
_REQUEST: Final = BodyDecoder(_EmbeddingsRequest)
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT: Final = msgspec.json.Decoder(str)
_TEXTS: Final = msgspec.json.Decoder(list[str])
_TOKENS: Final = msgspec.json.Decoder(list[_Token])
_TOKEN_LISTS: Final = msgspec.json.Decoder(list[list[_Token]])


ERRORS_BELOW: Final = "/v1"
"""Clients of OpenAI's expect its errors here, whatever they ask for."""


def render_error(error: ServeAppError) -> Rendered:
    """An error in OpenAI's format: code and message in an object that also names the type."""
    status = status_of(error).http
    what = {
        "message": message_of(error),
        "type": _ERROR_TYPES.get(status, "invalid_request_error"),
        "param": None,
        "code": code_of(error),
    }
    return rendered(error, {"error": what})


def routes(gateway: Gateway) -> list[Route]:
    """The routes of OpenAI's API."""
    service = gateway.inference
    models = _Models(service)
    return [
        Route("GET", "/v1/models", models.all, errors=render_error),
        Route("GET", "/v1/models/{model}", models.one, errors=render_error),
        Route("POST", "/v1/embeddings", errors=render_error, operation=_CreateEmbeddings(service)),
    ]


class _Models:
    def __init__(self, service: Inference) -> None:
        self._service = service
        self._created = int(datetime.now(UTC).timestamp())

    async def all(self, _: Request) -> Response:
        data = [self._model(info) for info in self._service.models.values()]
        return json_response({"object": "list", "data": data})

    async def one(self, request: Request) -> Response:
        return json_response(self._model(self._service.find(request.path_params["model"])))

    def _model(self, info: ModelInfo) -> dict[str, Any]:
        return {
            "id": info.name,
            "object": "model",
            "created": self._created,
            "owned_by": "serve-app",
            "task": info.task,
        }


class _CreateEmbeddings(HttpOperation[_EmbeddingsRequest]):
    """Embeds texts with the model that the body names."""

    def __init__(self, service: Inference) -> None:
        self._service = service

    def parse(self, call: HttpCall, info: ModelInfo | None, body: bytes | memoryview) -> _EmbeddingsRequest:  # noqa: ARG002
        """Parse the JSON without the texts."""
        try:
            return _STRICT.decode(body)
        except msgspec.ValidationError:
            pass  # a fault, or null
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise invalid(error) from None
        try:
            request = _REQUEST.decode(body)
            _check_names(body, request.input)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise invalid(error) from None
        return request

    def target(self, parsed: _EmbeddingsRequest) -> tuple[str, None]:
        """The body's model."""
        return parsed.model, None

    def check(self, info: ModelInfo, call: HttpCall) -> None:  # noqa: ARG002
        """Refuse models other than for embeddings."""
        if info.task != EMBEDDING_TASK:
            others = [other.name for other in self._service.models.values() if other.task == EMBEDDING_TASK]
            raise InvalidRequest(
                f"model: {info.name!r} makes no embeddings; models that do: {some_of(others) or 'none'}"
            )

    def hints(self, parsed: _EmbeddingsRequest) -> Hints:  # noqa: ARG002
        """None in OpenAI's API."""
        return Hints()

    def decode(self, info: ModelInfo, parsed: _EmbeddingsRequest) -> Texts:
        """Decode the texts, or the token ids."""
        most = info.max_request_rows
        texts = _inputs(parsed.input, most)
        if not 1 <= len(texts) <= most:
            raise _wrong_number(len(texts), most)
        # The model's processor knows its width, and shortens vectors where they are made.
        given = ((name, getattr(parsed, name)) for name in _PARAMETERS)
        return Texts(texts, {name: value for name, value in given if value is not None})

    def write_cost(self, info: ModelInfo, parsed: _EmbeddingsRequest, answer: Answer) -> int:  # noqa: ARG002
        """Converts numbers to text."""
        embeddings: Embeddings = answer.value
        return embeddings.vectors.nbytes

    def write(self, info: ModelInfo, parsed: _EmbeddingsRequest, answer: Answer) -> Reply:
        """One object per text, in order."""
        embeddings: Embeddings = answer.value
        return Reply(_reply(info.name, embeddings.vectors, embeddings.tokens, parsed.encoding_format))


def _check_names(body: bytes | memoryview, texts: msgspec.Raw) -> None:
    """Refuse parameters that would be ignored. Null is allowed: clients send it for all known ones."""
    if len(body) - len(memoryview(texts)) > _MOST_BESIDE:
        raise InvalidRequest(f"the body: more than {_MOST_BESIDE} bytes beside the input")
    for name, value in _OBJECT.decode(body).items():
        if name not in _KNOWN and value != NULL:
            raise InvalidRequest(f"{name[:64]}: unknown; known here: {', '.join(_KNOWN)}")


def _inputs(raw: msgspec.Raw, most: int) -> list[str] | list[list[int]]:
    """The ``input``: a text, texts, one list of token ids, or several, bounded soon after ``most``."""
    text = bytes(memoryview(raw))
    inner = text[1:].lstrip(_SPACE)
    try:
        if text.startswith(b'"'):
            return [_TEXT.decode(text)]
        if not text.startswith(b"["):
            raise InvalidRequest("input: expected a string, a list of strings, or token ids")
        if inner.startswith(b"["):
            # Counted before they are decoded: millions of lists would hold the GIL, and all requests, for seconds.
            count = text.count(b"[") - 1
            if count > most:
                raise _wrong_number(count, most)
            lists = _TOKEN_LISTS.decode(text)
            if not all(lists):
                raise InvalidRequest("input: a list of token ids is empty")
            return lists
        if inner.startswith((b'"', b"]")):
            return _TEXTS.decode(text)
        return [_TOKENS.decode(text)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(error, "input") from None


def _wrong_number(texts: int, most: int) -> InvalidRequest:
    return InvalidRequest(f"input: expected 1 to {most} texts, got {texts}")


def _reply(model: str, vectors: npt.NDArray[np.float32], tokens: int, encoding: str) -> bytes:
    data = []
    for index, row in enumerate(np.ascontiguousarray(vectors, dtype="<f4")):
        embedding: object = base64.b64encode(row).decode() if encoding == "base64" else orjson.Fragment(dump_json(row))
        data.append({"object": "embedding", "index": index, "embedding": embedding})
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return dump_json({"object": "list", "data": data, "model": model, "usage": usage})
