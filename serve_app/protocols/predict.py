"""``POST /v1/models/{model}/predict``: media as users have them, answers as Hugging Face's clients expect them."""

from __future__ import annotations

from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve_app.errors import InvalidRequest
from serve_app.payloads import Embeddings
from serve_app.protocols.body import BodyReader
from serve_app.protocols.media import (
    JSON,
    MULTIPART,
    WANTED,
    check_content_type,
    decode,
    decode_form,
    kind_of,
    media_type,
)
from serve_app.protocols.options import allowed_s, remaining, request_options
from serve_app.protocols.replies import answer_headers, dump_json
from serve_app.protocols.service import InferenceService


def routes(service: InferenceService, bodies: BodyReader) -> list[Route]:
    """The route of predict requests."""
    return [Route("/v1/models/{model}/predict", _Predict(service, bodies).predict, methods=["POST"])]


class _Predict:
    def __init__(self, service: InferenceService, bodies: BodyReader) -> None:
        self._service = service
        self._bodies = bodies

    async def predict(self, request: Request) -> Response:
        arrived = monotonic()
        request.state.asked_model = request.path_params["model"]
        info = self._service.find(request.path_params["model"])
        headers: dict[bytes, bytes] = dict(request.scope["headers"])
        content_type = media_type(headers)
        kind = kind_of(info.task)
        check_content_type(info, kind, content_type)
        declared = self._bodies.declared_size(headers)
        options = request_options(info, headers, declared or 0)
        if declared is not None:
            self._service.precheck(info.name, options.priority, declared)
        content = await self._bodies.read(request.receive, headers, allowed_s(info, options))
        try:
            if declared is None:
                self._service.precheck(info.name, options.priority, len(content))
            if not content:
                raise InvalidRequest(f"the body is empty; model {info.name!r} takes {WANTED[kind]}")
            if content_type == MULTIPART:
                asked = await decode_form(info, kind, request, content)
            elif self._bodies.is_large(len(content)) and content_type in {JSON, "text/plain"}:
                asked = await self._bodies.offload(decode, info, kind, content_type, content)
            else:
                asked = decode(info, kind, content_type, content)
        finally:
            self._bodies.release(len(content))
        options = request_options(info, headers, len(content), variant=asked.variant, fallback=asked.fallback)
        answer = await self._service.submit(info.name, asked.payload, remaining(info, options, monotonic() - arrived))
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
