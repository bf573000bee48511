"""``POST /v1/models/{model}/predict``: media requests, answered in Hugging Face's format."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from serve_app.api.content_type import WANTED, check_content_type, media_type, resolve
from serve_app.api.gateway import Gateway
from serve_app.api.media import Asked, Body, PredictRequest, parse, parse_form, payload_of
from serve_app.api.parts import Parts, parse_parts, parse_parts_form, tensors_of, write_parts
from serve_app.api.replies import dump_json
from serve_app.api.routes import HttpCall, HttpOperation, Reply, Route
from serve_app.domain.options import Hints
from serve_app.domain.service import Answer, ModelInfo
from serve_app.domain.tasks import kind_of
from serve_app.errors import InvalidRequest
from serve_app.payloads import Embeddings, Payload, nbytes_of

_ROW_BY_ROW: Final = 64 * 1024
"""Bytes of numbers above which others get their turn between rows."""


ERRORS_BELOW: Final = "/v1/models/{model}"
"""Here errors have the usual shape, in the middle of OpenAI's paths."""


def routes(_: Gateway) -> list[Route]:
    """The route."""
    return [Route("POST", "/v1/models/{model}/predict", operation=Predict())]


class MediaRequest:
    """A parsed predict request.

    Attributes:
        task: In its path; possibly empty.
        model: The chosen model; empty if the path names one.
        decoded: The model's input, after decoding.
    """

    __slots__ = ("asked", "decoded", "model", "task")

    def __init__(self, asked: Asked | Parts, task: str = "", model: str = "") -> None:
        self.asked = asked
        self.task = task
        self.model = model
        self.decoded: PredictRequest | None = None


class Predict(HttpOperation[MediaRequest]):
    """Media requests for the path's model."""

    takes_forms = True

    def check(self, info: ModelInfo, call: HttpCall) -> None:
        """Refuse content types that the model does not take."""
        check_content_type(info, kind_of(info.task), media_type(call.headers), final=False)

    def parse(self, call: HttpCall, info: ModelInfo | None, body: bytes | memoryview) -> MediaRequest:
        """Take the body apart."""
        content = _content(info, body)
        if info is not None and info.pipeline is not None:
            return MediaRequest(parse_parts(info, content), call.params.get("task", ""))
        asked = parse(resolve(media_type(call.headers), content), content)
        return MediaRequest(asked, call.params.get("task", ""))

    async def parse_form(self, call: HttpCall, info: ModelInfo | None, body: bytes | memoryview) -> MediaRequest:
        """Take the form apart."""
        if info is not None and info.pipeline is not None:
            return MediaRequest(await parse_parts_form(info, call.headers, _content(info, body)))
        return MediaRequest(await parse_form(call.headers, _content(info, body)), call.params.get("task", ""))

    def hints(self, parsed: MediaRequest) -> Hints:
        """The parameters that are for the server. They name no class and no deadline."""
        if isinstance(parsed.asked, Body | Parts):
            return Hints()
        return Hints(variant=parsed.asked.parameters.variant, fallback=parsed.asked.parameters.fallback)

    def decode(self, info: ModelInfo, parsed: MediaRequest) -> Payload:
        """Make what the model takes."""
        if isinstance(parsed.asked, Parts):
            return tensors_of(info, parsed.asked)
        parsed.decoded = payload_of(info, kind_of(info.task), parsed.asked)
        return parsed.decoded.payload

    def write_cost(self, info: ModelInfo, parsed: MediaRequest, answer: Answer) -> int:  # noqa: ARG002
        """Converts numbers to text."""
        if isinstance(answer.value, dict) and info.pipeline is not None:
            return nbytes_of(answer.value)
        value = answer.value.vectors if isinstance(answer.value, Embeddings) else answer.value
        return value.nbytes if isinstance(value, np.ndarray) else 0

    def write(self, info: ModelInfo, parsed: MediaRequest, answer: Answer) -> Reply:
        """Hugging Face's format of the task; for a pipeline, its outputs by name."""
        if info.pipeline is not None:
            return Reply(write_parts(info, answer.value))
        value = answer.value.vectors if isinstance(answer.value, Embeddings) else answer.value
        assert parsed.decoded is not None
        if parsed.decoded.lone_text and "candidate_labels" in parsed.decoded.payload.parameters:
            value = value[0]  # where one text is classified by labels of the request, clients expect one list of them
        if isinstance(value, np.ndarray) and value.nbytes > _ROW_BY_ROW:
            return Reply(_dump_rows(value))
        return Reply(dump_json(value))


def _content(info: ModelInfo | None, body: bytes | memoryview) -> bytes:
    """The body as bytes. Raises `InvalidRequest` if it is empty."""
    if info is not None and not len(body):
        raise InvalidRequest(f"the body is empty; model {info.name!r} takes {WANTED[kind_of(info.task)]}")
    return body if isinstance(body, bytes) else bytes(body)


def _dump_rows(array: npt.NDArray[Any]) -> bytes:
    # Row by row, so that other threads get their turn in between.
    return dump_json([orjson.Fragment(dump_json(row)) for row in array])
