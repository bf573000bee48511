"""Outputs as classes, over gRPC: the same texts as over HTTP."""

from __future__ import annotations

import grpc

from api.rpc.conftest import Client, failure, request_of
from serve_app.api.open_inference import inference_pb2 as pb


def _classes(count: int) -> pb.ModelInferRequest:
    request = request_of()
    request.outputs.add(name="y").parameters["classification"].int64_param = count
    return request


async def test_classes_come_as_bytes(client: Client) -> None:
    """Raw, as the inputs were."""
    response = await client.infer(_classes(2))

    (output,) = response.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("y", "BYTES", [1, 2])
    first, second = b"8.000000:3", b"6.000000:2"
    assert response.raw_output_contents[0] == b"\x0a\0\0\0" + first + b"\x0a\0\0\0" + second


async def test_a_number_of_classes_that_is_none_is_refused(client: Client) -> None:
    """Naming the field."""
    code, details, _ = await failure(client.infer(_classes(-1)))

    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "outputs[0].parameters.classification: expected the number of classes" in details
