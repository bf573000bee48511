"""All gRPC services in one: the V2 service, gRPC's health service, and reflection.

Calls take and return serialized messages, so that the same methods serve the router's own port and Ray Serve's, which
passes requests through other processes. All errors are made presentable here.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from serve_app.access.guard import Guard, Policy
from serve_app.api.gateway import Gateway
from serve_app.api.grpc.call import Context, GrpcCall, OwnContext, parse
from serve_app.api.grpc.health import Health
from serve_app.api.grpc.inbound_messages import InboundMessages
from serve_app.api.open_inference import inference_pb2, model_config_pb2
from serve_app.api.open_inference.rpc import InferenceRpc, Stream, Unary
from serve_app.domain.service import Administration, Inference
from serve_app.errors import QueueFull, ServeAppError
from serve_app.http.body import SLOWEST, BodyReader
from serve_app.http.errors import internal_error
from serve_app.http.request_id import RequestIds
from serve_app.http.turns import Turns
from serve_app.telemetry.request_log import RequestLog

_FILES: Final = (
    model_config_pb2.DESCRIPTOR,
    inference_pb2.DESCRIPTOR,
    health_pb2.DESCRIPTOR,
    reflection_pb2.DESCRIPTOR,
)
SERVICES: Final[tuple[Any, ...]] = tuple(service for file in _FILES for service in file.services_by_name.values())
"""Descriptors of everything that is served."""

INFER: Final = "ModelInfer"
"""The call that is an inference request. The gateway lets it in; every other call has a policy."""

_POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        "ServerLive": "health",
        "ServerReady": "health",
        "Check": "health",
        "List": "health",
        "Watch": "health",
        "ServerReflectionInfo": "docs",
        "ModelStreamInfer": "stream",
    }
)
"""The policy of each call; that of all others is ``key``."""

STALL_S: Final = 30.0
_STALLING_BYTES: Final = 64 * 1024
"""Single answers up to this size leave for the connection at once, whether or not they are read."""


ANONYMOUS_STREAMS: Final[Mapping[str, int]] = MappingProxyType({"Watch": 256, "ServerReflectionInfo": 16})
"""Most streams of each open call that those without a key have open at once, where others have keys."""


class Rpc(NamedTuple):
    """One call that is served.

    Attributes:
        service: Full name of its service.
        name: Unique among all services.
        streams: Whether it answers with a stream.
        takes_stream: Whether it takes a stream. Such a call always answers with one.
    """

    service: str
    name: str
    streams: bool
    takes_stream: bool


RPCS: Final[tuple[Rpc, ...]] = tuple(
    Rpc(service.full_name, method.name, method.server_streaming, method.client_streaming)
    for service in SERVICES
    for method in service.methods
)


class GrpcApp:
    """Answers every call. Must be made in the event loop that uses it.

    Args:
        administration: What operators see and change.
        bodies: Limits large messages together with bodies of other protocols.
        guard: Checks API keys; ``None``: every call is allowed.
        log: Logs requests that are refused before they reach a model.
        open_administration: Whether any client may change the server if there are no API keys.
        typed_answers: Whether requests with typed tensors are answered with such, where they do not choose; else raw.
        streams: Most streams open at once; they may last for ever, and other calls need room, too. Those of
            anonymous callers are not among them, but have limits of their own (`ANONYMOUS_STREAMS`).
        stream_idle_s: A stream of requests on which none comes for this long is taken to have ended, seconds: what is
            in flight is answered.
        reflection_idle_s: The same for streams of reflection, which are open to all.
        stranger_watch_s: How long health may be watched without a key, where others have keys, seconds.
        turns: Schedules the start of inference requests; ``None``: at once.
    """

    def __init__(
        self,
        inference: Inference,
        administration: Administration,
        bodies: BodyReader,
        guard: Guard | None = None,
        log: RequestLog | None = None,
        *,
        open_administration: bool = False,
        typed_answers: bool = False,
        streams: int = 1024,
        stream_idle_s: float = 3600.0,
        reflection_idle_s: float = 10.0,
        stranger_watch_s: float = 300.0,
        turns: Turns | None = None,
    ) -> None:
        self._gateway = gateway = Gateway(
            inference, administration, bodies, guard, log, open_administration=open_administration, turns=turns
        )
        self._most_streams = streams
        self._idle_s = {"ModelStreamInfer": stream_idle_s, "ServerReflectionInfo": reflection_idle_s}
        self._unlimited = InboundMessages(sys.maxsize, math.inf)
        self._open: Counter[str] = Counter()  # streams: anonymous ones by their call, the others by no name
        self._ids = RequestIds()
        self._inference = InferenceRpc(gateway, self._explain, typed_answers=typed_answers)
        self._health = Health(
            gateway.inference,
            gateway.administration,
            tuple(each.full_name for each in inference_pb2.DESCRIPTOR.services_by_name.values()),
            lambda: stranger_watch_s if gateway.is_anonymous() else math.inf,
        )
        self._unary: Mapping[str, Unary] = MappingProxyType({**self._inference.unary, **self._health.unary})
        self._streams: Mapping[str, Stream] = MappingProxyType(
            {**self._inference.streams, "Watch": _of_one(self._health.watch), "ServerReflectionInfo": _reflect}
        )

    async def unary(self, name: str, body: bytes, context: Context) -> bytes:
        """Answer a call with one message each way.

        Args:
            name: As in `RPCS`.
            context: Receives the status.

        Returns:
            The serialized answer; empty if the call failed.
        """
        call = GrpcCall(context, body)
        self._request_id(call)
        try:
            if name == INFER:
                return await self._inference.infer(call)
            self._gateway.authorize(_POLICIES.get(name, "key"), call.headers)
            return await self._unary[name](body, call)
        except Exception as error:  # the last resort: what is no error of ours is answered as internal, and logged
            self._fail(error, call, name)
            return b""

    async def stream(
        self,
        name: str,
        request: bytes | AsyncIterator[bytes],
        context: Context,
        arrivals: InboundMessages | None = None,
    ) -> AsyncIterator[bytes]:
        """Answer a call with a stream.

        Args:
            request: One message, or a stream of requests.
            arrivals: Bounds arriving messages. ``None``: they arrive complete.
        """
        if isinstance(request, bytes):
            incoming = _only(request)
        else:
            bound = self._unlimited if arrivals is None else arrivals
            incoming = bound.messages(request, self._idle_s[name])
        call = GrpcCall(context)
        self._request_id(call)
        whose: str | None = None
        try:
            self._gateway.authorize(_POLICIES.get(name, "key"), call.headers)
            whose = self._take_place(name)
            async with contextlib.aclosing(self._streams[name](incoming, call)) as answers:  # type: ignore[type-var]
                async for answer in answers:
                    yield answer
        except Exception as error:  # as above
            self._fail(error, call, name)
        finally:
            if whose is not None:
                self._open[whose] -= 1

    def _take_place(self, name: str) -> str:
        """Count a stream, and return its owner among the `_open` ones. Raises `QueueFull`."""
        whose, most = (name, ANONYMOUS_STREAMS[name]) if self._gateway.is_anonymous() else ("", self._most_streams)
        if self._open[whose] >= most:
            raise QueueFull("too many open streams; close some, or retry later", 1.0)
        self._open[whose] += 1
        return whose

    def refuse(self, name: str, error: ServeAppError, context: Context) -> None:
        """End a call whose message did not arrive; arguments as in `unary`."""
        self._fail(error, GrpcCall(context), name)

    def changed(self) -> None:
        """Notify watchers of a model's possible change of readiness."""
        self._health.changed()

    def close(self) -> None:
        """End streams. Calls in progress continue, and new ones are still answered."""
        self._inference.close()
        self._health.close()

    def _fail(self, error: Exception, call: GrpcCall, name: str) -> None:
        call.fail(self._explain(error, call, name))

    def _explain(self, error: Exception, call: GrpcCall, name: str) -> ServeAppError:
        """Record a refusal before the scheduler, and make the client's error."""
        self._gateway.refused(error, call.asked_model, call.headers)
        if isinstance(error, ServeAppError):
            return error
        return internal_error(error, call.request_id, name)

    def _request_id(self, call: GrpcCall) -> None:
        call.headers[b"x-request-id"] = self._ids(call.headers.get(b"x-request-id"))


