"""Runs items of jobs as requests, by the operation of the route that an item's URL names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final
from urllib.parse import unquote

from serve_app.api.content_type import is_form
from serve_app.api.gateway import Gateway
from serve_app.api.replies import answer_headers
from serve_app.api.routes import Found, HttpCall, HttpOperation
from serve_app.domain.options import BACKGROUND, CLIENT, KEPT_HEADERS, LISTENER, MAX_TIMEOUT_S
from serve_app.errors import DeadlineExceeded, InvalidRequest
from serve_app.http.body import BodyReader
from serve_app.jobs.records import Lease
from serve_app.jobs.runner import ItemReply

LISTENER_NAME: Final = b"jobs"
"""What the log calls where the requests of items come from."""
CLIENT_NAME: Final = b"jobs"
"""Whom they count for in a class where there are no API keys."""
KEPT: Final = KEPT_HEADERS | {"content-type", "inference-header-content-length"}
"""Headers of a request that are kept with it: those that say how it is read and treated."""

_NOT_KEPT: Final = frozenset({b"x-priority", b"server-timing"})
"""Headers of an answer that tell of the run alone."""

_MOST_URL: Final = 1024
"""The longest name of a model fits, percent-encoded. Every item keeps its URL."""


class ItemRoutes:
    """Finds the route of an item, and runs it.

    Args:
        find: Finds routes by path.
        ask_for_replicas: Whether items count as demand that replicas follow.
    """

    def __init__(
        self, gateway: Gateway, find: Callable[[str], Found], now: Callable[[], float], ask_for_replicas: bool = False
    ) -> None:
        self._gateway = gateway
        self._ask_for_replicas = ask_for_replicas
        self._find = find
        self._now = now

    def model_of(self, url: str) -> str:
        """The decoded name of the model in a URL; empty if the body names it.

        Raises:
            InvalidRequest: The URL runs no model.
            ModelNotFound: The model is unknown, or hidden from the API key.
        """
        _, params = self._operation(url)
        if (model := params.get("model")) is None:
            return ""
        return self._gateway.inference.find(model, params.get("version")).name

    def model_in(self, url: str, headers: Mapping[str, str], body: bytes) -> str:
        """The model that a body names, if its URL names none; empty if only running it tells.

        Raises:
            ServeAppError: The body is malformed, or the model is unknown.
        """
        operation, params = self._operation(url)
        given = {name.encode(): value.encode() for name, value in headers.items()}
        if "model" in params or (operation.takes_forms and is_form(given)):
            return ""
        parsed = operation.parse(_StoredCall(given, body, params), None, body)
        return self._gateway.inference.find(*operation.target(parsed)).name

    def _operation(self, url: str) -> tuple[HttpOperation[Any], Mapping[str, str]]:
        if len(url) > _MOST_URL:
            raise InvalidRequest(f"url: it has {len(url)} characters; expected at most {_MOST_URL}")
        path = unquote(url)
        if path.startswith("/") and "?" not in url and "#" not in url:
            routes, params, _ = self._find(path.rstrip("/") or "/")
            route = routes.get("POST")
            if route is not None and route.operation is not None:
                return route.operation, params
        raise InvalidRequest(
            f"url: {url[:128]!r} runs no model; expected the path of a request, such as /v2/models/NAME/infer"
        )

    async def run(self, lease: Lease) -> ItemReply:
        """Answer an item's request, as `serve_app.jobs.runner.Run` requires."""
        operation, params = self._operation(lease.request.url)
        left_s = min(MAX_TIMEOUT_S, lease.expires - self._now())
        if left_s < 0.001:
            raise DeadlineExceeded("the job's deadline passed before the item was run")
        headers = {name.encode(): value.encode() for name, value in lease.request.headers.items() if name in KEPT}
        headers.setdefault(b"x-priority", b"low")
        headers[b"x-timeout-ms"] = b"%.3f" % (left_s * 1e3)
        headers[b"x-request-id"] = f"{lease.job}-{lease.index}".encode()
        headers[LISTENER], headers[CLIENT] = LISTENER_NAME, CLIENT_NAME
        if not self._ask_for_replicas:
            headers[BACKGROUND] = b""
        call = _StoredCall(headers, lease.request.body, params)
        try:
            answer, reply = await self._gateway.run(operation, call, lease.owner)
        except Exception as error:
            self._gateway.refused(error, call.asked_model, headers)
            raise
        told = [reply.content_type, *answer_headers(answer), *reply.headers]
        return ItemReply(
            200, reply.body, {name.decode(): value.decode() for name, value in told if name not in _NOT_KEPT}
        )


class _StoredCall(HttpCall):
    """A request with a complete body."""

    arrived: ClassVar[bool] = True
    __slots__ = ("_body",)

    def __init__(self, headers: dict[bytes, bytes], body: bytes, params: Mapping[str, str]) -> None:
        super().__init__(headers, _nothing_comes, params)
        self._body = body

    def declared_size(self, bodies: BodyReader) -> int | None:  # noqa: ARG002
        """The body's size."""
        return len(self._body)

    async def read(self, operation: HttpOperation[Any], bodies: BodyReader, limit_s: float) -> bytes:  # noqa: ARG002
        """The body; counted as any other."""
        bodies.hold(len(self._body))
        self._held = len(self._body)
        return self._body


async def _nothing_comes() -> Any:
    raise RuntimeError("the body of an item is not read from a client")
