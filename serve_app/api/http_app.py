"""All HTTP protocols as one ASGI application.

V2 infer requests, the hot path, are recognised by their path and go straight to `InferEndpoint`, and so are predict
requests, which go to `Predict`; everything else is routed by Starlette. Errors of all are rendered here, in one place.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from serve_app.access.guard import Guard
from serve_app.access.guard import administration as administration_check
from serve_app.access.guarded import GuardedService
from serve_app.api import hugging_face, openai, overview, predict
from serve_app.api.open_inference import administration, rest
from serve_app.api.open_inference.infer import InferEndpoint
from serve_app.api.openapi import pages
from serve_app.api.refusals import Refusals
from serve_app.domain.options import CACHE_CONTROL, CLIENT, LISTENER, headers_of
from serve_app.domain.service import InferenceService
from serve_app.errors import InvalidRequest, MethodNotAllowed, ServeAppError
from serve_app.http.body import Allocate, BodyReader, BodyTooSlow, ClientGone, allocate
from serve_app.http.compression import asked_coding, compress
from serve_app.http.errors import Headers, Rendered, RouteNotFound, internal_error, is_openai, render
from serve_app.http.request_id import RequestIds
from serve_app.telemetry.request_log import RequestLog

INFER_PATHS = ("/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer")
"""What `InferEndpoint` serves, past the router."""
_PREDICT = predict.PATH.split("{model}")
_REQUEST_ID = b"x-request-id"


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Limits and manners of the HTTP side.

    Attributes:
        max_body: Most bytes of one body, as sent and after decompression.
        max_held_bytes: Most bytes of large bodies that one process reads or decodes at once.
        offload_above: Bodies and answers up to this size are converted in the event loop, larger ones in a thread.
        decode_threads: Most conversions in threads at once.
        patience_s: How long a body may take to arrive, beyond 1 s for every 64 KiB of it.
        in_place_bytes: Most bytes of the memory given by ``allocate`` that bodies hold which are still arriving.
        listener: What the log calls the port that requests come by.
        send_request_id: Whether responses carry X-Request-Id; off where the server in front adds it, as Ray Serve does.
        open_administration: Whether anybody may change the server, where there are no API keys.
    """

    max_body: int = 32 * 2**20
    max_held_bytes: int = 512 * 2**20
    offload_above: int = 256 * 2**10
    decode_threads: int = 2
    patience_s: float = 30.0
    in_place_bytes: int = 128 * 2**20
    send_request_id: bool = True
    listener: str = "direct-http"
    open_administration: bool = False


class HttpApp:
    """The ASGI application. Make one with `create_app`.

    Attributes:
        bodies: Reads the bodies of requests, and counts them.
    """

    def __init__(
        self,
        service: InferenceService,
        settings: HttpSettings,
        bodies: BodyReader | None = None,
        allocate: Allocate = allocate,
        guard: Guard | None = None,
        log: RequestLog | None = None,
    ) -> None:
        self._refusals = Refusals(service, guard, log)
        if guard is not None:
            service = GuardedService(service, guard)
        bodies = bodies or BodyReader(
            max_body=settings.max_body,
            max_held_bytes=settings.max_held_bytes,
            offload_above=settings.offload_above,
            decode_threads=settings.decode_threads,
            patience_s=settings.patience_s,
            allocate=allocate,
            in_place_bytes=settings.in_place_bytes,
        )
        self.bodies = bodies
        self._settings = settings
        self._guard = guard
        self._infer = InferEndpoint(service, bodies)
        self._predict = predict.Predict(service, bodies)
        self._router = Router(
            [
                *rest.routes(service),
                *administration.routes(service, bodies, administration_check(guard, settings.open_administration)),
                *openai.routes(service, bodies),
                *predict.routes(self._predict),
                *hugging_face.routes(service, self._predict),
                *overview.routes(service),
                *pages.routes(service, self.served, guard),
            ],
            redirect_slashes=False,
        )
        self._request_id = RequestIds()
        self._listener = settings.listener.encode()

    def served(self) -> list[tuple[str, str]]:
        """Method and path of everything that is served. HEAD goes wherever GET does."""
        routed = [
            (method, route.path)
            for route in self._router.routes
            if isinstance(route, Route) and route.include_in_schema
            for method in sorted((route.methods or set()) - {"HEAD"})
        ]
        return [*(("POST", path) for path in INFER_PATHS), *routed]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection: HTTP here, lifespan and websockets (refused) by the router."""
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        path = _route_path(scope)
        target = _infer_target(path)
        if target is None or scope["method"] != "POST":
            await self._route(scope, receive, send, path, target)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if CACHE_CONTROL in headers:
            headers = headers_of(scope["headers"])
        headers[LISTENER] = self._listener
        if (client := scope.get("client")) is not None:
            headers[CLIENT] = client[0].encode()
        request_id, sends_id = headers.get(_REQUEST_ID, b""), self._settings.send_request_id
        if request_id or sends_id:
            request_id = headers[_REQUEST_ID] = self._request_id(request_id)
        try:
            if self._guard is not None:
                self._guard.admit(headers)
            reply = await self._infer(*target, headers, receive)
        except ClientGone:
            return
        except Exception as error:  # the last resort: what is no error of ours is answered as internal, and logged
            self._refusals.note(error, target[0], headers)
            reply = _render_any(error, request_id or self._request_id(None), f"POST {path}", openai=False)
        if sends_id:
            reply.headers.append((_REQUEST_ID, request_id))
        status, answered, body = reply
        if b"accept-encoding" in headers and (coding := asked_coding(headers)) is not None:
            body = await compress(body, answered, coding, self.bodies)
        await send({"type": "http.response.start", "status": status, "headers": answered})
        await send({"type": "http.response.body", "body": body})

    async def _route(
        self, scope: Scope, receive: Receive, send: Send, path: str, target: tuple[str, str | None] | None
    ) -> None:
        """Serve what is not the hot path."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = self._request_id(headers.get(_REQUEST_ID))
        extra: Headers = [(_REQUEST_ID, request_id)] if self._settings.send_request_id else []
        answering = _Answering(send, extra, self.bodies, asked_coding(headers), head=scope["method"] == "HEAD")
        if target is not None:
            await answering.whole(_wrong_method("POST", openai=False))
            return
        # A route that takes work for models says here which one was asked for, and nothing says more.
        state: dict[str, Any] = dict(scope.get("state", ()))
        own = [(_REQUEST_ID, request_id), (LISTENER, self._listener)]
        if (client := scope.get("client")) is not None:
            own.append((CLIENT, client[0].encode()))
        headers.update(own)
        inner = {
            **scope,
            "app": self._router,
            "path": scope.get("root_path", "") + path,
            "state": state,
            "headers": [*scope["headers"], *own],  # the last of a name counts
        }
        try:
            if self._guard is not None:
                self._guard.enter(path, headers)
            model = _predict_target(path) if scope["method"] == "POST" else None
            if model is None:
                await self._router(inner, receive, answering)
            else:  # finding this route among all others takes longer than refusing a request does
                inner["path_params"] = {"model": model}
                response = await self._predict.named(Request(inner, receive))
                await response(inner, receive, answering)
        except ClientGone:
            return
        except Exception as error:  # as above
            if answering.started:
                raise
            self._refusals.note(error, state.get("asked_model"), headers)
            what = f"{scope['method']} {path}"
            await answering.whole(_render_any(error, request_id, what, openai=is_openai(path)))


