"""Multipart forms: names as text, and what stands in them as the bytes that were sent."""

from __future__ import annotations

import pytest
from starlette.datastructures import UploadFile

from serve_app.api.forms import opened_form
from serve_app.errors import InvalidRequest

_PART = b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'


async def read(content_type: str, *parts: bytes) -> list[tuple[str, str | None, bytes]]:
    """Name, file name and content of each part."""
    headers, body = {b"content-type": content_type.encode()}, b"".join(parts) + b"--b--\r\n"
    found: list[tuple[str, str | None, bytes]] = []
    async with opened_form(headers, body, max_files=8, max_fields=8) as form:
        for name, value in form:
            if isinstance(value, UploadFile):
                found.append((name, value.filename, await value.read()))
            else:
                found.append((name, None, value))
    return found


@pytest.mark.parametrize("charset", ["", "charset=utf-8; ", "charset=UTF8; "])
async def test_fields_are_the_bytes_that_were_sent(charset: str) -> None:
    """Whatever they are; names are UTF-8, or of those who know no other than Latin-1."""
    content = bytes(range(256)).replace(b"\r\n--b", b"")
    parts = (
        _PART % ("größe".encode(), b"", content),
        _PART % (b"\xe9", b"", "größe".encode()),
        _PART % (b"file", '; filename="größe.txt"'.encode(), content),
    )
    assert await read(f"multipart/form-data; {charset}boundary=b", *parts) == [
        ("größe", None, content),
        ("é", None, "größe".encode()),
        ("file", "größe.txt", content),
    ]


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        'multipart/form-data; boundary="b',
        'multipart/form-data; boundary="b\\"; charset=utf-8; c=\\"d"',
        'multipart/form-data; boundary="b;charset=utf-8"',
    ],
)
async def test_a_form_needs_a_boundary(content_type: str) -> None:
    """Of the characters that one may have."""
    with pytest.raises(InvalidRequest, match="the multipart form cannot be read: Missing boundary"):
        await read(content_type, _PART % (b"a", b"", b"x"))
