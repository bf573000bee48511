"""``POST /v2/models/{model}/generate`` and ``/generate_stream``: Triton's generate extension.

A request is a flat JSON object. A member with an input's name is that input: a value, or a list, which determines the
shape. A member with the name of an infer parameter is that parameter. Both may be at the top or in ``parameters``; all
else is ignored. An answer, or each part of one, is a flat object, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec
import orjson
from msgspec import Struct

from serve_app.api.gateway import Gateway
from serve_app.api.left_out import NULL
from serve_app.api.open_inference import non_finite
from serve_app.api.open_inference.codec import BINARY_ONLY, ModelCodec
from serve_app.api.open_inference.tensors import dump_data
from serve_app.api.open_inference.wire import RequestParameters, invalid
from serve_app.api.replies import body_parameters
from serve_app.api.routes import HttpCall, HttpOperation, Reply, Route
from serve_app.domain.service import Answer, ModelInfo
from serve_app.errors import InvalidRequest
from serve_app.http.errors import Headers
from serve_app.payloads import TENSORS, Tensors, TensorSpec, nbytes_of

_NESTED: Final = "parameters"
_ID: Final = "id"
_EVENTS: Final = (b"content-type", b"text/event-stream; charset=utf-8")
HEADERS: Final[Headers] = [
    _EVENTS,
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would keep events back
]
"""Of answers that are a stream of events."""
_PARAMETERS: Final = {field.name: field.type for field in msgspec.structs.fields(RequestParameters)}


def routes(_: Gateway) -> list[Route]:
    """The routes."""
    generate, generate_stream = Generate(), GenerateStream()
    return [
        Route("POST", f"{model}/{word}", operation=operation)
        for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
        for word, operation in (("generate", generate), ("generate_stream", generate_stream))
    ]


def event(data: bytes) -> bytes:
    """One server-sent event, for data without line breaks."""
    return b"data: %b\n\n" % data


class GenerateRequest(Struct):
    """A parsed generate request.

    Attributes:
        values: The undecoded inputs; empty after decoding.
        id: To be echoed; possibly empty.
    """

    codec: GenerateCodec
    values: Mapping[str, msgspec.Raw]
    parameters: RequestParameters
    id: str


class GenerateCodec:
    """Decodes one model's generate requests and encodes its answers. Immutable; thread-safe."""

    def __init__(self, info: ModelInfo) -> None:
        self.info = info
        self._tensors = ModelCodec(info)
        self._inputs = [spec.name for spec in (*info.signature.inputs, *info.signature.optional)]
        # Only names that mean something are kept of a body, however many it has. An input goes before a parameter.
        parameters = {name: type_ | None for name, type_ in {_ID: str, **_PARAMETERS}.items()}
        known: dict[str, Any] = parameters | dict.fromkeys(self._inputs, msgspec.Raw)
        known.pop(_NESTED, None)
        inner = _struct(known) | None
        self._names = tuple(known)
        self._json = msgspec.json.Decoder(_struct({**known, _NESTED: inner}))

    def parse(self, body: bytes | memoryview) -> GenerateRequest:
        """Parse a body without its inputs.

        Raises:
            InvalidRequest: The body is no such object, or has duplicates.
            Unsupported: It uses an unsupported extension.
        """
        try:
            top = self._json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise invalid(error) from None
        *given, nested = msgspec.structs.astuple(top)
        found = self._found(given)
        if nested is not msgspec.UNSET and nested is not None:
            more = self._found(msgspec.structs.astuple(nested))
            if twice := found.keys() & more.keys():
                raise InvalidRequest(f"parameters.{min(twice)}: it is given outside of the parameters as well")
            found |= more
        values = {name: found.pop(name) for name in self._inputs if name in found}
        request_id = found.pop(_ID, "")
        parameters = RequestParameters(**found)
        parameters.check()
        return GenerateRequest(self, values, parameters, request_id)

    def _found(self, given: Any) -> dict[str, Any]:
        return {
            name: value
            for name, value in zip(self._names, given, strict=True)
            if value is not msgspec.UNSET and value is not None and value != NULL
        }

    def decode(self, request: GenerateRequest) -> Tensors:
        """Decode and check the inputs. Raises `InvalidRequest`."""
        values, request.values = request.values, {}
        return self._tensors.decode_values(values)

    def encode(self, request: GenerateRequest, answer: Answer) -> bytes:
        """A JSON object: a scalar for an output of one element, a flat list for others.

        Raises:
            InvalidRequest: An output has no JSON form.
        """
        named = {"model_name": self.info.name, "model_version": self.info.version}
        if request.id:
            named[_ID] = request.id
        parts = [orjson.dumps(named)[:-1]]
        told = body_parameters(answer, timed=request.parameters.timings) or {}
        if answer.variant:
            told = {"variant": answer.variant, **told}
        if told:
            parts += (b',"parameters":', orjson.dumps(told))
        tensors = self._tensors.public(answer.value)
        for spec in self.info.signature.outputs:
            array = tensors[spec.name]
            data = dump_data(array, spec.name)
            if request.parameters.non_finite and array.dtype.kind == "f":
                data = non_finite.in_words(data, array)
            parts += (b",", orjson.dumps(spec.name), b":", data[1:-1] if array.size == 1 else data)
        return b"".join((*parts, b"}"))


