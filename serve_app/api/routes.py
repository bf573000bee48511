"""Routes of HTTP: each API's declarations, and the table that finds them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from serve_app.access.guard import Policy
from serve_app.api.gateway import Operation
from serve_app.domain.options import MODEL_VERSION, QosHints, parse_qos_headers, version_of
from serve_app.domain.priorities import PriorityLevels
from serve_app.errors import ServeAppError
from serve_app.http.body import BodyReader
from serve_app.http.errors import Headers, Rendered, render

_Parsed = TypeVar("_Parsed")

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
"""Answers what asks no model to work."""
Errors: TypeAlias = Callable[[ServeAppError], Rendered]
"""The shape of an API's errors."""

JSON: Final = (b"content-type", b"application/json")


class HttpCall:
    """One inference request over HTTP; implements `serve_app.api.gateway.Call`.

    Args:
        headers: By lower-case name.
        params: Values of the path's names in braces.
    """

    arrived: ClassVar[bool] = False
    __slots__ = ("_held", "_receive", "asked_model", "headers", "model", "params", "scheduled", "version", "waited_s")

    def __init__(self, headers: dict[bytes, bytes], receive: Receive, params: Mapping[str, str]) -> None:
        self.headers = headers
        self.params = params
        self.model: str | None = params.get("model")
        self.version: str | None = params.get("version")
        if MODEL_VERSION in headers and self.version is None:
            self.version = version_of(headers)
        self.asked_model: str | None = self.model or ""
        self.waited_s = 0.0
        self.scheduled = False
        self._receive = receive
        self._held = 0

    def qos(self, levels: PriorityLevels) -> QosHints:
        """`parse_qos_headers`."""
        headers = self.headers
        if b"x-priority" not in headers and b"x-timeout-ms" not in headers:
            return None, None
        return parse_qos_headers(headers, levels)

    def declared_size(self, bodies: BodyReader) -> int | None:
        """The checked Content-Length; ``None`` for a chunked body."""
        return bodies.declared_size(self.headers)

    async def read(self, operation: HttpOperation[Any], bodies: BodyReader, limit_s: float) -> bytes | memoryview:
        """`BodyReader.read`, in place if the operation asks for it."""
        aligned_at = operation.aligned_at(self.headers)
        body: bytes | memoryview
        if aligned_at is None:
            body = await bodies.read(self._receive, self.headers, limit_s)
        else:
            body = await bodies.read_in_place(self._receive, self.headers, limit_s, aligned_at)
        self._held = len(body)
        return body

    def release(self, bodies: BodyReader) -> None:
        """Stop counting the body."""
        if self._held > bodies.offload_above:  # others are not counted
            bodies.release(self._held)


class Reply(Struct, frozen=True):
    """An answer over HTTP, without the common headers.

    Attributes:
        content_type: The header.
        headers: Further headers of this API.
    """

    body: bytes
    content_type: tuple[bytes, bytes] = JSON
    headers: Headers = []


class HttpOperation(Operation[HttpCall, _Parsed, Reply], Generic[_Parsed]):
    """An `Operation` over HTTP.

    Attributes:
        streams: Whether answers are streamed as server-sent events: `write` makes one of each part.
    """

    streams: ClassVar[bool] = False

    def aligned_at(self, headers: Mapping[bytes, bytes]) -> int | None:  # noqa: ARG002
        """The body's byte to align in memory for its tensors; ``None``: bodies hold none."""
        return None


class Route(NamedTuple):
    """One route.

    Attributes:
        method: ``GET``, which includes HEAD, or ``POST``.
        path: With names in braces, each for one segment or for its beginning before a colon and a word:
            ``/v1/models/{model}:predict``.
        handler: Answers requests that run no model.
        policy: Access to the handler. Inference takes a key.
        errors: The shape of its errors.
        described: Whether the API description includes it; routes that only refuse are left out.
        operation: Reads inference requests and writes their answers, instead of ``handler``.
    """

    method: str
    path: str
    handler: Handler | None = None
    policy: Policy = "key"
    errors: Errors = render
    described: bool = True
    operation: HttpOperation[Any] | None = None


