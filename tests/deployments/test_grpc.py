"""gRPC of a real server, on the router's own port and on Ray Serve's, asked by clients of other servers."""

from __future__ import annotations

from typing import Any

import grpc
import httpx
import pytest
from external_clients import needs_clients, needs_perf_analyzer, run_perf_analyzer, run_script

from serve_app.api.open_inference import inference_pb2 as pb

pytestmark = pytest.mark.cluster


def call(address: str, name: str, body: bytes, timeout: float = 30.0, *metadata: tuple[str, str]) -> bytes:
    """Make one call."""
    channel: Any = grpc.insecure_channel(address)
    with channel:
        answer: bytes = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")(
            body, timeout=timeout, metadata=metadata
        )
    return answer


@needs_clients
@pytest.mark.parametrize("name", ["triton_grpc.py", "kserve_grpc.py", "standard_grpc.py"])
def test_clients(grpc_address: str, name: str) -> None:
    """All that they do works on both ports: calls, streams, health and reflection."""
    run_script(name, grpc_address)


@needs_perf_analyzer
@pytest.mark.parametrize("options", [(), ("--streaming",)], ids=["calls", "stream"])
def test_perf_analyzer(grpc_address: str, options: tuple[str, ...]) -> None:
    """Triton's load generator measures, with the server's statistics."""
    said = run_perf_analyzer("grpc", grpc_address, "sum_diff", *options)
    assert "Concurrency: 2, throughput:" in said
    assert "Inference count:" in said


def test_both_protocols_tell_the_same_of_a_model(client: httpx.Client, grpc_address: str) -> None:
    """The configuration of a model as users have it."""
    config = client.get("/v2/models/digits/config").json()
    answer = pb.ModelConfigResponse.FromString(
        call(grpc_address, "ModelConfig", pb.ModelConfigRequest(name="digits").SerializeToString())
    )
    assert [tensor.name for tensor in answer.config.input] == [tensor["name"] for tensor in config["input"]]
    assert answer.config.max_batch_size == config["max_batch_size"]


def test_errors_tell_their_code(grpc_address: str) -> None:
    """Status, message, and our code among the metadata: nothing on the way replaces them."""
    request = pb.ModelInferRequest(model_name="sum_diff", id="1")
    for body, status, code in (
        (request.SerializeToString(), grpc.StatusCode.INVALID_ARGUMENT, "invalid_request"),
        (b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT, "invalid_request"),
        (b"\x0a\x01x", grpc.StatusCode.NOT_FOUND, "model_not_found"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call(grpc_address, "ModelInfer", body)
        error: Any = caught.value
        assert error.code() == status
        assert dict(error.trailing_metadata())["code"] == code
        assert "Traceback" not in error.details()


def test_messages_over_the_limit_are_refused(grpc_address: str) -> None:
    """The routers' limit counts on both ports, whoever enforces it."""
    request = pb.ModelInferRequest(model_name="sum_diff", raw_input_contents=[bytes(5 * 2**20)])
    with pytest.raises(grpc.RpcError) as caught:
        call(grpc_address, "ModelInfer", request.SerializeToString())
    assert caught.value.code() in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT}
