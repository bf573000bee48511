"""Ports that close while clients ask without a pause."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import psutil
import pytest
from steady_load import SteadyLoad

from api.protocol_service import NumpyService, both
from api.rpc.conftest import INFERENCE, Client, failure, request_of
from serve_app.api.gateway import Gateway
from serve_app.api.grpc.call import GrpcCall
from serve_app.api.grpc.inbound_messages import InboundMessages
from serve_app.api.grpc_app import GrpcApp
from serve_app.api.grpc_listener import GrpcListener
from serve_app.api.open_inference.rpc import InferenceRpc
from serve_app.errors import InvalidRequest, ModelUnavailable
from serve_app.http.body import BodyReader


async def test_no_call_is_lost(bodies: BodyReader) -> None:
    """Calls are answered, or find the port closed. At any time some have arrived that the event loop has not taken."""
    for _ in range(5):
        listener = GrpcListener(GrpcApp(*both(NumpyService()), bodies), "127.0.0.1", 0)
        await listener.start()
        load = SteadyLoad("double", 4, grpc_ports=[listener.port], clients=8, answer=lambda number: 2.0 * number)
        with load:
            await asyncio.to_thread(load.wait_for_answers)
            await listener.close(20.0)
            await asyncio.to_thread(load.end)
        assert not load.losses(), load.details


async def test_grpc_cancels_a_call_that_meets_its_goaway(bodies: BodyReader) -> None:
    """Which is why answers are held, and why clients are to retry. If this fails, gRPC has learned it: do less then."""
    listener = GrpcListener(GrpcApp(*both(NumpyService()), bodies), "127.0.0.1", 0)
    await listener.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS))
    await _payload(reader, _SETTINGS)
    closing = asyncio.create_task(listener.close(20.0))
    await _payload(reader, _GOAWAY)
    fields = {":method": "POST", ":scheme": "http", ":path": f"/{INFERENCE.full_name}/ServerLive", ":authority": "test"}
    fields |= {"te": "trailers", "content-type": "application/grpc"}
    head = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
    writer.write(_frame(_HEADERS, 4, 1, head) + _frame(_DATA, 1, 1, bytes(5)))
    assert _text("grpc-status") + _text(str(grpc.StatusCode.CANCELLED.value[0])) in await _payload(reader, _HEADERS)
    writer.close()
    await closing


_DATA, _HEADERS, _SETTINGS, _GOAWAY = 0, 1, 4, 7


def _frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _text(text: str) -> bytes:
    """A name or value of a header, as HPACK has it."""
    return bytes([len(text)]) + text.encode()


async def _payload(reader: asyncio.StreamReader, kind: int) -> bytes:
    """That of the next frame of a kind."""
    while True:
        head = await reader.readexactly(9)
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        if head[3] == kind:
            return payload


async def test_nobody_connects_to_a_port_that_is_about_to_close(bodies: BodyReader) -> None:
    """Clients that another process on this port sent away would have their calls cancelled."""
    first = GrpcListener(GrpcApp(*both(NumpyService()), bodies), "127.0.0.1", 0)
    shared = GrpcListener(GrpcApp(*both(NumpyService()), bodies), "127.0.0.1", first.port)
    await first.start()
    await shared.start()
    closing = asyncio.create_task(first.close(20.0))
    await asyncio.sleep(0)  # it waits for calls that have arrived
    taken = [_connects(first.port) for _ in range(20)]
    first_ended = closing.done()
    await asyncio.to_thread(_wait_for_end_of_connections, first.port)  # one that is being taken keeps a socket open
    also_closing = asyncio.create_task(shared.close(20.0))
    await asyncio.sleep(0)
    taken_later = _connects(first.port)
    shared_ended = also_closing.done()
    await asyncio.gather(closing, also_closing)
    assert (all(taken), first_ended) == (True, False)
    assert (taken_later, shared_ended) == (False, False)


async def test_streams_that_are_opened_again_do_not_hold_it_up(bodies: BodyReader) -> None:
    """They end at once, whether their client comes before it knows that it should go elsewhere or after."""
    listener = GrpcListener(GrpcApp(*both(NumpyService()), bodies), "127.0.0.1", 0)
    await listener.start()
    client = Client(listener.port)
    opened = asyncio.Event()
    said: list[grpc.StatusCode] = []

    async def keep_open() -> None:
        while True:
            stream = client.stream()
            with contextlib.suppress(grpc.aio.AioRpcError):
                await stream.write(request_of().SerializeToString())
                await stream.read()
            opened.set()
            said.append(await stream.code())

    keeping = asyncio.create_task(keep_open())
    await opened.wait()
    async with asyncio.timeout(10.0):  # its client would give up after 20
        await listener.close(600.0)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await client.channel.close()
    assert set(said) <= {grpc.StatusCode.UNAVAILABLE}


async def test_a_stream_is_refused_that_comes_while_all_end(service: NumpyService, bodies: BodyReader) -> None:
    """Ray Serve's port goes on serving when streams have been told to end."""
    app = GrpcApp(*both(service), bodies)
    listener = GrpcListener(app, "127.0.0.1", 0)
    await listener.start()
    client = Client(listener.port)
    app.close()
    code, details, metadata = await failure(client.stream().read())
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "open the stream again" in details
    assert metadata["code"] == "model_unavailable"
    await client.channel.close()
    await listener.close(0.0)