class ApiRoutes(NamedTuple):
    """What an API serves.

    Attributes:
        routes: Its routes.
        errors_below: Shapes of errors below a path, for unmatched requests.
    """

    routes: Sequence[Route]
    errors_below: Mapping[str, Errors] = MappingProxyType({})


Found: TypeAlias = tuple[Mapping[str, Route], Mapping[str, str], Errors]
"""What there is at a path: routes by method, none where nothing is served; what stands for the names in braces; and the
shape of errors."""
Find: TypeAlias = Callable[[str], Found]
"""Looks up a path."""


class RouteTable:
    """Finds routes by path.

    A literal segment precedes one that ends with a colon and a word, and that precedes any other.

    Args:
        errors: Error shapes below a path, for unmatched requests; the longest path wins.
    """

    def __init__(self, routes: Iterable[Route], errors: Mapping[str, Errors]) -> None:
        self._routes = tuple(routes)
        self._root = _Node()
        for route in self._routes:
            self._root.at(route.path).add(route)
        for path, shape in errors.items():
            self._root.at(path).shape = shape
        self._root.share()

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def find(self, path: str) -> Found:
        """Look up a path, with a leading and no trailing slash."""
        node: _Node | None = self._root
        shape: Errors = render
        parts = path.split("/")
        for part in parts[1:] if path != "/" else ():
            assert node is not None
            shape = node.shape or shape
            node = node.children.get(part) or (node.verbs and node.verbs.get(part[part.rfind(":") :])) or node.any
            if node is None:
                return {}, {}, shape
        assert node is not None
        if not node.routes:
            return {}, {}, node.shape or shape
        params = {}
        for name, at, verb in node.names:
            params[name] = parts[at].removesuffix(verb) if verb else parts[at]
        return node.routes, params, node.errors


class _Node:
    """Routes with the same leading segments."""

    __slots__ = ("any", "children", "errors", "names", "routes", "shape", "verbs")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.verbs: dict[str, _Node] = {}  # segments that end so
        self.any: _Node | None = None  # whatever the segment is
        self.routes: dict[str, Route] = {}
        self.names: tuple[tuple[str, int, str], ...] = ()  # in braces, its place in the path, and what follows it there
        self.errors: Errors = render
        self.shape: Errors | None = None  # of errors from here on

    def at(self, path: str) -> _Node:
        node = self
        for part in path.split("/")[1:] if path != "/" else ():
            name, verb = _taken_apart(part)
            if verb:
                node = node.verbs.setdefault(verb, _Node())
            elif name:
                node.any = node = node.any or _Node()
            else:
                node = node.children.setdefault(part, _Node())
        return node

    def add(self, route: Route) -> None:
        if route.method in self.routes:
            raise ValueError(f"two routes for {route.method} {route.path}")
        self.routes[route.method] = route
        parts = [(*_taken_apart(part), at) for at, part in enumerate(route.path.split("/"))]
        self.names = tuple((name, at, verb) for name, verb, at in parts if name)
        self.errors = route.errors

    def share(self) -> None:
        """Merge the routes below a more general segment into each more specific one, which is tried first."""
        for part, child in self.children.items():
            if (verb := self.verbs.get(part[part.rfind(":") :])) is not None:
                child.take(verb)
        named = (*self.children.values(), *self.verbs.values())
        if self.any is not None:
            for child in named:
                child.take(self.any)
            self.any.share()
        for child in named:
            child.share()

    def take(self, other: _Node) -> None:
        if not self.routes:
            self.routes, self.names, self.errors = other.routes, other.names, other.errors
        for part, child in other.children.items():
            self.children.setdefault(part, _Node()).take(child)
        for verb, child in other.verbs.items():
            self.verbs.setdefault(verb, _Node()).take(child)
        if other.any is not None:
            self.any = self.any or _Node()
            self.any.take(other.any)


def _taken_apart(part: str) -> tuple[str, str]:
    """A segment's name in braces and its suffix; both empty for a literal segment."""
    if not part.startswith("{"):
        return "", ""
    name, _, verb = part[1:].partition("}")
    return name, verb
