"""gRPC: TLS, and clients that hold what they do not use."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2

from api.authority import Authority
from api.protocol_service import NumpyService, both
from api.rpc.conftest import INFERENCE, Client, failure, request_of
from serve_app.api.grpc_app import GrpcApp
from serve_app.api.grpc_listener import GrpcLimits, GrpcListener
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.http.body import BodyReader
from serve_app.http.tls import Certificates

LIVE = f"/{INFERENCE.full_name}/ServerLive"


@contextlib.asynccontextmanager
async def serving(
    limits: GrpcLimits | None = None, certificates: Certificates | None = None, **options: Any
) -> AsyncIterator[int]:
    """A server; gives its port."""
    bodies = BodyReader(max_body=2**20, max_held_bytes=2**22, offload_above=2**16, decode_threads=1)
    app = GrpcApp(*both(NumpyService()), bodies, **options)
    listener = GrpcListener(app, "127.0.0.1", 0, limits, certificates)
    await listener.start()
    try:
        yield listener.port
    finally:
        await listener.close(0.0)


def secure_channel(port: int, roots: Authority, shown: Authority | None = None) -> Any:
    """A channel of a client that trusts one authority, and may show a certificate of another."""
    chain: tuple[bytes | None, bytes | None] = (None, None)
    if shown is not None:
        issued = shown.ca.issue_cert("client@example.org")
        chain = issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes()
    credentials = grpc.ssl_channel_credentials(roots.ca.cert_pem.bytes(), *chain)
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials)


async def live(channel: Any) -> Any:
    """Ask whether it lives; the status where that fails."""
    async with channel:
        try:
            await channel.unary_unary(LIVE)(b"", timeout=5)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK


async def test_calls_travel_over_tls(tmp_path: Path) -> None:
    """For who trusts the server's authority; others, and plain clients, get no answer. New files count at once."""
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "other")
    files = authority.server()
    looks = iter(range(0, 1000, 2))
    async with serving(certificates=Certificates(files, lambda: float(next(looks)))) as port:
        assert await live(secure_channel(port, authority)) is grpc.StatusCode.OK
        assert await live(secure_channel(port, other)) is grpc.StatusCode.UNAVAILABLE
        assert await live(grpc.aio.insecure_channel(f"127.0.0.1:{port}")) is grpc.StatusCode.UNAVAILABLE
        other.write(files)
        assert await live(secure_channel(port, other)) is grpc.StatusCode.OK
        assert await live(secure_channel(port, authority)) is grpc.StatusCode.UNAVAILABLE


async def test_grpc_clients_show_a_certificate_where_they_must(tmp_path: Path) -> None:
    """One of the authority that the server names."""
    authority, clients = Authority(tmp_path / "one"), Authority(tmp_path / "clients")
    files = authority.server(client_ca=clients.ca_file)
    async with serving(certificates=Certificates(files)) as port:
        assert await live(secure_channel(port, authority, clients)) is grpc.StatusCode.OK
        assert await live(secure_channel(port, authority)) is grpc.StatusCode.UNAVAILABLE
        assert await live(secure_channel(port, authority, authority)) is grpc.StatusCode.UNAVAILABLE


async def test_streams_leave_room_for_other_calls() -> None:
    """Those beyond the limit are refused; when one ends there is room again."""
    async with serving(streams=1) as port:
        client = Client(port)
        async with client.channel:
            watching = client.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=20)
            assert health_pb2.HealthCheckResponse.FromString(await watching.read()).status == 1
            refused = client.stream()
            code, _, metadata = await failure(refused.read())
            assert (code, metadata["code"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "queue_full")
            assert (await client.infer(request_of())).model_name == "double"
            watching.cancel()

            async def answered() -> bool:
                stream = client.stream()
                await stream.write(request_of().SerializeToString())
                with contextlib.suppress(grpc.aio.AioRpcError):
                    return await stream.read() is not grpc.aio.EOF
                return False

            while not await answered():  # noqa: ASYNC110 - nothing tells when the server has seen the end
                await asyncio.sleep(0)


async def test_a_stream_on_which_nothing_comes_ends() -> None:
    """After its answers, and without an error."""
    async with serving(stream_idle_s=0.05) as port:
        client = Client(port)
        async with client.channel:
            stream = client.stream()
            await stream.write(request_of().SerializeToString())
            answer = pb.ModelStreamInferResponse.FromString(await stream.read())
            assert answer.infer_response.model_name == "double"
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() is grpc.StatusCode.OK


class Http2:
    """An HTTP/2 client that sends the frames that a test says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> Http2:
        """Open a connection, and say hello."""
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        client.writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        client.frame(4, 0, 0, b"")
        return client

    def frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Send a frame."""
        self.writer.write(len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload)

    def begin(self, stream: int, path: str) -> None:
        """Begin a call, with the first bytes of a message that never comes whole."""
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "test",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        block = b"".join(
            b"\x00" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()
            for name, value in fields.items()
        )
        self.frame(1, 4, stream, block)
        self.frame(0, 0, stream, b"\x00" + (1000).to_bytes(4, "big") + b"half")

    async def ended_streams(self, count: int) -> set[int]:
        """The streams that the server ends, until there are so many."""
        ended: set[int] = set()
        while len(ended) < count:
            head = await self.reader.readexactly(9)
            await self.reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags = head[3], head[4]
            if kind == 3 or (kind in {0, 1} and flags & 1):
                ended.add(int.from_bytes(head[5:9], "big"))
        return ended


async def test_messages_that_do_not_arrive_are_given_up() -> None:
    """After the limit; calls that arrive meanwhile are answered."""
    async with serving(GrpcLimits(arrive_s=0.01)) as port:
        slow, client = await Http2.connect(port), Client(port)
        for stream, path in ((1, LIVE), (3, LIVE), (5, "/grpc.health.v1.Health/Watch")):
            slow.begin(stream, path)
        assert await slow.ended_streams(3) == {1, 3, 5}
        async with client.channel:
            assert (await client.infer(request_of())).model_name == "double"
        slow.writer.close()


async def test_reflection_waits_for_nobody() -> None:
    """It takes no key: what arrives slowly there is given up soon, however long other streams may pause."""
    async with serving(reflection_idle_s=0.01) as port:
        slow = await Http2.connect(port)
        slow.begin(1, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        assert await slow.ended_streams(1) == {1}
        slow.writer.close()


async def test_streams_whose_messages_do_not_arrive_make_room() -> None:
    """Those beyond the limit end, which have waited the longest; they get what they are owed."""
    async with serving(GrpcLimits(arriving=2, pause_s=0.0)) as port:
        slow, client = await Http2.connect(port), Client(port)
        async with client.channel:
            first = client.stream()
            await first.write(request_of().SerializeToString())
            assert not pb.ModelStreamInferResponse.FromString(await first.read()).error_message
            for stream in (1, 3, 5, 7):
                slow.begin(stream, f"/{INFERENCE.full_name}/ModelStreamInfer")
            assert await slow.ended_streams(2) == {1, 3}
            assert await first.read() is grpc.aio.EOF
            assert await first.code() is grpc.StatusCode.OK
        slow.writer.close()


async def test_a_call_without_a_message_is_told_so() -> None:
    """It ends at once."""
    async with serving() as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.stream_unary(LIVE)(timeout=20)
        await call.done_writing()
        code, details, _ = await failure(call)
        assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")
