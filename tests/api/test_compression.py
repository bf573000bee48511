"""Compressed answers, for clients that ask."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from serve_app.http.compression import asked_coding

_UNDO: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}


def _request(width: int) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [1, width], "datatype": "FP32", "data": [1] * width}]}


async def _raw(client: httpx.AsyncClient, method: str, path: str, asked: str, **options: Any) -> tuple[Any, bytes]:
    """The response as it travelled."""
    async with client.stream(method, path, headers={"Accept-Encoding": asked}, **options) as reply:
        return reply, b"".join([chunk async for chunk in reply.aiter_raw()])


@pytest.mark.parametrize(
    ("value", "coding"),
    [
        (b"gzip", b"gzip"),
        (b" Deflate ", b"deflate"),
        (b"gzip;q=1.0", b"gzip"),
        (b"gzip; q=0", None),
        (b"gzip;q=0.000", None),
        (b"gzip, deflate", None),
        (b"br", None),
        (b"identity", None),
        (b"", None),
    ],
)
def test_naming_one_coding_is_asking(value: bytes, coding: bytes | None) -> None:
    """Lists are what libraries send by themselves."""
    assert asked_coding({b"accept-encoding": value}) == coding
    assert asked_coding({}) is None


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("width", [400, 10_000])
async def test_infer(client: httpx.AsyncClient, coding: str, width: int) -> None:
    """The headers say what it is; long ones are made in a thread."""
    reply, body = await _raw(client, "POST", "/v2/models/wide/infer", coding, json=_request(width))
    _, plain = await _raw(client, "POST", "/v2/models/wide/infer", "identity", json=_request(width))

    assert reply.headers["content-encoding"] == coding
    assert reply.headers["vary"] == "accept-encoding"
    assert int(reply.headers["content-length"]) == len(body) < len(plain)
    assert _UNDO[coding](body) == plain


@pytest.mark.parametrize("path", ["/v2/models/mirror", "/v2/models/mirror/config", "/"])
async def test_other_routes(client: httpx.AsyncClient, path: str) -> None:
    """As well."""
    reply, body = await _raw(client, "GET", path, "gzip")
    _, plain = await _raw(client, "GET", path, "identity")

    assert reply.headers["content-encoding"] == "gzip"
    assert int(reply.headers["content-length"]) == len(body)
    assert gzip.decompress(body) == plain


@pytest.mark.parametrize(
    ("method", "path", "asked"),
    [
        ("POST", "/v2/models/wide/infer", "gzip, deflate, br"),
        ("GET", "/v2", "gzip"),
        ("GET", "/v2/models/nothing", "gzip"),
        ("HEAD", "/v2/models/mirror", "gzip"),
    ],
    ids=["not asked", "small", "an error", "no body"],
)
async def test_others_stay_as_they_are(client: httpx.AsyncClient, method: str, path: str, asked: str) -> None:
    """What is not asked for, and what would not become shorter."""
    reply, body = await _raw(client, method, path, asked, json=_request(400))

    assert "content-encoding" not in reply.headers
    assert body.startswith(b"{") or method == "HEAD"


async def test_a_part_of_a_body_stays_as_it_is(client: httpx.AsyncClient) -> None:
    """Its bytes are counted in the body that is not compressed."""
    headers = {"Accept-Encoding": "gzip", "Range": "bytes=0-1999"}
    reply = await client.get("/docs/swagger-ui.css", headers=headers)
    assert (reply.status_code, len(reply.content)) == (206, 2000)
    assert "content-encoding" not in reply.headers
