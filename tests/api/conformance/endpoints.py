"""Every endpoint at which a model can be called: each inference route over HTTP, and the calls of gRPC.

A route that the application serves is an endpoint by itself. It needs a `Sample`, without which its tests fail.
"""

from __future__ import annotations

import asyncio
import gzip
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import grpc
import orjson

from api.conftest import LIMITS
from api.protocol_service import NumpyService, both
from api.rpc.conftest import request_of
from serve_app.access.guard import Guard
from serve_app.api.grpc_app import GrpcApp
from serve_app.api.http_app import HttpSettings, create_app
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.api.routes import Route
from serve_app.http.body import BodyReader
from serve_app.telemetry.request_log import RequestLog

CLIENT = "10.1.2.3"
MAX_BODY = LIMITS.max_body


class Sample(NamedTuple):
    """Bodies for one route.

    Attributes:
        model: The model that the good one asks for.
        good: Is answered.
        undecodable: Is understood, and its data is not.
        unknown: Asks for a model that there is not; ``None`` where the path names the model.
        refusal: What that is counted as: the model, and the code of the error.
        params: What stands in the path for names in braces besides ``model``.
    """

    model: str
    good: bytes
    undecodable: bytes
    unknown: bytes | None = None
    refusal: tuple[str, str] = ("nobody", "model_not_found")
    params: Mapping[str, str] = {}


def _json(content: object) -> bytes:
    return orjson.dumps(content)


def _tensor(name: str) -> bytes:
    return _json({"inputs": [{"name": name, "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]})


_V2 = Sample("double", _tensor("x"), _tensor("nothing"), params={"version": "1"})
_TEXT = Sample("sentences", _json({"inputs": "a text"}), _json({"inputs": 5}), params={"task": "feature-extraction"})
_FLAT = Sample("double", _json({"x": [[1, 2, 3, 4]]}), _json({"nothing": [[1, 2, 3, 4]]}), params={"version": "1"})
_EMBED = {"normalize": True}
SAMPLES: Mapping[str, Sample] = {
    "/v2/models/{model}/infer": _V2,
    "/v2/models/{model}/versions/{version}/infer": _V2,
    "/v2/models/{model}/generate": _FLAT,
    "/v2/models/{model}/versions/{version}/generate": _FLAT,
    "/v2/models/{model}/generate_stream": _FLAT,
    "/v2/models/{model}/versions/{version}/generate_stream": _FLAT,
    "/v1/models/{model}/predict": _TEXT,
    "/models/{model}": _TEXT,
    "/models/{model}/pipeline/{task}": _TEXT,
    "/": Sample(
        "sentences",
        _json({"inputs": "a text", "parameters": _EMBED}),
        _json({"inputs": 5, "parameters": _EMBED}),
        _json({"inputs": "a text"}),  # which several models take
        ("", "invalid_request"),
    ),
    "/v1/embeddings": Sample(
        "sentences",
        _json({"model": "sentences", "input": "a text"}),
        _json({"model": "sentences", "input": 5}),
        _json({"model": "nobody", "input": "a text"}),
    ),
}


class Outcome(NamedTuple):
    """How a request ended.

    Attributes:
        code: ``ok``, or the code of its error.
        headers: Of the response, or the trailing metadata.
        body: All of it.
        status: Of HTTP, or gRPC's name of it.
    """

    code: str
    headers: Mapping[str, str]
    body: bytes
    status: int | str


class Endpoint(ABC):
    """An endpoint at which a model can be called.

    Attributes:
        name: For the test's name.
    """

    name: str

    @property
    @abstractmethod
    def sample(self) -> Sample:
        """Its bodies."""

    @abstractmethod
    def asking(self, host: Host, body: bytes, headers: Mapping[str, str], model: str) -> Awaitable[Outcome]:
        """Ask."""


class Host:
    """Both applications over one service.

    Args:
        service: What it serves.
        guard: Its keys.
        log: Its log.
        offload_above: Bytes above which bodies count, and are decoded in threads.
    """

    def __init__(
        self,
        service: NumpyService,
        guard: Guard | None = None,
        log: RequestLog | None = None,
        offload_above: int = LIMITS.offload_above,
    ) -> None:
        self.service = service
        self.bodies = BodyReader(
            max_body=MAX_BODY, max_held_bytes=LIMITS.max_held_bytes, offload_above=offload_above, decode_threads=2
        )
        self.http = create_app(*both(service), HttpSettings(), self.bodies, guard=guard, log=log)
        self.rpc = GrpcApp(*both(service), self.bodies, guard, log)


class Arriving:
    """The body of a request as an ASGI server gives it, told when it is asked for.

    Args:
        pieces: Of the body.
        last: Awaited before the last piece is there.
    """

    def __init__(self, *pieces: bytes, last: Callable[[], Awaitable[object]] | None = None) -> None:
        self._pieces = list(pieces)
        self._last = last
        self.asked = False

    async def __call__(self) -> dict[str, Any]:
        self.asked = True
        piece = self._pieces.pop(0)
        if not self._pieces and self._last is not None:
            await self._last()
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}


class HttpEndpoint(Endpoint):
    """A route."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.name = f"{route.method} {route.path}"

    @property
    def sample(self) -> Sample:
        """Raises AssertionError where there is none."""
        assert self.route.path in SAMPLES, f"{self.name} runs models: it needs a sample in {__file__}"
        return SAMPLES[self.route.path]

    def path(self, model: str = "") -> str:
        """Its path for a model."""
        return self.route.path.format_map({"model": model or self.sample.model, **self.sample.params})

    async def asking(self, host: Host, body: bytes, headers: Mapping[str, str], model: str = "") -> Outcome:
        """Ask with a whole body."""
        return await self.receiving(host, Arriving(body), {"content-length": str(len(body)), **headers}, model)

    async def receiving(
        self, host: Host, receive: Arriving, headers: Mapping[str, str], model: str = "", method: str = "POST"
    ) -> Outcome:
        """Ask with a body that arrives."""
        fields = {"content-type": "application/json", **headers}
        scope = {
            "type": "http",
            "method": method,
            "path": self.path(model),
            "root_path": "",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
            "client": (CLIENT, 40000),
            "server": ("server", 80),
            "scheme": "http",
        }
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await host.http(scope, receive, send)
        told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        content = b"".join(message.get("body", b"") for message in sent[1:])
        if told.get("content-encoding") == "gzip":
            content = gzip.decompress(content)
        status = sent[0]["status"]
        return Outcome("ok" if status == 200 else _code(content), told, content, status)


def _code(content: bytes) -> str:
    """The code of an error in any of the shapes."""
    answer = orjson.loads(content)
    code: str = answer["error"]["code"] if isinstance(answer["error"], dict) else answer["code"]
    return code


class _Context:
    """Whoever carries a call; told how it ended."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self.code: grpc.StatusCode | None = None
        self.told: dict[str, str] = {}

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return list(self.headers.items())

    def peer(self) -> str:
        return f"ipv4:{CLIENT}:40000"

    def time_remaining(self) -> None:
        return None

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.told["details"] = details

    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, str]]) -> None:
        self.told |= dict(trailing_metadata)


