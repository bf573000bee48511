"""gRPC's own health and reflection clients. Takes an address; fails with a traceback."""

from __future__ import annotations

import sys
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVICE = "inference.GRPCInferenceService"


def status(call: Any, request: Any) -> grpc.StatusCode:
    """How a call ends."""
    try:
        call(request, timeout=10)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def health(channel: grpc.Channel) -> None:
    """The server, its service and a model; asked for and watched."""
    stub: Any = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE, "sum_diff"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, (name, answer)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=30)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()
    assert status(stub.Check, health_pb2.HealthCheckRequest(service="nothing")) == grpc.StatusCode.NOT_FOUND


def reflection(channel: grpc.Channel) -> None:
    """A client that knows nothing but the name of the service finds its calls and their messages."""
    database = ProtoReflectionDescriptorDatabase(channel)
    assert SERVICE in database.get_services()
    file = database.FindFileContainingSymbol(SERVICE)
    (service,) = file.service
    assert {"ModelInfer", "ModelStreamInfer", "ModelConfig"} <= {method.name for method in service.method}
    assert "ModelInferRequest" in {message.name for message in file.message_type}


def unknown_call(channel: grpc.Channel) -> None:
    """A call that the service does not have is UNIMPLEMENTED."""
    assert status(channel.unary_unary(f"/{SERVICE}/ModelDream"), b"") == grpc.StatusCode.UNIMPLEMENTED


def main(address: str) -> None:
    """Check everything."""
    with grpc.insecure_channel(address) as channel:
        for each in (health, reflection, unknown_call):
            each(channel)
            print("ok", each.__name__, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
