"""HTTP over TLS on the routers' own port."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import itertools
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from api.authority import Authority
from api.listener.raw_client import LARGE, Client, Gated, echo, post, serving, until
from serve_app.domain.settings import TlsFiles
from serve_app.errors import ConfigError
from serve_app.http.http1 import Limits
from serve_app.http.secure import SecureTransport
from serve_app.http.tls import Certificates, key_permission_problem, make_context
from serve_app_client import AsyncClient

GOODBYES = (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The one that the server's certificates come from."""
    return Authority(tmp_path_factory.mktemp("authority"))


async def ask(port: int, context: ssl.SSLContext) -> bytes:
    """Connect, send a request and read its answer."""
    client = await Client.connect(port, context)
    return (await (await client.send(post(b"x"))).answer())[2]


async def test_requests_of_every_size_are_answered(authority: Authority) -> None:
    """On one connection: small ones, one that is read in pieces, several at once."""
    async with serving(echo, certificates=Certificates(authority.server())) as (listener, port):
        client = await Client.connect(port, authority.client())
        secured = client.writer.get_extra_info("ssl_object")
        assert secured.version() == "TLSv1.3"
        for body in (b"x", bytes(range(256)) * (LARGE // 256), b"y"):
            await client.send(post(body))
            assert (await client.answer())[2] == body
        await client.send(post(b"1"), post(b"2"))
        assert [(await client.answer())[2] for _ in range(2)] == [b"1", b"2"]
        client.leave()
        await until(lambda: listener.connections == 0)


@pytest.mark.usefixtures("collect_never")
async def test_a_connection_that_ended_is_free_at_once(authority: Authority) -> None:
    """What TLS needs is more than most requests do."""
    async with serving(echo, certificates=Certificates(authority.server())) as (listener, port):
        for leave in (Client.leave, lambda client: client.writer.transport.abort()):
            client = await Client.connect(port, authority.client())
            await (await client.send(post(b"x"))).answer()
            leave(client)
            await until(lambda: listener.connections == 0)
        await asyncio.sleep(0)
        assert not [each for each in gc.get_objects() if isinstance(each, SecureTransport)]


async def test_the_protocol_is_agreed_upon(authority: Authority) -> None:
    """By ALPN: http/1.1 and nothing else."""
    async with serving(echo, certificates=Certificates(authority.server())) as (_, port):
        context = authority.client()
        context.set_alpn_protocols(["h2", "http/1.1"])
        client = await Client.connect(port, context)
        assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


async def test_clients_refuse_what_they_do_not_trust(authority: Authority) -> None:
    """An authority that they do not know, and a certificate that has expired; others are served on."""
    async with serving(echo, certificates=Certificates(authority.server())) as (listener, port):
        with pytest.raises(ssl.SSLCertVerificationError):
            await Client.connect(port, authority.client(trusted=False))
        await until(lambda: listener.connections == 0)
        client = await Client.connect(port, authority.client())
        assert (await (await client.send(post(b"x"))).answer())[2] == b"x"
    expired = authority.server(name="expired", not_after=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
    async with serving(echo, certificates=Certificates(expired)) as (_, port):
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            await Client.connect(port, authority.client())


async def test_clients_show_a_certificate_where_they_must(authority: Authority, tmp_path: Path) -> None:
    """One of the authority that the server names; none, or another's, ends the connection without an answer."""
    clients = Authority(tmp_path)
    files = authority.server(client_ca=clients.ca_file, name="mutual")
    app = Gated()
    async with serving(app, certificates=Certificates(files)) as (listener, port):
        for shown in (None, authority):
            with pytest.raises(GOODBYES):
                await ask(port, authority.client(certificate=shown))
        assert not app.started.is_set()
        app.let.set()
        client = await Client.connect(port, authority.client(certificate=clients))
        assert (await (await client.send(post(b"x"))).answer())[2] == b"done"
        client.leave()
        await until(lambda: listener.connections == 0)


async def test_new_files_are_used_for_new_connections(authority: Authority, tmp_path: Path) -> None:
    """Open ones go on with the old; a key without its certificate changes nothing."""
    other = Authority(tmp_path)
    files = authority.server(name="rotating")
    certificates = Certificates(files, itertools.count(step=2.0).__next__)
    async with serving(echo, certificates=certificates) as (_, port):
        before = await Client.connect(port, authority.client())
        key = files.key.read_bytes()
        other.write(files)
        good = files.key.read_bytes()
        files.key.write_bytes(key)  # of the old certificate
        await Client.connect(port, authority.client())
        files.key.write_bytes(good)
        await Client.connect(port, other.client())
        with pytest.raises(ssl.SSLCertVerificationError):
            await Client.connect(port, authority.client())
        assert (await (await before.send(post(b"x"))).answer())[2] == b"x"


async def test_what_is_not_tls_ends_cleanly(authority: Authority) -> None:
    """Plain HTTP, noise and nothing at all; and TLS on a plain port is answered as what it is, no HTTP."""
    limits = Limits(head_s=0.5)
    async with serving(echo, limits, Certificates(authority.server())) as (listener, port):
        for sent in (post(b"x"), b"\x16\x03\x01\xff\xff" + bytes(100), b""):
            client = await Client.connect(port)
            await client.send(sent)
            with contextlib.suppress(ConnectionError):
                assert b"HTTP" not in await client.ended()
            await until(lambda: listener.connections == 0)
    async with serving(echo) as (listener, port):
        with pytest.raises(GOODBYES):
            await Client.connect(port, authority.client())
        await until(lambda: listener.connections == 0)


async def test_handshakes_count_as_connections_and_make_room(authority: Authority) -> None:
    """Connections that begin no handshake go before those that were answered."""
    limits = Limits(connections=2)
    async with serving(echo, limits, Certificates(authority.server())) as (listener, port):
        served = await Client.connect(port, authority.client())
        assert (await (await served.send(post(b"x"))).answer())[0] == 200
        for _ in range(5):
            silent = await Client.connect(port)
            newcomer = await Client.connect(port, authority.client())
            assert await silent.ended() == b""
            assert (await (await newcomer.send(post(b"y"))).answer())[0] == 200
            newcomer.leave()
            await until(lambda: listener.connections == 1)
        assert (await (await served.send(post(b"z"))).answer())[0] == 200


async def test_a_client_that_does_not_read_is_cut(authority: Authority) -> None:
    """Though what waits for it is in the socket's transport, below TLS."""

    async def large(scope, receive, send):  # type: ignore[no-untyped-def]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64):
            await send({"type": "http.response.body", "body": bytes(2**20), "more_body": True})

    limits = Limits(stall_s=0.01)
    async with serving(large, limits, Certificates(authority.server())) as (listener, port):
        client = await Client.connect(port, authority.client())
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
        await until(lambda: listener.requests == 1)
        await until(lambda: listener.requests == 0)
        client.leave()


async def test_our_client_speaks_tls(authority: Authority, tmp_path: Path) -> None:
    """With a context that trusts the authority, and shows a certificate of its own."""
    clients = Authority(tmp_path)
    files = authority.server(client_ca=clients.ca_file, name="for-our-client")
    async with serving(echo, certificates=Certificates(files)) as (_, port):
        url = f"https://127.0.0.1:{port}"
        for context, works in ((authority.client(certificate=clients), True), (clients.client(), False)):
            async with AsyncClient(url, verify=context) as client:
                assert await client.live() is works


def test_wrong_files_are_faults_in_one_line(authority: Authority, tmp_path: Path) -> None:
    """Missing, empty of what they should hold, of another certificate, encrypted."""
    files = authority.server(name="right")
    other = authority.server(name="wrong")
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    encrypted = tmp_path / "encrypted.key"
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    missing = tmp_path / "missing.pem"
    faults = {
        TlsFiles(missing, files.key): f"{missing}: cannot be read: No such file or directory",
        TlsFiles(empty, files.key): f"{empty}: holds no certificate in PEM",
        TlsFiles(files.certificate, empty): f"{empty}: holds no private key in PEM",
        TlsFiles(
            files.certificate, other.key
        ): f"{other.key}: is not the key of the certificate in {files.certificate}",
        TlsFiles(files.certificate, encrypted): f"{encrypted}: is encrypted; give the private key without a password",
        TlsFiles(files.certificate, files.key, empty): f"{empty}: holds no certificates in PEM",
    }
    for wrong, fault in faults.items():
        with pytest.raises(ConfigError) as caught:
            make_context(wrong)
        assert caught.value.problems == (fault,)


def test_a_key_that_others_may_read_is_told(authority: Authority) -> None:
    """In one line with what to do."""
    files = authority.server(name="careless")
    assert key_permission_problem(files) is None
    files.key.chmod(0o644)
    assert (
        key_permission_problem(files) == f"{files.key}: mode 0644 lets other users read the private key; run chmod 600"
    )
