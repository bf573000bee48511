"""Typed tensors that take much more room than their bytes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from api.protocol_service import NumpyService, both
from api.protocol_service import model as numpy_model
from api.rpc.conftest import Client, failure
from serve_app.api.grpc_app import GrpcApp
from serve_app.api.grpc_listener import GrpcListener
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer, ModelInfo, RequestOptions
from serve_app.http.body import BodyReader
from serve_app.payloads import Payload, TensorSpec

MIB = 2**20


class Watching(NumpyService):
    """Has a model for each datatype, which returns its input, and notes how many bytes are held before it is decoded.

    Attributes:
        bodies: Holds them.
        held: The highest number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bodies = BodyReader(max_body=4 * MIB, max_held_bytes=20 * MIB, offload_above=2**16, decode_threads=1)
        self.held = 0

    def find(self, model: str, version: str | None = None) -> ModelInfo:
        """The model of that datatype."""
        return numpy_model(
            model, inputs=(TensorSpec("x", model, (-1, -1)),), outputs=(TensorSpec("y", model, (-1, -1)),)
        )

    def precheck(
        self, model: str, priority: Priority | None, nbytes: int, tenant: str = "", weight: float = 1.0
    ) -> None:
        """Look."""
        super().precheck(model, priority, nbytes)
        self.held = max(self.held, self.bodies.held)

    async def submit(self, model: str, payload: Payload, options: RequestOptions) -> Answer:
        """Return the input."""
        assert isinstance(payload, dict)
        self.calls.append((model, payload, options))
        return replace(self.took, value={"y": payload["x"]})


@contextlib.asynccontextmanager
async def serving(service: Watching) -> AsyncIterator[Client]:
    """A client of a server."""
    listener = GrpcListener(GrpcApp(*both(service), service.bodies, typed_answers=True), "127.0.0.1", 0)
    await listener.start()
    client = Client(listener.port)
    try:
        yield client
    finally:
        await client.channel.close()
        await listener.close(0.0)


def typed(datatype: str, field: str, elements: list[Any], inputs: int = 1) -> pb.ModelInferRequest:
    """A request with these elements in a field of `contents`."""
    request = pb.ModelInferRequest(model_name=datatype)
    for _ in range(inputs):
        tensor = request.inputs.add(name="x", datatype=datatype, shape=(1, len(elements)))
        getattr(tensor.contents, f"{field}_contents").extend(elements)
    return request


@pytest.mark.parametrize(
    "request_",
    [
        typed("INT64", "int64", [0] * (MIB + 1)),
        typed("INT8", "int", [0] * (MIB + 1)),
        typed("BOOL", "bool", [False] * (MIB + 1)),
        typed("UINT32", "uint", [0] * (MIB // 2 + 1), inputs=2),
        typed("BYTES", "bytes", [b""] * (MIB // 2 + 1)),
        typed("BYTES", "bytes", [b"x" * 50] * (MIB // 16 + 1)),
    ],
    ids=["INT64", "INT8", "BOOL", "two of them", "BYTES", "longer BYTES"],
)
async def test_elements_of_one_byte_are_not_sent_by_the_million(request_: pb.ModelInferRequest) -> None:
    """Parsed, each would take up to 16 bytes, and all requests would wait meanwhile."""
    service = Watching()
    async with serving(service) as client:
        code, details, _ = await failure(client.infer(request_))
    assert (code, "raw_input_contents" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert (service.calls, service.bodies.held) == ([], 0)


@pytest.mark.parametrize(
    ("request_", "expanding"),
    [
        (typed("INT64", "int64", [0] * 500_000), 500_000),
        (typed("BYTES", "bytes", [b""] * 100_000), 200_000),
        (typed("BYTES", "bytes", [b"x" * MIB] * 2), 2 * 16),
        (typed("BYTES", "bytes", [b"x" * 200] * 10_000), 10_000 * 16),
        (typed("BYTES", "bytes", [b"x" * 50] * 60_000), 60_000 * 16),
        (typed("FP32", "fp32", [1.0] * (MIB // 2)), 0),
        (typed("FP32", "fp32", [1.0] * 20_000), 0),
    ],
    ids=["INT64", "BYTES", "large BYTES", "many BYTES", "short BYTES", "FP32", "less FP32"],
)
async def test_what_typed_tensors_take_is_counted(request_: pb.ModelInferRequest, expanding: int) -> None:
    """Until they are decoded; those that are as large as their bytes count as that."""
    service = Watching()
    async with serving(service) as client:
        answer = await client.infer(request_)
    sent, got = request_.inputs[0].contents, answer.outputs[0].contents
    assert len(got.SerializeToString()) == len(sent.SerializeToString())
    assert service.held - request_.ByteSize() == pytest.approx(15 * expanding, rel=0.001)
    assert service.bodies.held == 0