def _message(model: str = "double", name: str = "x", **fields: Any) -> bytes:
    request = request_of(model, **fields)
    request.inputs[0].name = name
    body: bytes = request.SerializeToString()
    return body


class RpcEndpoint(Endpoint):
    """``ModelInfer``."""

    name = "ModelInfer"

    @property
    def sample(self) -> Sample:
        """Messages."""
        return Sample("double", _message(), _message(name="nothing"), _message("nobody"))

    async def asking(self, host: Host, body: bytes, headers: Mapping[str, str], model: str = "") -> Outcome:
        """Call."""
        context = _Context(headers)
        answer = await host.rpc.unary("ModelInfer", body, context)
        code = "ok" if context.code is None else context.told["code"]
        body = answer or context.told.get("details", "").encode()
        return Outcome(code, context.told, body, "OK" if context.code is None else context.code.name)


class StreamEndpoint(RpcEndpoint):
    """One request of ``ModelStreamInfer``."""

    name = "ModelStreamInfer"

    async def asking(self, host: Host, body: bytes, headers: Mapping[str, str], model: str = "") -> Outcome:
        """Open a stream, and send one request in it."""
        context = _Context(headers)

        async def requests() -> AsyncIterator[bytes]:
            yield body

        answers = [each async for each in host.rpc.stream("ModelStreamInfer", requests(), context)]
        if context.code is not None:
            return Outcome(context.told["code"], context.told, context.told["details"].encode(), context.code.name)
        (content,) = answers
        answer = pb.ModelStreamInferResponse.FromString(content)
        code = answer.infer_response.parameters["code"].string_param or "ok"
        return Outcome(code, {}, answer.error_message.encode() or content, "OK")


def _routes() -> list[Route]:
    return [route for route in create_app(*both(NumpyService())).routes if route.operation is not None]


HTTP_ENDPOINTS = [HttpEndpoint(route) for route in _routes()]
ENDPOINTS: list[Endpoint] = [*HTTP_ENDPOINTS, RpcEndpoint(), StreamEndpoint()]


async def ask(
    endpoint: Endpoint,
    host: Host,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    model: str = "",
) -> Outcome:
    """Ask with the good body, unless told another."""
    async with asyncio.timeout(20.0):
        return await endpoint.asking(host, endpoint.sample.good if body is None else body, headers or {}, model)


async def ask_unknown(endpoint: Endpoint, host: Host, headers: Mapping[str, str] | None = None) -> Outcome:
    """Ask for a model that there is not."""
    return await ask(endpoint, host, endpoint.sample.unknown, headers, "nobody")
