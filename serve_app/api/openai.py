"""The part of OpenAI's API that embedding models can serve: ``/v1/models`` and ``/v1/embeddings``."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from time import monotonic
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve_app.api.open_inference.wire import invalid
from serve_app.api.replies import answer_headers, dump_json, json_response
from serve_app.domain.options import headers_of, levels_of, parse_qos_headers, patience_s, remaining, request_options
from serve_app.domain.service import InferenceService, ModelInfo
from serve_app.errors import InvalidRequest
from serve_app.http.body import BodyReader
from serve_app.payloads import Embeddings, Texts

EMBEDDING_TASK: Final = "feature-extraction"

_Token = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_SPACE: Final = b" \t\r\n"


class _EmbeddingsRequest(msgspec.Struct):
    model: str
    input: msgspec.Raw
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None


_REQUEST: Final = msgspec.json.Decoder(_EmbeddingsRequest)
_TEXT: Final = msgspec.json.Decoder(str)
_TEXTS: Final = msgspec.json.Decoder(list[str])
_TOKENS: Final = msgspec.json.Decoder(list[_Token])
_TOKEN_LISTS: Final = msgspec.json.Decoder(list[list[_Token]])


def routes(service: InferenceService, bodies: BodyReader) -> list[Route]:
    """The routes of OpenAI's API."""
    endpoints = _Endpoints(service, bodies)
    return [
        Route("/v1/models", endpoints.models, methods=["GET"]),
        Route("/v1/models/{model}", endpoints.model, methods=["GET"]),
        Route("/v1/embeddings", endpoints.embeddings, methods=["POST"]),
    ]


class _Endpoints:
    def __init__(self, service: InferenceService, bodies: BodyReader) -> None:
        self._service = service
        self._bodies = bodies
        self._created = int(datetime.now(UTC).timestamp())

    async def models(self, _: Request) -> Response:
        data = [self._model(info) for info in self._service.models.values()]
        return json_response({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        return json_response(self._model(self._service.find(request.path_params["model"])))

    def _model(self, info: ModelInfo) -> dict[str, Any]:
        return {
            "id": info.name,
            "object": "model",
            "created": self._created,
            "owned_by": "serve-app",
            "task": info.task,
        }

    async def embeddings(self, request: Request) -> Response:
        arrived = monotonic()
        headers = headers_of(request.scope["headers"])
        request.state.asked_model = ""
        models = self._service.models.values()
        qos = parse_qos_headers(headers, levels_of(models))
        limit_s = patience_s(models, qos)
        content = await self._bodies.read(request.receive, headers, limit_s)
        try:
            large = self._bodies.is_large(len(content))
            asked = await self._bodies.offload(_parse, content) if large else _parse(content)
            request.state.asked_model = asked.model
            info = self._embedding_model(asked.model)
            options = request_options(info, headers, len(content), qos=qos)
            self._service.precheck(info.name, options.priority, len(content), options.tenant)
            most = info.max_request_rows
            texts = await self._bodies.offload(_inputs, asked.input, most) if large else _inputs(asked.input, most)
        finally:
            self._bodies.release(len(content))
        if not 1 <= len(texts) <= most:
            raise _wrong_number(len(texts), most)
        # The model's processor knows its width, and shortens vectors where they are made.
        parameters = {} if asked.dimensions is None else {"dimensions": asked.dimensions}
        answer = await self._service.submit(
            info.name, Texts(texts, parameters), remaining(options, monotonic() - arrived)
        )
        embeddings: Embeddings = answer.value
        vectors = embeddings.vectors
        encode = self._bodies.is_large(vectors.nbytes)
        reply = (
            await self._bodies.offload(_reply, info.name, vectors, embeddings.tokens, asked.encoding_format)
            if encode
            else _reply(info.name, vectors, embeddings.tokens, asked.encoding_format)
        )
        return Response(reply, media_type="application/json", headers=answer_headers(answer))

    def _embedding_model(self, name: str) -> ModelInfo:
        info = self._service.find(name)
        if info.task != EMBEDDING_TASK:
            others = [other.name for other in self._service.models.values() if other.task == EMBEDDING_TASK]
            raise InvalidRequest(
                f"model: {info.name!r} makes no embeddings; models that do: {', '.join(others) or 'none'}"
            )
        return info


def _parse(content: bytes) -> _EmbeddingsRequest:
    try:
        return _REQUEST.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(error) from None


def _inputs(raw: msgspec.Raw, most: int) -> list[str] | list[list[int]]:
    """The ``input``: a text, texts, one list of token ids, or several, but not many more than ``most``."""
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
