"""Ports that do not open at once."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from pathlib import Path

import grpc
import pytest

from api.authority import Authority
from api.protocol_service import NumpyService, both
from api.rpc.test_hostile_clients import live, secure_channel
from serve_app.api.grpc_app import GrpcApp
from serve_app.api.grpc_listener import GrpcListener
from serve_app.api.http_app import create_app
from serve_app.http.body import BodyReader
from serve_app.http.listener import Listener, bind
from serve_app.http.tls import Certificates
from serve_app.router.direct_ports import MANY_TRIES, DirectPorts


@pytest.mark.parametrize("half", ["", "no certificate", None])
async def test_certificates_that_are_being_replaced(
    tmp_path: Path, bodies: BodyReader, caplog: pytest.LogCaptureFixture, half: str | None
) -> None:
    """The port opens when they are whole again; the other one meanwhile."""
    authority = Authority(tmp_path)
    files = authority.server()
    service = NumpyService()
    http = Listener(create_app(*both(service)), bind("127.0.0.1", 0))
    rpc = GrpcListener(GrpcApp(*both(service), bodies), "127.0.0.1", 0, None, Certificates(files))
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)
        await _accepts(http.port)
        if len(waited) == 2:
            authority.write(files)

    ports = DirectPorts([http, rpc], wait)
    _put(files.certificate, half)
    ports.open()
    ports.open()
    await ports.opened()
    assert waited == [1.0, 2.0]
    assert f"port {rpc.port} does not open: " in caplog.text
    assert await live(secure_channel(rpc.port, authority)) is grpc.StatusCode.OK
    await ports.close(0.0)


async def test_ports_that_are_closed_before_they_are_open(bodies: BodyReader) -> None:
    """As those of a router that is stopped in its first turns."""
    service = NumpyService()
    http, rpc = (
        Listener(create_app(*both(service)), bind("127.0.0.1", 0)),
        GrpcListener(GrpcApp(*both(service), bodies), "127.0.0.1", 0),
    )
    ports = DirectPorts([http, rpc])
    ports.open()
    opening = asyncio.ensure_future(ports.opened())
    await ports.close(0.0)
    await opening
    assert ports.fault == ""


async def test_both_ports_have_the_same_certificates(tmp_path: Path, bodies: BodyReader) -> None:
    """New files count on both, whichever is asked first."""
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "other")
    files, service = authority.server(), NumpyService()
    certificates = Certificates(files, itertools.count(step=2.0).__next__)
    http = Listener(create_app(*both(service)), bind("127.0.0.1", 0), None, certificates)
    rpc = GrpcListener(GrpcApp(*both(service), bodies), "127.0.0.1", 0, None, certificates)
    ports = DirectPorts([http, rpc])
    ports.open()
    await ports.opened()
    for first, second in ((_secured, _called), (_called, _secured)):
        authority, other = other, authority
        authority.write(files)
        assert [await first(http.port, rpc.port, authority), await second(http.port, rpc.port, authority)] == [True] * 2
        assert [await first(http.port, rpc.port, other), await second(http.port, rpc.port, other)] == [False] * 2
    await ports.close(0.0)


async def _secured(http: int, rpc: int, authority: Authority) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", http, ssl=authority.client())
    except ssl.SSLCertVerificationError:
        return False
    writer.close()
    return True


async def _called(http: int, rpc: int, authority: Authority) -> bool:
    return await live(secure_channel(rpc, authority)) is grpc.StatusCode.OK


async def test_a_port_that_does_not_open_is_told(tmp_path: Path, bodies: BodyReader) -> None:
    """After many tries, so that somebody can begin anew; it is tried further."""
    authority = Authority(tmp_path)
    files = authority.server()
    rpc = GrpcListener(GrpcApp(*both(NumpyService()), bodies), "127.0.0.1", 0, None, Certificates(files))
    told: list[str] = []

    async def wait(_seconds: float) -> None:
        told.append(ports.fault)
        if len(told) == MANY_TRIES + 1:
            authority.write(files)

    ports = DirectPorts([rpc], wait)
    _put(files.key, None)
    ports.open()
    await ports.opened()
    assert [bool(fault) for fault in told] == [False] * (MANY_TRIES - 1) + [True] * 2
    assert told[-1].startswith(f"port {rpc.port} does not open: ")
    assert ports.fault == ""
    await ports.close(0.0)


async def test_a_closed_port_is_not_tried_again(tmp_path: Path, bodies: BodyReader) -> None:
    """The router ends meanwhile."""
    files = Authority(tmp_path).server()
    rpc = GrpcListener(GrpcApp(*both(NumpyService()), bodies), "127.0.0.1", 0, None, Certificates(files))

    async def wait(_seconds: float) -> None:
        await ports.close(0.0)

    ports = DirectPorts([rpc], wait)
    _put(files.key, None)
    ports.open()
    await ports.opened()
    with pytest.raises(ConnectionRefusedError):
        await _accepts(rpc.port)


def _put(file: Path, content: str | None) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_text(content)


async def _accepts(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    await writer.wait_closed()