class _Answering:
    """Sends one response: adds the headers of every response, and leaves the body of HEAD out.

    Bodies that come whole are compressed where ``coding`` names one.
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

    async def whole(self, reply: Rendered) -> None:
        """Send a whole response."""
        await self({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
        await self({"type": "http.response.body", "body": reply.body})

    async def __call__(self, message: Message) -> None:
        """Pass one ASGI message on."""
        if message["type"] == "http.response.start":
            self.started = True
            message["headers"] = [*message.get("headers", ()), *self._extra]
            if self._coding is not None and message["status"] != 206:  # a part of a body that is not compressed
                self._held_back = message  # what it says depends on the body
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
    service: InferenceService,
    settings: HttpSettings | None = None,
    bodies: BodyReader | None = None,
    allocate: Allocate = allocate,
    guard: Guard | None = None,
    log: RequestLog | None = None,
) -> HttpApp:
    """Make the ASGI application.

    Args:
        service: What it serves.
        settings: Limits; the defaults suit a router replica with 2 GiB.
        bodies: Reads bodies within limits that several applications of one process share; its limits count then.
        allocate: Gives the memory for bodies that are read in place, where ``bodies`` does not come from elsewhere.
        guard: Lets requests in by their API keys; ``None``: everybody is let in.
        log: Is told of requests that are refused before they reach the service.
    """
    # The form parser warns about every malformed form. The client is told; the log must not be a client's to fill.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    return HttpApp(service, settings or HttpSettings(), bodies, allocate, guard, log)


def _route_path(scope: Scope) -> str:
    """The path below ``root_path``, without trailing slashes."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and path.startswith(root):
        path = path[len(root) :]
    if path.endswith("/"):
        path = path.rstrip("/")
    return path or "/"


def _infer_target(path: str) -> tuple[str, str | None] | None:
    """Model and version of an infer path, ``None`` for other paths."""
    if not path.endswith("/infer") or not path.startswith("/v2/models/"):
        return None
    parts = path.split("/")
    if len(parts) == 5:
        return parts[3], None
    if len(parts) == 7 and parts[4] == "versions":
        return parts[3], parts[5]
    return None


def _predict_target(path: str) -> str | None:
    """The model of a predict path, ``None`` for other paths."""
    if not path.startswith(_PREDICT[0]) or not path.endswith(_PREDICT[1]):
        return None
    model = path[len(_PREDICT[0]) : -len(_PREDICT[1])]
    return model if model and "/" not in model else None


def _render_any(error: Exception, request_id: bytes, what: str, *, openai: bool) -> Rendered:
    if isinstance(error, ServeAppError):
        reply = render(error, openai=openai)
        if isinstance(error, BodyTooSlow):
            reply.headers.append((b"connection", b"close"))
        return reply
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return render(RouteNotFound("nothing is served at this path; GET / lists what is"), openai=openai)
        if error.status_code == 405:
            return _wrong_method((error.headers or {}).get("Allow", ""), openai=openai)
        if error.status_code == 400:
            return render(InvalidRequest(str(error.detail)), openai=openai)
    return render(internal_error(error, request_id.decode(), what), openai=openai)


def _wrong_method(allow: str, *, openai: bool) -> Rendered:
    reply = render(MethodNotAllowed(f"this path takes {allow}"), openai=openai)
    reply.headers.append((b"allow", allow.encode()))
    return reply
