"""``POST /v2/models/{model}/infer``: reads V2 infer requests, and writes their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from serve_app.api.gateway import Gateway
from serve_app.api.open_inference.classification import classify
from serve_app.api.open_inference.codec import ModelCodec, Parsed, Selection, json_size
from serve_app.api.open_inference.wire import RequestParameters
from serve_app.api.replies import body_parameters
from serve_app.api.routes import HttpCall, HttpOperation, Reply, Route
from serve_app.domain.service import Answer, ModelInfo
from serve_app.payloads import Tensors, array_nbytes

_BINARY: Final = (b"content-type", b"application/octet-stream")
_HEADER_LENGTH: Final = b"inference-header-content-length"
_COPYING: Final = 16
"""Copying a byte takes this part, at most, of what converting it takes."""
_SORTING: Final = 8
"""Finding the highest of numbers, and writing them as texts, takes so many times what converting them takes."""


def routes(_: Gateway) -> list[Route]:
    """The routes."""
    infer = Infer()
    return [
        Route("POST", "/v2/models/{model}/infer", operation=infer),
        Route("POST", "/v2/models/{model}/versions/{version}/infer", operation=infer),
    ]


class ParsedInferRequest(Struct):
    """A parsed V2 request.

    Attributes:
        selection: The requested outputs; set after decoding.
    """

    codec: ModelCodec
    parsed: Parsed
    selection: Selection = []


class Infer(HttpOperation[ParsedInferRequest]):
    """V2 infer requests over HTTP: JSON, with binary tensors after it, or one raw tensor."""

    names_class = True

    def __init__(self) -> None:
        self._codecs: dict[str, ModelCodec] = {}

    def aligned_at(self, headers: Mapping[bytes, bytes]) -> int | None:
        """Binary tensors become views of the body; an invalid length is refused at parsing."""
        size = headers.get(_HEADER_LENGTH)
        if size is None:
            return None
        return int(size) if size.isdigit() and len(size) < 10 else 0

    def parse_cost(self, call: HttpCall, nbytes: int) -> int:
        """Walks only the JSON."""
        return json_size(nbytes, call.headers.get(_HEADER_LENGTH))

    def parse(self, call: HttpCall, info: ModelInfo | None, body: bytes | memoryview) -> ParsedInferRequest:
        """Understand the JSON."""
        assert info is not None  # the path names it
        key = info.key or info.name
        codec = self._codecs.get(key)
        if codec is None or codec.info is not info:
            codec = self._codecs[key] = ModelCodec(info)
        return ParsedInferRequest(codec, codec.parse(body, call.headers.get(_HEADER_LENGTH)))

    def hints(self, parsed: ParsedInferRequest) -> RequestParameters:
        """Its parameters."""
        return parsed.parsed.parameters

    def decode_cost(self, info: ModelInfo, parsed: ParsedInferRequest, nbytes: int) -> int:  # noqa: ARG002
        """Walks only binary tensors whose values can be invalid."""
        return nbytes if parsed.codec.walks else parsed.parsed.offset

    def decode(self, info: ModelInfo, parsed: ParsedInferRequest) -> Tensors:  # noqa: ARG002
        """Decode the inputs, and choose the outputs."""
        tensors = parsed.codec.decode(parsed.parsed)
        parsed.selection = parsed.codec.select(parsed.parsed)
        return tensors

    def write_cost(self, info: ModelInfo, parsed: ParsedInferRequest, answer: Answer) -> int:  # noqa: ARG002
        """Classification is slower than converting numbers, which is slower than copying."""
        outputs = parsed.parsed.request.outputs
        counts = parsed.codec.classifications(outputs) if outputs else {}
        return encoding_bytes(parsed.selection, answer.value, counts)

    def write(self, info: ModelInfo, parsed: ParsedInferRequest, answer: Answer) -> Reply:
        """Encode the outputs."""
        value, request = answer.value, parsed.parsed.request
        if request.outputs and (counts := parsed.codec.classifications(request.outputs)):
            value = classified(value, counts, info)
        told = None
        if (timed := parsed.parsed.parameters.timings) or answer.unverified:
            told = body_parameters(answer, timed=timed)
        codec = parsed.codec if parsed.codec.info is info else ModelCodec(info)  # another after a load
        words = parsed.parsed.marked or parsed.parsed.parameters.non_finite
        encoded = codec.encode(request.id, parsed.selection, value, answer.variant, told, words)
        if encoded.header_length is None:
            return Reply(encoded.body)
        return Reply(encoded.body, _BINARY, [(_HEADER_LENGTH, b"%d" % encoded.header_length)])


def classified(tensors: Tensors, counts: Mapping[str, int], info: ModelInfo) -> Tensors:
    """`classify` with the model's labels."""
    return classify(tensors, counts, {name: info.labels_of(name) for name in counts}, rows=info.rows)


def encoding_bytes(selection: Selection, tensors: Tensors, counts: Mapping[str, int]) -> int:
    """The cost of encoding an answer, in bytes of numbers written as JSON.

    Args:
        counts: Requested classes by output.
    """
    nbytes = 0
    for name, binary in selection:
        array = tensors[name]
        if counts and name in counts:
            nbytes += _SORTING * array.nbytes
        elif array.dtype.hasobject:
            nbytes += array_nbytes(array)
        else:
            nbytes += array.nbytes // _COPYING if binary else array.nbytes
    return nbytes
