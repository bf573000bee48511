"""``POST /v2/models/{model}/infer``: the hot path, kept free of frameworks."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

from starlette.types import Receive

from serve_app.payloads import Tensors
from serve_app.protocols.body import BodyReader
from serve_app.protocols.errors import Rendered
from serve_app.protocols.open_inference.codec import ModelCodec, Parsed, parse
from serve_app.protocols.options import reading_s, remaining, request_options
from serve_app.protocols.service import InferenceService, ModelInfo, RequestOptions


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
        codec = self._codec(self._service.find(model, version))
        body = await self._read(receive, headers, reading_s(codec.info, headers))
        try:
            parsed, options, tensors = await self._decode(codec, body, headers)
        finally:
            self._bodies.release(len(body))
        selection = codec.select(parsed)
        answer = await self._service.submit(model, tensors, remaining(codec.info, options, monotonic() - arrived))
        reply_of = (parsed.request.id, selection, answer.value, answer.variant)
        if self._bodies.is_large(sum(array.nbytes for array in answer.value.values())):
            encoded, header_length = await self._bodies.offload(codec.encode, *reply_of)
        else:
            encoded, header_length = codec.encode(*reply_of)
        reply = [
            (b"content-type", b"application/json" if header_length is None else b"application/octet-stream"),
            (b"content-length", b"%d" % len(encoded)),
            (b"x-priority", answer.priority.label.encode()),
        ]
        if answer.variant:
            reply.append((b"x-variant", answer.variant.encode()))
        if header_length is not None:
            reply.append((b"inference-header-content-length", b"%d" % header_length))
        return Rendered(200, reply, encoded)

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

    async def _decode(
        self, codec: ModelCodec, body: bytes | memoryview, headers: Mapping[bytes, bytes]
    ) -> tuple[Parsed, RequestOptions, Tensors]:
        bodies = self._bodies
        large = bodies.is_large(len(body))
        header_length = headers.get(b"inference-header-content-length")
        parsed = await bodies.offload(parse, body, header_length) if large else parse(body, header_length)
        parameters = parsed.parameters
        options = request_options(
            codec.info,
            headers,
            len(body),
            priority=parameters.priority,
            timeout_us=parameters.timeout,
            variant=parameters.variant,
            fallback=parameters.fallback,
        )
        # The class is known only now, and tensor data is still untouched.
        self._service.precheck(codec.info.name, options.priority, len(body))
        tensors = await bodies.offload(codec.decode, parsed) if large else codec.decode(parsed)
        # Numbers can take more room decoded than written.
        nbytes = max(len(body), sum(array.nbytes for array in tensors.values()))
        return parsed, options._replace(nbytes=nbytes), tensors
