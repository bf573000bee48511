"""Reads request bodies within limits, per request and per process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, ParamSpec, TypeVar

import numpy as np
from starlette.types import Message, Receive

from serve_app.errors import DeadlineExceeded, InvalidRequest, PayloadTooLarge, QueueFull, UnsupportedMedia

_P = ParamSpec("_P")
_R = TypeVar("_R")

# zlib's "window bits": 15 for the largest window, plus 32 to tell gzip and zlib apart by their headers.
_ANY_ZLIB = 15 + 32

_GZIP = b"\x1f\x8b"
_ZEROS = re.compile(rb"\0*")
_MOST_MEMBERS = 10_000
_PIECE = 16 * 1024

BYTE_ORDER_MARK = "\ufeff".encode()
"""Of UTF-8, which editors write and JSON's readers may ignore (RFC 8259, 8.1)."""

_MARKED_JSON = (BYTE_ORDER_MARK + b"{", BYTE_ORDER_MARK + b"[")

SLOWEST = 64 * 1024
"""Bytes per second that are expected of a client in the long run."""

_IN_PLACE_ABOVE = 64 * 1024
ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""

Allocate = Callable[[int, int], memoryview]
"""Gives memory for a body of so many bytes, in which the byte at the second number is aligned to 64 bytes."""


def allocate(nbytes: int, aligned_at: int) -> memoryview:
    """Fresh memory of this process, whose pages are touched only by writes."""
    block = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -(block.ctypes.data + aligned_at) % ALIGNMENT
    return block.data[start : start + nbytes]


class ClientGone(Exception):
    """The client closed the connection before its request was complete; no answer is possible."""


class BodyTooSlow(DeadlineExceeded):
    """The body was incomplete at its deadline. The rest is not read: the connection must end."""


