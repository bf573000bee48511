"""``POST /v2/models/{model}/infer``: the hot path, kept free of frameworks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from time import monotonic
from typing import Final

from starlette.types import Receive

from serve_app.api.open_inference.classification import classify
from serve_app.api.open_inference.codec import Encoded, ModelCodec, Parsed, Selection, json_size
from serve_app.api.replies import body_parameters, optional_headers, server_timing
from serve_app.domain.options import parse_qos_headers, reading_s, remaining, request_options
from serve_app.domain.service import Answer, InferenceService, ModelInfo
from serve_app.http.body import BodyReader
from serve_app.http.errors import Rendered
from serve_app.payloads import Tensors
from serve_app.scheduling.entry import Priority

_JSON: Final = (b"content-type", b"application/json")
_BINARY: Final = (b"content-type", b"application/octet-stream")
_PRIORITY: Final = {priority: (b"x-priority", priority.label.encode()) for priority in Priority}
_COPYING: Final = 16
"""Copying a byte takes this part, at most, of what converting it takes."""
_SORTING: Final = 8
"""Finding the highest of numbers, and writing them as texts, takes so many times what converting them takes."""


class InferEndpoint:
    """Answers V2 infer requests.

    Args:
        service: Runs them.
        bodies: Reads them.
    """

    def __init__(self, service: InferenceService, bodies: BodyReader) -> None:
        self._service = service
        self._bodies = bodies
        self._codecs: dict[str, ModelCodec] = {}

    async def __call__(
        self, model: str, version: str | None, headers: Mapping[bytes, bytes], receive: Receive
    ) -> Rendered:
        """Read, schedule and answer one request.

        Raises:
            ServeAppError: As `serve_app.errors` says.
            ClientGone: The client went away before its request was complete.
        """
        arrived = monotonic()
        service, bodies = self._service, self._bodies
        codec = self._codec(service.find(model, version))
        info = codec.info
        qos = parse_qos_headers(headers, info.levels)
        body = await self._read(receive, headers, reading_s(info, qos))
        try:
            header_length = headers.get(b"inference-header-content-length")
            large = bodies.is_large(len(body))
            parsing_is_long = large and bodies.is_large(json_size(len(body), header_length))
            if parsing_is_long:
                parsed = await bodies.offload(codec.parse, body, header_length)
            else:
                parsed = codec.parse(body, header_length)
            parameters = parsed.parameters
            options = request_options(
                info,
                headers,
                len(body),
                priority=parameters.priority,
                timeout_us=parameters.timeout,
                variant=parameters.variant,
                fallback=parameters.fallback,
                qos=qos,
            )
            # The class is known only now, and most of the work is still to be done.
            service.precheck(info.name, options.priority, len(body), options.tenant)
            if parsing_is_long or (large and codec.walks):
                tensors = await bodies.offload(codec.decode, parsed)
            else:
                tensors = codec.decode(parsed)
        finally:
            bodies.release(len(body))
        selection = codec.select(parsed)
        # Numbers can take more room decoded than written.
        nbytes = max(len(body), held_bytes(tensors))
        answer = await service.submit(model, tensors, remaining(options, monotonic() - arrived, nbytes))
        encoded, length = await self._encode(codec, parsed, selection, answer)
        reply = [
            _JSON if length is None else _BINARY,
            (b"content-length", b"%d" % len(encoded)),
            _PRIORITY[answer.priority],
            (b"server-timing", server_timing(answer)),
        ]
        if answer.variant or answer.cache or answer.unverified:
            reply += [(name.encode(), value.encode()) for name, value in optional_headers(answer)]
        if length is not None:
            reply.append((b"inference-header-content-length", b"%d" % length))
        return Rendered(200, reply, encoded)

    async def _encode(self, codec: ModelCodec, parsed: Parsed, selection: Selection, answer: Answer) -> Encoded:
        value, bodies = answer.value, self._bodies
        if parsed.request.outputs and (counts := codec.classifications(parsed.request.outputs)):
            value = await classified(value, counts, codec.info, bodies)
        request_id, timed, told = parsed.request.id, parsed.parameters.timings, None
        if timed or answer.unverified:
            told = body_parameters(answer, timed=timed)
        if bodies.is_large(encoding_bytes(selection, value)):
            return await bodies.offload(codec.encode, request_id, selection, value, answer.variant, told)
        return codec.encode(request_id, selection, value, answer.variant, told)

    async def _read(self, receive: Receive, headers: Mapping[bytes, bytes], limit_s: float) -> bytes | memoryview:
        json_size = headers.get(b"inference-header-content-length")
        if json_size is None:
            return await self._bodies.read(receive, headers, limit_s)
        # Binary tensors become views of the body; what is no number here is refused when the body is parsed.
        aligned_at = int(json_size) if json_size.isdigit() and len(json_size) < 10 else 0
        return await self._bodies.read_in_place(receive, headers, limit_s, aligned_at)

    def _codec(self, info: ModelInfo) -> ModelCodec:
        codec = self._codecs.get(info.name)
        if codec is None or codec.info is not info:
            codec = self._codecs[info.name] = ModelCodec(info)
        return codec


async def classified(tensors: Tensors, counts: Mapping[str, int], info: ModelInfo, bodies: BodyReader) -> Tensors:
    """As `classify`: outputs that are large in a thread."""
    labels = {name: info.labels_of(name) for name in counts}
    if bodies.is_large(_SORTING * held_bytes({name: tensors[name] for name in counts})):
        return await bodies.offload(partial(classify, rows=info.rows), tensors, counts, labels)
    return classify(tensors, counts, labels, rows=info.rows)


def held_bytes(tensors: Tensors) -> int:
    """Bytes that tensors take in memory."""
    nbytes = 0
    for array in tensors.values():
        nbytes += array.nbytes
    return nbytes


def encoding_bytes(selection: Selection, tensors: Tensors) -> int:
    """How much an answer takes to encode, in bytes of numbers that are written as JSON."""
    nbytes = 0
    for name, binary in selection:
        array = tensors[name]
        nbytes += array.nbytes // _COPYING if binary and array.dtype != object else array.nbytes
    return nbytes
