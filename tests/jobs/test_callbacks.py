"""Which servers a callback may reach."""

from __future__ import annotations

import asyncio
import socket
import ssl
from ipaddress import ip_address, ip_network

import pytest
from jobs.receiver import Receiver

from serve_app.errors import InvalidRequest
from serve_app.jobs.callbacks import check_callback
from serve_app.jobs.post import AddressRefused, is_public, post
from serve_app.jobs.settings import CallbackSettings

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
        ),
        *("::1", "::", "fe80::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1", "2002:7f00:1::", "64:ff9b::a00:1"),
        *("64:ff9b:1::a00:1", "fec0::1", "::10.1.2.3", "::ffff:0:10.1.2.3"),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    """Of this machine, of networks behind it, of clouds' own services; also where IPv6 hides them."""
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_public_addresses(address: str) -> None:
    """And those of a network that is allowed."""
    assert is_public(ip_address(address))
    assert is_public(ip_address("10.1.2.3"), [ip_network("10.0.0.0/8")])
    assert not is_public(ip_address("10.1.2.3"), [ip_network("127.0.0.0/8"), ip_network("fd00::/8")])


async def test_a_host_that_leads_inside_is_not_asked() -> None:
    """Whatever it is called: its addresses count."""
    with Receiver() as receiver:
        with pytest.raises(AddressRefused, match="not public"):
            await post(f"http://localhost:{receiver.port}/", {}, b"")
        assert receiver.received.empty()
        assert await post(f"http://localhost:{receiver.port}/a?b", {"x": "y"}, b"body", LOOPBACK) == 204
        received = receiver.received.get_nowait()
        assert (received.path, received.headers["x"], received.body) == ("/a?b", "y", b"body")


async def test_another_address_is_asked_where_one_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may have several."""

    def resolve(*_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        return [(2, 1, 6, "", ("127.0.0.2", 0)), (2, 1, 6, "", ("127.0.0.1", 0))]

    with Receiver() as receiver:
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        assert await post(f"http://hooks.example:{receiver.port}/", {}, b"", LOOPBACK) == 204


async def test_authorities_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not with every callback, in the event loop."""
    read: list[ssl.SSLContext] = []
    create = ssl.create_default_context

    def counted() -> ssl.SSLContext:
        read.append(create())
        return read[-1]

    monkeypatch.setattr(ssl, "create_default_context", counted)
    with Receiver() as receiver:
        for _ in range(2):
            with pytest.raises(OSError, match="SSL"):
                await post(f"https://127.0.0.1:{receiver.port}/", {}, b"", LOOPBACK)
    assert len(read) <= 1


@pytest.mark.parametrize("answer", [b"x" * 100_000, b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n", b"HTTP/1.1 20 OK\r\n"])
async def test_an_answer_that_is_no_http_is_a_failure(answer: bytes) -> None:
    """However long it is, and its status."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(OSError, match="not HTTP"):
            await post(f"http://127.0.0.1:{port}/", {}, b"", LOOPBACK)


@pytest.mark.parametrize(
    "url",
    [
        *("https://other/", "ftp://a/", "https://a:8080/", "https://a.evil/", "https://evil/?a", "https://x@a/", "a"),
        *("http://b:443/", "https://b:80/", "https://b:8080/", "http://b:22/", "https://b:0/"),
        *("https://a/\r\nx: y", "https://a/ b", "https://a/" + "x" * 3000, "https://[::1", "https://a:99999/"),
    ],
)
def test_urls_that_are_not_allowed(url: str) -> None:
    """Only hosts, and their ports, that the configuration names."""
    with pytest.raises(InvalidRequest, match="callback"):
        check_callback(url, CallbackSettings(hosts=frozenset({"a:443", "b"})))


@pytest.mark.parametrize("url", ["https://a/", "https://A:443/x?y", "http://c:8080/", "https://b/", "http://b/"])
def test_urls_that_are_allowed(url: str) -> None:
    """A host without a port is allowed on those that its schemes have."""
    check_callback(url, CallbackSettings(hosts=frozenset({"a:443", "b", "c:8080"})))