class BodyReader:
    """Reads and decompresses request bodies, and runs long conversions in threads.

    Bodies above ``offload_above`` count from their first byte until `release`; new ones that would exceed
    ``max_held_bytes`` in total are refused with `QueueFull`. Small bodies are never refused here: the number of open
    requests bounds them, and urgent requests are mostly small.

    Args:
        max_body: Most bytes of one body, before and after decompression.
        max_held_bytes: Most bytes of large bodies read or decoded at once.
        offload_above: Largest body decoded in the event loop.
        decode_threads: Most concurrent decodes in threads.
        pause_timeout_s: Longest pause in a body, and longest arrival beyond 1 s for each 64 KiB received. No proxy in
            front ends a stalled request, whose bytes would be lost to all others.
        allocate: Allocates memory for bodies read in place.
        in_place_bytes: Most declared bytes of arriving bodies in ``allocate``'s memory. More get memory of this
            process, used only as they arrive: otherwise a few request heads would occupy all of ``allocate``'s.
    """

    def __init__(
        self,
        *,
        max_body: int,
        max_held_bytes: int,
        offload_above: int,
        decode_threads: int,
        pause_timeout_s: float = 30.0,
        allocate: Allocate = allocate,
        in_place_bytes: int = 128 * 2**20,
    ) -> None:
        self._allocate = allocate
        self._in_place = in_place_bytes
        self._promised = 0  # bytes given by `allocate` to bodies that are not complete
        self._max_body = max_body
        self._max_held = max_held_bytes
        self.offload_above = offload_above
        self._held = 0
        self._small = min(max_body, offload_above)  # bodies of so many bytes are neither refused nor counted
        self._pause_timeout_s = pause_timeout_s
        self._threads = ThreadPoolExecutor(decode_threads, "conversion")

    @property
    def held(self) -> int:
        """Bytes of large bodies held now."""
        return self._held

    def is_large(self, nbytes: int) -> bool:
        """Whether converting this many bytes should leave the event loop."""
        return nbytes > self.offload_above

    async def offload(self, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Run a long conversion in a thread; concurrency is bounded.

        A thread cannot be stopped: a cancelled caller waits for its end, and only then releases what it holds.
        """
        running = self._threads.submit(copy_context().run, functools.partial(function, *args, **kwargs))
        ended = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            if not running.cancel():  # it has begun
                while not ended.done():
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait([ended])
            raise
        finally:
            # An error knows this frame, and these know the error: what its frames hold would wait for the collector.
            del running, ended

    def declared_size(self, headers: Mapping[bytes, bytes]) -> int | None:
        """The Content-Length; ``None`` for a chunked body.

        Raises:
            InvalidRequest: It is no number.
            PayloadTooLarge: It exceeds the limit; nothing has been read.
        """
        declared = headers.get(b"content-length")
        if declared is None:
            return None
        if not declared.isdigit():
            raise InvalidRequest("Content-Length: expected a number of bytes")
        # A number of more digits than any limit is refused by its length, before it is converted.
        if len(declared) > 18 or int(declared) > self._max_body:
            raise PayloadTooLarge(f"the body is {declared[:18].decode()} bytes; the limit is {self._max_body}")
        return int(declared)

    async def read(self, receive: Receive, headers: Mapping[bytes, bytes], limit_s: float) -> bytes:
        """Read the whole body, undo its Content-Encoding, and drop a byte-order mark before JSON.

        Pair with `release` of the returned length.

        Args:
            headers: By lower-case name.
            limit_s: Seconds until the deadline for the whole body, even if the patience is longer.

        Raises:
            PayloadTooLarge: It exceeds ``max_body``, as sent or decompressed.
            UnsupportedMedia: Its encoding is not supported.
            InvalidRequest: It cannot be decompressed.
            QueueFull: Too many large bodies are being read.
            ClientGone: The client disconnected.
        """
        self.declared_size(headers)
        # The first step of the call is taken at once: what needs no waiting needs no timer, and most bodies need none.
        steps = receive().__await__()
        try:
            waiting: Any = next(steps)
        except StopIteration as done:
            message: Message = done.value
            if message["type"] == "http.request" and not message.get("more_body", False):
                body: bytes = message.get("body", b"")
                if len(body) > self._small:
                    self._grow(0, len(body))
            else:
                body = await self._receive(_Arriving(steps, None, message), receive, limit_s)
        else:
            body = await self._receive(_Arriving(steps, waiting, None), receive, limit_s)
        encoding = headers.get(b"content-encoding")
        if encoding is not None:
            try:
                expanded = await self.offload(self.expand, body, encoding)
            finally:
                self.release(len(body))
            self._grow(0, len(expanded))  # expansion can make a large body of a small one
            body = expanded
        if body.startswith(_MARKED_JSON) and _may_be_json(headers):
            self.release(len(body))
            body = body[len(BYTE_ORDER_MARK) :]
            self._grow(0, len(body))
        return body

    async def read_in_place(
        self, receive: Receive, headers: Mapping[bytes, bytes], limit_s: float, aligned_at: int
    ) -> bytes | memoryview:
        """`read`, but if possible straight into memory aligned for its content. Raises what `read` raises.

        Args:
            receive: Of the ASGI call. `serve_app.http.exchange`'s supports it, for plain bodies.
            aligned_at: The body's byte to align to 64 bytes.
        """
        into = getattr(receive, "into", None)
        size = self.declared_size(headers)
        if into is None or size is None or size <= _IN_PLACE_ABOVE or b"content-encoding" in headers:
            return await self.read(receive, headers, limit_s)
        loop = asyncio.get_running_loop()
        started = loop.time()
        counted = 0

        def progress(arrived: int) -> None:
            nonlocal counted
            self._grow(counted, arrived)
            counted = arrived
            total_s = min(limit_s, self._pause_timeout_s + arrived / SLOWEST)
            timer.reschedule(min(started + total_s, loop.time() + self._pause_timeout_s))  # noqa: F821 - not while it reads

        try:
            with self._memory(size, aligned_at) as buffer:
                async with asyncio.timeout(min(limit_s, self._pause_timeout_s)) as timer:
                    try:
                        await into(buffer, progress)
                    finally:
                        del timer  # it knows the task, whose error would know this frame
        except BaseException as error:
            self.release(counted)
            if isinstance(error, TimeoutError):
                raise _too_slow() from None
            raise
        return buffer.toreadonly()

    @contextlib.contextmanager
    def _memory(self, nbytes: int, aligned_at: int) -> Iterator[memoryview]:
        """Memory for a body that arrives inside the context."""
        if self._promised + nbytes > self._in_place:
            yield allocate(nbytes, aligned_at)
            return
        self._promised += nbytes
        try:
            yield self._allocate(nbytes, aligned_at)
        finally:
            self._promised -= nbytes

    async def _receive(self, arriving: _Arriving, receive: Receive, limit_s: float) -> bytes:
        try:
            async with asyncio.timeout(min(limit_s, self._pause_timeout_s)) as timer:
                try:
                    return await self._collect(arriving, receive, limit_s, timer)
                finally:
                    del timer  # as above
        except TimeoutError:
            raise _too_slow() from None

    async def _collect(self, arriving: _Arriving, receive: Receive, limit_s: float, timer: asyncio.Timeout) -> bytes:
        """Read all messages, extending the timer for each."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        message = arriving.message or await arriving
        chunks: list[bytes] = []
        size = 0
        try:
            while message["type"] == "http.request":
                chunk = message.get("body", b"")
                if chunk:
                    self._grow(size, size + len(chunk))
                    chunks.append(chunk)
                    size += len(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
                total_s = min(limit_s, self._pause_timeout_s + size / SLOWEST)
                timer.reschedule(min(started + total_s, loop.time() + self._pause_timeout_s))
                message = await receive()
        except BaseException:
            self.release(size)
            raise
        finally:
            del timer  # as above
        self.release(size)
        raise ClientGone

    def hold(self, nbytes: int, parsed: int = 0) -> None:
        """Count a body that arrived by other means, until `release` of both numbers' sum.

        Args:
            parsed: Further bytes until it is decoded.

        Raises:
            PayloadTooLarge: It exceeds the limit.
            QueueFull: Too many large bodies are being decoded.
        """
        self._grow(0, nbytes, parsed)

    def release(self, nbytes: int) -> None:
        """Stop counting a body of this size, after it is decoded or dropped."""
        if nbytes > self.offload_above:
            self._held -= nbytes

    def _grow(self, before: int, after: int, parsed: int = 0) -> None:
        if after > self._max_body:
            raise PayloadTooLarge(f"the body is over the limit of {self._max_body} bytes")
        after += parsed
        if after <= self.offload_above:
            return
        added = after - (before if before > self.offload_above else 0)
        if self._held + added > self._max_held:
            raise QueueFull("the server is reading too many large bodies at once; try again", 1.0)
        self._held += added

    def expand(self, body: bytes, encoding: bytes) -> bytes:
        """Undo a Content-Encoding of ``gzip``, with one or several members, or ``deflate``.

        Raises:
            UnsupportedMedia: The encoding is not supported.
            PayloadTooLarge: It decompresses to more than ``max_body``.
            InvalidRequest: It is damaged, truncated, or followed by more bytes.
        """
        name = encoding.strip().lower().decode("latin-1")
        name = "gzip" if name == "x-gzip" else name  # RFC 9110, 8.4.1.3
        if name in {"", "identity"}:
            return body
        if name not in {"gzip", "deflate"}:
            raise UnsupportedMedia("Content-Encoding: this server takes gzip, deflate and identity")
        parts, size, at, piece = [], 0, 0, len(body)
        for _ in range(_MOST_MEMBERS):
            expander = zlib.decompressobj(_ANY_ZLIB)
            while not expander.eof:
                if at >= len(body):
                    raise InvalidRequest(f"the {name} data of the body is cut off")
                fed = body[at : at + piece]
                try:
                    parts.append(expander.decompress(fed, self._max_body + 1 - size))
                except zlib.error:
                    raise InvalidRequest(f"the body is not valid {name} data") from None
                size += len(parts[-1])
                if size > self._max_body:
                    raise PayloadTooLarge(f"the body expands to more than the limit of {self._max_body} bytes")
                at += len(fed) - len(expander.unused_data)
            zeros = _ZEROS.match(body, at)
            if name == "gzip" and zeros:  # between members, or behind the last (RFC 1952, 2.2)
                at = zeros.end()
            if at == len(body):
                return b"".join(parts)
            if name == "deflate" or body[at : at + 2] != _GZIP:
                raise InvalidRequest(f"the body has {len(body) - at} bytes after its {name} data")
            # What is fed beyond the end of a member is copied: of all that is left, it would be once for each.
            piece = _PIECE
        raise InvalidRequest(f"the body has more than {_MOST_MEMBERS} members of gzip data")


def _may_be_json(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the body may be JSON by its type. Lengths within it include the byte-order mark."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return (not kind or b"json" in kind or b"octet-stream" in kind or b"urlencoded" in kind) and (
        b"inference-header-content-length" not in headers
    )


def _too_slow() -> BodyTooSlow:
    return BodyTooSlow("the body took too long to arrive; send all of it before the deadline, and at 64 KiB/s or more")


class _Arriving:
    """The rest of a ``receive`` call of an ASGI server after its first step.

    Args:
        message: Its immediate result; ``None``: it waits, and awaiting this continues there.
    """

    __slots__ = ("_steps", "_waiting", "message")

    def __init__(self, steps: Generator[Any, Any, Message], waiting: Any, message: Message | None) -> None:
        self._steps = steps
        self._waiting = waiting
        self.message = message

    def __await__(self) -> Generator[Any, Any, Message]:
        waiting = self._waiting
        try:
            while True:
                try:
                    sent = yield waiting
                except BaseException as error:  # cancellation, which the call must hear of
                    waiting = self._steps.throw(error)
                else:
                    waiting = self._steps.send(sent)
        except StopIteration as done:
            message: Message = done.value
            return message
