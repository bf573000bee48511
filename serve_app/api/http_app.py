"""All APIs over HTTP in one ASGI application.

Each API declares its routes (`serve_app.api.routes`); one table dispatches requests: inference to the gateway,
everything else to a Starlette endpoint. All errors are rendered here.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Router
from starlette.types import Message, Receive, Scope, Send

from serve_app.access.guard import Guard
from serve_app.api import hugging_face, openai, overview, predict
from serve_app.api.gateway import Gateway
from serve_app.api.open_inference import administration, generate, infer, rest
from serve_app.api.openapi import pages
from serve_app.api.replies import answer_headers
from serve_app.api.routes import ApiRoutes, Errors, Find, Found, HttpCall, HttpOperation, Reply, Route, RouteTable
from serve_app.domain.options import CACHE_CONTROL, CLIENT, LISTENER, headers_of
from serve_app.domain.service import Administration, Answer, Inference
from serve_app.errors import InvalidRequest, MethodNotAllowed, ServeAppError
from serve_app.http.body import Allocate, BodyReader, BodyTooSlow, ClientGone, allocate
from serve_app.http.compression import asked_coding, compress
from serve_app.http.errors import Headers, Rendered, RouteNotFound, internal_error, render
from serve_app.http.exchange import AWAITED_SINCE, OWN_PORT
from serve_app.http.request_id import RequestIds
from serve_app.http.turns import Turns
from serve_app.telemetry.request_log import RequestLog

_REQUEST_ID: Final = b"x-request-id"
_OWN_LISTENER: Final = b"direct-http"
Api: TypeAlias = Callable[[Gateway], list[Route]]
"""What an API serves."""
MoreRoutes: TypeAlias = Callable[[Gateway, Find], ApiRoutes]
"""What is served beside the APIs; it may look up every route."""
APIS: Final[tuple[Api, ...]] = (
    infer.routes,
    generate.routes,
    rest.routes,
    administration.routes,
    openai.routes,
    predict.routes,
    hugging_face.routes,
    overview.routes,
)
"""Everything that is served, besides its description."""
_ERRORS_BELOW: Final[Mapping[str, Errors]] = {
    openai.ERRORS_BELOW: openai.render_error,
    predict.ERRORS_BELOW: render,
}
_Part: TypeAlias = tuple[Answer, Reply]
_NOT_HTTP: Final = Router()
"""Answers what a server says of its own life, and closes websockets."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Limits and options of the HTTP side.

    Attributes:
        max_body: Most bytes of a body, both as sent and decompressed.
        max_held_bytes: Most bytes of large bodies that one process reads or decodes at once.
        offload_above: Bodies and answers above this size are converted in a thread.
        decode_threads: Most conversions in threads at once.
        pause_timeout_s: Longest arrival of a body, beyond 1 s for each 64 KiB of it.
        in_place_bytes: Most bytes of ``allocate``'s memory held by arriving bodies.
        listener: In the log, the name of the server in front, which calls the application.
        send_request_id: Whether responses to it carry X-Request-Id; off if it adds that itself, as Ray Serve does.
        open_administration: Whether any client may change the server if there are no API keys.
    """

    max_body: int = 32 * 2**20
    max_held_bytes: int = 512 * 2**20
    offload_above: int = 256 * 2**10
    decode_threads: int = 2
    pause_timeout_s: float = 30.0
    in_place_bytes: int = 128 * 2**20
    send_request_id: bool = True
    listener: str = "direct-http"
    open_administration: bool = False


class HttpApp:
    """The ASGI application, for a server in front and for own ports (`OWN_PORT`). Made by `create_app`."""

    def __init__(
        self, gateway: Gateway, settings: HttpSettings, apis: Iterable[Api], more: Iterable[MoreRoutes]
    ) -> None:
        self.bodies = gateway.bodies
        self._gateway = gateway
        self._sends_id = settings.send_request_id
        self._listener = settings.listener.encode()
        self._request_id = RequestIds()
        routes = [route for api in apis for route in api(gateway)]
        errors_below = dict(_ERRORS_BELOW)
        for each in more:
            added = each(gateway, self._find)
            routes += added.routes
            errors_below |= added.errors_below
        self.routes = RouteTable([*routes, *pages.routes(gateway, self.described)], errors_below)

    def described(self) -> list[Route]:
        """Every documented route. HEAD accompanies GET."""
        return [route for route in self.routes if route.described]

    def _find(self, path: str) -> Found:
        return self.routes.find(path)

    def errors_of(self, path: str) -> Errors:
        """The shape of errors at a path, even if no route matches."""
        return self.routes.find(_normal(path))[2]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; other ASGI types are refused."""
        if scope["type"] != "http":
            await _NOT_HTTP(scope, receive, send)
            return
        path, method = scope["path"], scope["method"]
        if not path or path[-1] == "/" or scope.get("root_path"):
            path = _route_path(scope)
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if CACHE_CONTROL in headers:
            headers = headers_of(scope["headers"])
        own_port = OWN_PORT in scope
        headers[LISTENER] = _OWN_LISTENER if own_port else self._listener
        if (client := scope.get("client")) is not None:
            headers[CLIENT] = client[0].encode()
        request_id, sends_id = headers.get(_REQUEST_ID, b""), own_port or self._sends_id
        if request_id or sends_id:
            request_id = headers[_REQUEST_ID] = self._request_id(request_id)
        coding = asked_coding(headers) if b"accept-encoding" in headers else None
        routes, params, errors = self.routes.find(path)
        route = routes.get(method)
        call, answering = None, None
        try:
            if route is not None and route.operation is not None:
                gateway, call = self._gateway, HttpCall(headers, receive, params)
                call.scheduled = own_port
                if AWAITED_SINCE in scope:
                    call.waited_s = monotonic() - scope[AWAITED_SINCE]
                if route.operation.streams:
                    answering = self._answering(send, request_id if sends_id else None)
                    await self._stream(route.operation, call, errors, answering)
                    return
                status, (answered, body) = (
                    200,
                    _rendered(*await gateway.answer(await gateway.read(route.operation, call))),
                )
            else:
                answering = self._answering(send, request_id if sends_id else None, coding, head=method == "HEAD")
                await self._ask(Request({**scope, "path_params": params}, receive), routes, headers, answering)
                return
        except ClientGone:
            return
        except Exception as error:  # the last resort: what is no error of ours is answered as internal, and logged
            if answering is not None and answering.started:
                raise
            self._gateway.refused(error, None if call is None else call.asked_model, headers)
            unexpected = request_id or self._request_id(None), f"{method} {path}"
            status, answered, body = _render_any(error, errors, *unexpected)
        if sends_id:
            answered.append((_REQUEST_ID, request_id))
        if method == "HEAD":
            body = b""
        elif coding is not None:
            body = await compress(body, answered, coding, self.bodies)
        await send({"type": "http.response.start", "status": status, "headers": answered})
        await send({"type": "http.response.body", "body": body})

    def _answering(
        self, send: Send, request_id: bytes | None, coding: bytes | None = None, *, head: bool = False
    ) -> _Answering:
        extra: Headers = [] if request_id is None else [(_REQUEST_ID, request_id)]
        return _Answering(send, extra, self.bodies, coding, head=head)

    async def _stream(self, operation: HttpOperation[Any], call: HttpCall, errors: Errors, send: Send) -> None:
        """Answer an inference request part by part, as parts arrive and the client takes them.

        Raises:
            ServeAppError: Only before the first byte. A later failure is the last event.
        """
        async with aclosing(self._gateway.parts(await self._gateway.read(operation, call))) as parts:
            first = await anext(parts, None)
            headers = (
                generate.HEADERS if first is None else [*generate.HEADERS, *answer_headers(first[0]), *first[1].headers]
            )
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async with aclosing(self._events(first, parts, call, errors)) as events:
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def _events(
        self, first: _Part | None, others: AsyncGenerator[_Part, None], call: HttpCall, errors: Errors
    ) -> AsyncGenerator[bytes, None]:
        """The events of an answer. A failure is the last one, since the status has been sent."""
        try:
            if first is not None:
                yield first[1].body
            async for _, reply in others:
                yield reply.body
        except Exception as error:  # as in `__call__`
            self._gateway.refused(error, call.asked_model, call.headers)
            request_id = call.headers.get(_REQUEST_ID) or self._request_id(None)
            yield generate.event(_render_any(error, errors, request_id, f"a stream of {call.asked_model}").body)

    async def _ask(
        self, request: Request, routes: Mapping[str, Route], headers: Mapping[bytes, bytes], send: Send
    ) -> None:
        """Answer a request that runs no model."""
        route = routes.get("GET" if request.method == "HEAD" else request.method)
        self._gateway.authorize("key" if route is None else route.policy, headers, request.path_params.get("model"))
        if route is None or route.handler is None:
            raise _no_route(routes)
        response = await route.handler(request)
        await response(request.scope, request.receive, send)


