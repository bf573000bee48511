"""Reads multipart forms, and refuses those that were cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from serve_app.api.content_type import MULTIPART, media_type
from serve_app.errors import InvalidRequest

_PIECE: Final = 64 * 1024
_BYTES: Final = "latin-1"
"""The charset in which each byte is one character."""

Fields: TypeAlias = list[tuple[str, bytes | UploadFile]]
"""By name, in their order: the bytes of fields, and parts with a file name."""


@asynccontextmanager
async def opened_form(
    headers: Mapping[bytes, bytes], content: bytes, *, max_files: int, max_fields: int
) -> AsyncIterator[Fields]:
    """The fields of a multipart form, valid inside the context.

    Args:
        headers: By lower-case name.

    Raises:
        InvalidRequest: It is no form, is truncated, or has too many files or fields.
        UnsupportedMedia: Its charset is not UTF-8.
    """
    if media_type(headers) != MULTIPART:  # which also looks at the charset
        raise InvalidRequest(f"Content-Type: expected {MULTIPART}")
    parser = _Parser(
        Headers({"content-type": _content_type(headers.get(b"content-type", b""))}),
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
        yield [_field(name, value) for name, value in form.multi_items()]
    finally:
        await form.close()


def _content_type(given: bytes) -> str:
    """A form's content type that keeps fields as bytes: the parser would decode invalid UTF-8 to other text."""
    boundary = parse_options_header(given)[1].get(b"boundary", b"").decode(_BYTES)
    if not boundary or any(character in boundary for character in '"\\;'):
        raise InvalidRequest("the multipart form cannot be read: Missing boundary in multipart.")
    return f'multipart/form-data; charset={_BYTES}; boundary="{boundary}"'


def _field(name: str, value: str | UploadFile) -> tuple[str, bytes | UploadFile]:
    if isinstance(value, str):
        return _text(name), value.encode(_BYTES)
    value.filename = _text(value.filename or "")
    return _text(name), value


def _text(name: str) -> str:
    try:
        return name.encode(_BYTES).decode()
    except UnicodeDecodeError:
        return name


class _Parser(MultiPartParser):
    """Starlette's parser, but refuses truncated forms, whose last part it would silently drop."""

    is_whole = False

    def on_end(self) -> None:
        self.is_whole = True


async def _pieces(content: bytes) -> AsyncGenerator[bytes, None]:
    for position in range(0, len(content), _PIECE):
        await asyncio.sleep(0)  # others get their turn between pieces: the parser is Python and never waits
        yield content[position : position + _PIECE]