class Server(Protocol):
    """The common part of `grpc.aio.Server` and Ray Serve's server."""

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Any) -> None:
        """Serve the handlers' calls."""


def add_to_server(
    app: GrpcApp, server: Server, stall_s: float = STALL_S, arrivals: InboundMessages | None = None
) -> None:
    """Register every call with a server.

    Args:
        stall_s: How long a client may read nothing of an answer, seconds, beyond 1 s for each 64 KiB of it. Then its
            call is cut: many calls have no deadline, and their unread answers would be held for ever.
        arrivals: Bounds the arrival of messages, and can hold answers back.

    Ray Serve also calls this as one of its ``grpc_servicer_functions``, without ``app``, since its server replaces
    every method by its own way to the router. It looks only at the first handler of each call.
    """
    for service in SERVICES:
        methods = {rpc.name: _handler(app, rpc, stall_s, arrivals) for rpc in RPCS if rpc.service == service.full_name}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, methods),))


def _handler(app: GrpcApp, rpc: Rpc, stall_s: float, arrivals: InboundMessages | None) -> Any:
    """Messages stay serialized, so that their parser can report what is wrong."""
    name = rpc.name
    if not rpc.streams:

        async def unary(body: bytes, context: Context) -> bytes:
            answer = await app.unary(name, body, context)
            if len(answer) > _STALLING_BYTES:
                _cut_later(stall_s, answer)  # without effect once the answer is sent
            return answer

        if arrivals is None:
            return grpc.unary_unary_rpc_method_handler(unary)

        async def arrived(requests: AsyncIterator[bytes], context: OwnContext) -> bytes:
            # To gRPC it takes a stream: on the wire both are the same.
            body = await _message(app, name, arrivals, requests, context)
            answer = b"" if body is None else await unary(body, context)
            if arrivals.held:
                await arrivals.released(context.time_remaining())
            return answer

        return grpc.stream_unary_rpc_method_handler(arrived)

    async def stream(request: bytes | AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        async with contextlib.aclosing(app.stream(name, request, context, arrivals)) as answers:  # type: ignore[type-var]
            async for answer in answers:
                cut = _cut_later(stall_s, answer)
                try:
                    yield answer
                finally:
                    cut.cancel()

    if rpc.takes_stream:
        return grpc.stream_stream_rpc_method_handler(stream)
    if arrivals is None:
        return grpc.unary_stream_rpc_method_handler(stream)

    async def arrived_first(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        body = await _message(app, name, arrivals, requests, context)
        if body is not None:
            async with contextlib.aclosing(stream(body, context)) as answers:  # type: ignore[type-var]
                async for answer in answers:
                    yield answer

    return grpc.stream_stream_rpc_method_handler(arrived_first)


async def _message(
    app: GrpcApp, name: str, arrivals: InboundMessages, requests: AsyncIterator[bytes], context: Context
) -> bytes | None:
    """The message of a call; ``None`` if it did not arrive and the call is over."""
    try:
        return await arrivals.message(requests)
    except ServeAppError as error:
        app.refuse(name, error, context)
        return None


def _cut_later(stall_s: float, answer: bytes) -> asyncio.TimerHandle:
    """Cancel this task's call unless its client has taken an answer by then; without effect after its end."""
    task = asyncio.current_task()
    assert task is not None
    return asyncio.get_running_loop().call_later(stall_s + len(answer) / SLOWEST, task.cancel)


async def _only(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _of_one(answer: Callable[[bytes, GrpcCall], AsyncIterator[bytes]]) -> Stream:
    """A stream in answer to one message."""

    async def streamed(incoming: AsyncIterator[bytes], call: GrpcCall) -> AsyncIterator[bytes]:
        async for body in incoming:
            async for each in answer(body, call):
                yield each

    return streamed


def _reflection_pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in _FILES:
        pool.AddSerializedFile(file.serialized_pb)
    return pool


_REFLECTION: Final[Any] = reflection.aio.ReflectionServicer(
    [service.full_name for service in SERVICES], pool=_reflection_pool()
)


async def _reflect(incoming: AsyncIterator[bytes], _: GrpcCall) -> AsyncIterator[bytes]:
    async def requests() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        async for body in incoming:
            yield parse(reflection_pb2.ServerReflectionRequest, body)

    async for answer in _REFLECTION.ServerReflectionInfo(requests(), None):
        yield answer.SerializeToString()
