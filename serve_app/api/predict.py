"""``POST /v1/models/{model}/predict``: media as users have them, answers as Hugging Face's clients expect them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve_app.api.content_type import (
    JSON,
    MULTIPART,
    WANTED,
    check_content_type,
    kind_of,
    media_type,
    resolve,
)
from serve_app.api.media import Asked, PredictRequest, parse, parse_form, payload_of
from serve_app.api.replies import answer_headers, dump_json
from serve_app.domain.options import (
    allowed_s,
    client_of,
    headers_of,
    levels_of,
    parse_qos_headers,
    patience_s,
    remaining,
    request_options,
)
from serve_app.domain.service import InferenceService, ModelInfo
from serve_app.errors import InvalidRequest
from serve_app.http.body import BodyReader
from serve_app.payloads import Embeddings

_P = ParamSpec("_P")
_R = TypeVar("_R")

PATH = "/v1/models/{model}/predict"


def routes(predict: Predict) -> list[Route]:
    """The route of predict requests."""
    return [Route(PATH, predict.named, methods=["POST"])]


class Predict:
    """Answers requests with media.

    Args:
        service: Runs them.
        bodies: Reads them.
    """

    def __init__(self, service: InferenceService, bodies: BodyReader) -> None:
        self._service = service
        self._bodies = bodies

    async def named(self, request: Request) -> Response:
        """Answer by the model that the path names."""
        return await self.by(request, self.find(request))

    def find(self, request: Request) -> ModelInfo:
        """The model that the path names. Raises `ModelNotFound`."""
        request.state.asked_model = request.path_params["model"]
        return self._service.find(request.path_params["model"])

    async def by(
        self, request: Request, info: ModelInfo, check: Callable[[PredictRequest], None] | None = None
    ) -> Response:
        """Answer by this model.

        Args:
            request: Of any content type that the model takes.
            info: The model.
            check: Looks at the decoded request, and raises what is to be answered where it is not to be served.
        """
        arrived = monotonic()
        headers = headers_of(request.scope["headers"])
        content_type, kind = media_type(headers), kind_of(info.task)
        check_content_type(info, kind, content_type, final=False)
        declared = self._bodies.declared_size(headers)
        options = request_options(info, headers, declared or 0)
        if declared is not None:
            self._service.precheck(info.name, options.priority, declared, options.tenant)
        content = await self._bodies.read(request.receive, headers, allowed_s(info, options))
        try:
            if declared is None:
                self._service.precheck(info.name, options.priority, len(content), options.tenant)
            if not content:
                raise InvalidRequest(f"the body is empty; model {info.name!r} takes {WANTED[kind]}")
            parsed = await self._parse(request, content_type, content)
            asked = await self._offload_large(content, payload_of, info, kind, parsed)
        finally:
            self._bodies.release(len(content))
        if check is not None:
            check(asked)
        return await self._answer(info, headers, asked, len(content), arrived)

    async def by_chosen(self, request: Request, choose: Callable[[Asked], ModelInfo]) -> Response:
        """Answer by the model that fits the body.

        Args:
            request: Of any content type.
            choose: Names the model, or raises what is to be answered where there is none.
        """
        arrived = monotonic()
        request.state.asked_model = ""
        headers = headers_of(request.scope["headers"])
        models = self._service.models.values()
        qos = parse_qos_headers(headers, levels_of(models))
        limit_s = patience_s(models, qos)
        content = await self._bodies.read(request.receive, headers, limit_s)
        try:
            parsed = await self._parse(request, media_type(headers), content)
            info = await self._offload_large(content, choose, parsed)
            request.state.asked_model = info.name
            self._service.precheck(info.name, qos[0], len(content), client_of(headers))
            asked = await self._offload_large(content, payload_of, info, kind_of(info.task), parsed)
        finally:
            self._bodies.release(len(content))
        return await self._answer(info, headers, asked, len(content), arrived)

    async def _parse(self, request: Request, content_type: str, content: bytes) -> Asked:
        if content_type == MULTIPART:
            return await parse_form(request, content)
        return await self._offload_large(content, parse, resolve(content_type, content), content)

    async def _offload_large(
        self, content: bytes, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        if self._bodies.is_large(len(content)):
            return await self._bodies.offload(function, *args, **kwargs)
        return function(*args, **kwargs)

    async def _answer(
        self, info: ModelInfo, headers: Mapping[bytes, bytes], asked: PredictRequest, nbytes: int, arrived: float
    ) -> Response:
        options = request_options(info, headers, nbytes, variant=asked.variant, fallback=asked.fallback)
        answer = await self._service.submit(info.name, asked.payload, remaining(options, monotonic() - arrived))
        value = answer.value.vectors if isinstance(answer.value, Embeddings) else answer.value
        if asked.lone_text and "candidate_labels" in asked.payload.parameters:
            value = value[0]  # where one text is classified by labels of the request, clients expect one list of them
        if isinstance(value, np.ndarray) and self._bodies.is_large(value.nbytes):
            reply = await self._bodies.offload(_dump_rows, value)
        else:
            reply = dump_json(value)
        return Response(reply, media_type=JSON, headers=answer_headers(answer))


def _dump_rows(array: npt.NDArray[Any]) -> bytes:
    # Row by row, so that other threads get their turn in between.
    return dump_json([orjson.Fragment(dump_json(row)) for row in array])
