"""A gRPC server that serves a `NumpyService`, and a client of it that uses this server's own messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import grpc.aio
import numpy as np
import pytest

from api.conftest import LIMITS
from api.protocol_service import NumpyService, both
from serve_app.api.grpc_app import SERVICES, GrpcApp
from serve_app.api.grpc_listener import GrpcLimits, GrpcListener
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.http.body import BodyReader

INFERENCE = SERVICES[0]
FOUR = np.array([[1, 2, 3, 4]], np.float32)


class Client:
    """Calls by name, with messages."""

    def __init__(self, port: int) -> None:
        self.channel: Any = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    def raw(self, name: str, body: bytes, metadata: Sequence[tuple[str, str]] = (), timeout: float | None = 20) -> Any:
        """Start a call with bytes that may be no message. Awaiting it gives bytes."""
        return self.channel.unary_unary(f"/{INFERENCE.full_name}/{name}")(body, metadata=metadata, timeout=timeout)

    async def call(self, name: str, request: Any, metadata: Sequence[tuple[str, str]] = ()) -> Any:
        """Make a call and read its answer."""
        answer = await self.raw(name, request.SerializeToString(), metadata)
        return getattr(pb, INFERENCE.methods_by_name[name].output_type.name).FromString(answer)

    async def infer(self, request: pb.ModelInferRequest, *metadata: tuple[str, str]) -> pb.ModelInferResponse:
        """Infer."""
        return pb.ModelInferResponse.FromString(await self.raw("ModelInfer", request.SerializeToString(), metadata))

    def stream(self, name: str = "ModelStreamInfer", metadata: Sequence[tuple[str, str]] = ()) -> Any:
        """Open a stream of bytes."""
        return self.channel.stream_stream(f"/{INFERENCE.full_name}/{name}")(metadata=metadata, timeout=20)


async def next_of(stream: Any) -> pb.ModelStreamInferResponse:
    """The next answer."""
    return pb.ModelStreamInferResponse.FromString(await stream.read())


class Nobody:
    """Whoever carries a call, saying nothing and listening to nothing."""

    def invocation_metadata(self) -> None:
        """None came."""

    def peer(self) -> str:
        """From nowhere."""
        return ""

    def set_code(self, code: grpc.StatusCode) -> None:
        """Not told to anybody."""

    def set_details(self, details: str) -> None:
        """Not told to anybody."""

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """Not told to anybody."""


async def failure(call: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """How a call that must fail has failed: status, details and trailing metadata."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = caught.value
    return error.code(), str(error.details()), dict(error.trailing_metadata())


def request_of(
    model: str = "double", arrays: Iterable[tuple[str, str, Any]] = (("x", "FP32", FOUR),), **fields: Any
) -> pb.ModelInferRequest:
    """A request with raw inputs.

    Args:
        model: Its model.
        arrays: Name, datatype and array of each input.
        **fields: Further fields of the message.
    """
    request = pb.ModelInferRequest(model_name=model, **fields)
    for name, datatype, array in arrays:
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def parameter(value: Any, kind: str) -> pb.InferParameter:
    """A parameter of one of the kinds."""
    return pb.InferParameter(**{f"{kind}_param": value})


@pytest.fixture
def service() -> NumpyService:
    """What is served."""
    return NumpyService()


@pytest.fixture
def bodies() -> BodyReader:
    """Counts messages."""
    return BodyReader(
        max_body=LIMITS.max_body,
        max_held_bytes=LIMITS.max_held_bytes,
        offload_above=LIMITS.offload_above,
        decode_threads=2,
    )


@pytest.fixture
async def listener(service: NumpyService, bodies: BodyReader) -> AsyncIterator[GrpcListener]:
    """A server on a port of its own."""
    app = GrpcApp(*both(service), bodies, open_administration=True)
    # Larger messages than the application takes: what it says to them is said by it.
    listener = GrpcListener(app, "127.0.0.1", 0, GrpcLimits(max_message=1_000_000, calls=400))
    await listener.start()
    yield listener
    await listener.close(0.0)


@pytest.fixture
async def client(listener: GrpcListener) -> AsyncIterator[Client]:
    """Talks to that server over a connection."""
    client = Client(listener.port)
    yield client
    await client.channel.close()


@pytest.fixture
async def typed_client(service: NumpyService, bodies: BodyReader) -> AsyncIterator[Client]:
    """Talks to a server that answers typed tensors with typed tensors."""
    listener = GrpcListener(GrpcApp(*both(service), bodies, typed_answers=True), "127.0.0.1", 0)
    await listener.start()
    client = Client(listener.port)
    yield client
    await client.channel.close()
    await listener.close(0.0)