class _Answering:
    """Sends one response: adds common headers, and omits the body of HEAD.

    Complete bodies are compressed if ``coding`` is set.
    """

    __slots__ = ("_bodies", "_coding", "_extra", "_head", "_held_back", "_send", "started")

    def __init__(self, send: Send, extra: Headers, bodies: BodyReader, coding: bytes | None, *, head: bool) -> None:
        self._send = send
        self._extra = extra
        self._bodies = bodies
        self._coding = None if head else coding
        self._head = head
        self._held_back: Message | None = None
        self.started = False

    async def __call__(self, message: Message) -> None:
        """Send one ASGI message."""
        if message["type"] == "http.response.start":
            self.started = True
            message["headers"] = [*message.get("headers", ()), *self._extra]
            if self._coding is not None and message["status"] != 206:  # a part of a body that is not compressed
                self._held_back = message  # its headers depend on the body
                return
        elif self._head:
            message["body"] = b""
        if (start := self._held_back) is not None:
            self._held_back = None
            if self._coding is not None and not message.get("more_body", False):
                body = message.get("body", b"")
                message["body"] = await compress(body, start["headers"], self._coding, self._bodies)
            await self._send(start)
        await self._send(message)


def create_app(
    inference: Inference,
    administration: Administration,
    settings: HttpSettings | None = None,
    bodies: BodyReader | None = None,
    allocate: Allocate = allocate,
    guard: Guard | None = None,
    log: RequestLog | None = None,
    apis: Iterable[Api] = APIS,
    more: Iterable[MoreRoutes] = (),
    turns: Turns | None = None,
) -> HttpApp:
    """Make the ASGI application.

    Args:
        administration: What operators see and change.
        settings: Limits; the defaults suit a router replica with 2 GiB.
        bodies: Reads bodies within limits that several applications of one process share; its limits count then.
        allocate: Gives the memory for bodies that are read in place, where ``bodies`` does not come from elsewhere.
        guard: Checks API keys; ``None``: every request is allowed.
        log: Logs requests that are refused before they reach a model.
        apis: Served beside the API description.
        more: Routes of wings.
        turns: Schedules the start of inference requests, but for those of own ports, which do so themselves.
    """
    # The form parser warns about every malformed form. The client gets the error; clients must not fill the log.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    settings = settings or HttpSettings()
    bodies = bodies or BodyReader(
        max_body=settings.max_body,
        max_held_bytes=settings.max_held_bytes,
        offload_above=settings.offload_above,
        decode_threads=settings.decode_threads,
        pause_timeout_s=settings.pause_timeout_s,
        allocate=allocate,
        in_place_bytes=settings.in_place_bytes,
    )
    gateway = Gateway(
        inference, administration, bodies, guard, log, open_administration=settings.open_administration, turns=turns
    )
    return HttpApp(gateway, settings, apis, more)


