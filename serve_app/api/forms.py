"""Reads multipart forms, and refuses those that were cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from starlette.datastructures import FormData, Headers
from starlette.formparsers import MultiPartException, MultiPartParser

from serve_app.api.content_type import MULTIPART, media_type
from serve_app.errors import InvalidRequest

_PIECE: Final = 64 * 1024


@asynccontextmanager
async def opened_form(
    headers: Mapping[bytes, bytes], content: bytes, *, max_files: int, max_fields: int
) -> AsyncIterator[FormData]:
    """The fields of a multipart form, until the context ends.

    Args:
        headers: By lower-case name.
        content: The body.
        max_files: How many files it may have.
        max_fields: How many other fields.

    Raises:
        InvalidRequest: It is no form, was cut off, or has more than that.
        UnsupportedMedia: It is in a charset other than UTF-8.
    """
    if media_type(headers) != MULTIPART:  # which also looks at the charset: the parser takes any codec of Python
        raise InvalidRequest(f"Content-Type: expected {MULTIPART}")
    parser = _Parser(
        Headers({"content-type": headers.get(b"content-type", b"").decode("latin-1")}),
        _pieces(content),
        max_files=max_files,
        max_fields=max_fields,
        max_part_size=len(content),
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"the multipart form cannot be read: {error.message}") from None
    try:
        if not parser.is_whole:
            raise InvalidRequest("the multipart form cannot be read: it ends before its last boundary")
        yield form
    finally:
        await form.close()


class _Parser(MultiPartParser):
    """Starlette's, which takes a form without an end for a whole one, and loses the part that it was cut off in."""

    is_whole = False

    def on_end(self) -> None:
        self.is_whole = True


async def _pieces(content: bytes) -> AsyncGenerator[bytes, None]:
    for position in range(0, len(content), _PIECE):
        await asyncio.sleep(0)  # others get their turn between pieces: the parser is Python and never waits
        yield content[position : position + _PIECE]
