"""How a server is told to load its model anew: by the V2 repository API."""

from __future__ import annotations

import grpc
import httpx

from benchmarks.failure import BenchmarkError
from serve_app.api.open_inference import inference_pb2 as pb

_LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
_WITHIN_S = 120.0


def load_by_http(url: str, model: str) -> None:
    """Load a model, and wait until it is. Raises `BenchmarkError` with what the server says."""
    try:
        answer = httpx.post(f"{url}/v2/repository/models/{model}/load", timeout=_WITHIN_S)
    except httpx.HTTPError as error:
        raise BenchmarkError(f"a load failed: {error!r}") from None
    if answer.status_code != httpx.codes.OK:
        raise BenchmarkError(f"a load failed: {answer.status_code} {answer.text[:500]}")


def load_by_grpc(address: str, model: str) -> None:
    """The same by gRPC."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            _LOAD,
            request_serializer=pb.RepositoryModelLoadRequest.SerializeToString,
            response_deserializer=pb.RepositoryModelLoadResponse.FromString,
        )
        try:
            call(pb.RepositoryModelLoadRequest(model_name=model), timeout=_WITHIN_S)
        except grpc.RpcError as error:
            raise BenchmarkError(f"a load failed: {str(error)[:500]}") from None