def _route_path(scope: Scope) -> str:
    """The path below ``root_path``, without trailing slashes."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and path.startswith(root):
        path = path[len(root) :]
    return path if path and not path.endswith("/") else _normal(path)


def _normal(path: str) -> str:
    """The path without trailing slashes; the root is unchanged."""
    return path.rstrip("/") or "/"


def _rendered(answer: Answer, reply: Reply) -> tuple[Headers, bytes]:
    """Headers and body of an inference answer, including how it was served."""
    length = (b"content-length", b"%d" % len(reply.body))
    return [reply.content_type, length, *answer_headers(answer), *reply.headers], reply.body


def _render_any(error: Exception, errors: Errors, request_id: bytes, what: str) -> Rendered:
    if isinstance(error, HTTPException) and error.status_code == 400:
        error = InvalidRequest(str(error.detail))
    if not isinstance(error, ServeAppError):
        return errors(internal_error(error, request_id.decode(), what))
    reply = errors(error)
    if isinstance(error, BodyTooSlow):
        reply.headers.append((b"connection", b"close"))
    elif isinstance(error, _WrongMethod):
        reply.headers.append((b"allow", error.allow.encode()))
    return reply


class _WrongMethod(MethodNotAllowed):
    """The path exists, with other methods."""

    def __init__(self, allow: str) -> None:
        super().__init__(f"this path takes {allow}")
        self.allow = allow


def _no_route(routes: Mapping[str, Route]) -> ServeAppError:
    if routes:
        return _WrongMethod(", ".join([*routes, "HEAD"] if "GET" in routes else routes))
    return RouteNotFound("nothing is served at this path; GET / lists what is")