async def test_a_stream_ends_that_has_not_begun_to_read_when_all_end(service: NumpyService, bodies: BodyReader) -> None:
    """What reads its requests may be cancelled before its first step."""
    rpc = InferenceRpc(Gateway(*both(service), bodies), lambda error, _call, _method: InvalidRequest(str(error)))
    context: Any = SimpleNamespace(invocation_metadata=tuple, peer=str)
    stream = rpc.stream_infer(_endless(), GrpcCall(context))
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    rpc.close()
    async with asyncio.timeout(10.0):
        with pytest.raises(ModelUnavailable):
            await reading


async def _endless() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def test_answers_are_held_no_longer_than_their_clients_wait() -> None:
    """Else calls with tight deadlines would fail that had been answered."""
    arrivals = InboundMessages(1, 1.0)
    with arrivals.holding_answers():
        await arrivals.released(0.0)
        await arrivals.released(0.06)
        patient = asyncio.create_task(arrivals.released(600.0))
        endless = asyncio.create_task(arrivals.released(None))
        await asyncio.sleep(0)
        assert not patient.done()
        assert not endless.done()
    await asyncio.gather(patient, endless)


async def test_a_port_opens_and_closes_where_files_are_short(bodies: BodyReader) -> None:
    """It does not open while there is none, opens when it is told to again, and closes without one."""
    listener = GrpcListener(GrpcApp(*both(NumpyService()), bodies), "127.0.0.1", 0)
    with _no_file_left(), pytest.raises(OSError, match="Too many open files"):
        await listener.start()
    assert not _connects(listener.port)
    await listener.start()
    assert _connects(listener.port)
    with _no_file_left():
        await listener.close(0.0)
    assert not _connects(listener.port)


@contextlib.contextmanager
def _no_file_left() -> Iterator[None]:
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_highest_file() + 3, most))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
        for each in taken:
            os.close(each)


def _highest_file() -> int:
    return max(int(each.name) for each in Path("/proc/self/fd").iterdir())


def _connects(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _wait_for_end_of_connections(port: int) -> None:
    """Until this process has taken all that came to its port, and their clients have gone."""
    while any(
        each.laddr.port == port and each.status != psutil.CONN_LISTEN
        for each in psutil.Process().net_connections("tcp")
    ):
        pass


async def test_a_call_that_is_given_up_before_its_message_is_not_kept() -> None:
    """Its task ends cancelled where nobody hears of it."""
    arrivals = InboundMessages(10, 5.0)
    task = asyncio.ensure_future(arrivals.message(_endless()))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert len(arrivals) == 0