class Generate(HttpOperation[GenerateRequest]):
    """Generate requests, each answered with one JSON object."""

    names_class = True

    def __init__(self) -> None:
        self._codecs: dict[str, GenerateCodec] = {}

    def check(self, info: ModelInfo, call: HttpCall) -> None:  # noqa: ARG002
        """Refuse models without tensor inputs, or with outputs without a JSON form."""
        if info.task != TENSORS:
            raise InvalidRequest(
                f"model {info.name!r} is a model of {info.task}, which generate does not serve;"
                f" POST /v1/models/{info.segment}/predict does"
            )
        if (binary := _without_json(info.signature.outputs)) is not None:
            raise InvalidRequest(
                f"output {binary.name!r} is {binary.datatype}, which has no JSON representation;"
                f" POST /v2/models/{info.segment}/infer with binary data"
            )

    def parse(self, call: HttpCall, info: ModelInfo | None, body: bytes | memoryview) -> GenerateRequest:  # noqa: ARG002
        """Understand the JSON."""
        assert info is not None  # the path names it
        return self._codec(info).parse(body)

    def hints(self, parsed: GenerateRequest) -> RequestParameters:
        """Its parameters."""
        return parsed.parameters

    def decode(self, info: ModelInfo, parsed: GenerateRequest) -> Tensors:  # noqa: ARG002
        """Decode the inputs."""
        return parsed.codec.decode(parsed)

    def write_cost(self, info: ModelInfo, parsed: GenerateRequest, answer: Answer) -> int:  # noqa: ARG002
        """Converts numbers to text."""
        return nbytes_of(answer.value)

    def write(self, info: ModelInfo, parsed: GenerateRequest, answer: Answer) -> Reply:
        """Encode the outputs."""
        codec = parsed.codec if parsed.codec.info is info else self._codec(info)  # another after a load
        return Reply(codec.encode(parsed, answer))

    def _codec(self, info: ModelInfo) -> GenerateCodec:
        key = info.key or info.name
        codec = self._codecs.get(key)
        if codec is None or codec.info is not info:
            codec = self._codecs[key] = GenerateCodec(info)
        return codec


class GenerateStream(Generate):
    """Generate requests, each answered with a server-sent event for every part of the answer."""

    streams: ClassVar[bool] = True

    def write(self, info: ModelInfo, parsed: GenerateRequest, answer: Answer) -> Reply:
        """One part."""
        return Reply(event(super().write(info, parsed, answer).body), _EVENTS)


def _struct(fields: Mapping[str, Any]) -> type[Struct]:
    """A struct type with these optional members, whose names need not be identifiers."""
    named = {f"field_{index}": name for index, name in enumerate(fields)}
    types = zip(named, fields.values(), strict=True)
    return msgspec.defstruct(
        "GenerateRequest",
        [(field, type_ | msgspec.UnsetType, msgspec.UNSET) for field, type_ in types],
        rename=named,
    )


def _without_json(specs: tuple[TensorSpec, ...]) -> TensorSpec | None:
    return next((spec for spec in specs if spec.datatype in BINARY_ONLY), None)
