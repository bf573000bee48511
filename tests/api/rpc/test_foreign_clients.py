"""Triton's and KServe's clients and gRPC's own, in environments of their own, against a server without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from external_clients import needs_clients, needs_perf_analyzer, run_perf_analyzer, run_script

from api.protocol_service import NumpyService, both, model
from serve_app.api.grpc_app import GrpcApp
from serve_app.api.grpc_listener import GrpcListener
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer, ModelInfo, RequestOptions
from serve_app.errors import InferenceFailed, ModelNotFound
from serve_app.http.body import BodyReader
from serve_app.payloads import Payload, TensorSpec

_PAIR = tuple(TensorSpec(f"INPUT{at}", "INT32", (-1, 16)) for at in range(2))
_RESULTS = tuple(TensorSpec(f"OUTPUT{at}", "INT32", (-1, 16)) for at in range(2))
SIMPLE = {
    info.name: info
    for info in (
        model("sum_diff", inputs=_PAIR, outputs=_RESULTS),
        model(
            "string_identity",
            inputs=(TensorSpec("INPUT0", "BYTES", (-1, -1)),),
            outputs=(TensorSpec("OUTPUT0", "BYTES", (-1, -1)),),
        ),
        model(
            "count_down",
            inputs=(TensorSpec("INPUT0", "INT32", (-1, 1)),),
            outputs=(TensorSpec("OUTPUT0", "INT32", (-1, 1)),),
        )._replace(streams=True, stream_timeout_s=60.0),
    )
}


class SimpleService(NumpyService):
    """Serves the models that the scripts ask for."""

    @property
    def models(self) -> Mapping[str, ModelInfo]:
        """All."""
        return SIMPLE

    def find(self, model: str, version: str | None = None) -> ModelInfo:
        """Look one up."""
        if model not in SIMPLE or version not in {None, "1"}:
            raise ModelNotFound(f"there is no model {model!r} of version {version or '1'!r} here")
        return SIMPLE[model]

    async def submit(self, model: str, payload: Payload, options: RequestOptions) -> Answer:
        """Compute."""
        self.calls.append((model, payload, options))
        assert isinstance(payload, dict)
        first = payload["INPUT0"]
        outputs: dict[str, Any] = {"OUTPUT0": first}
        if model == "sum_diff":
            outputs = {"OUTPUT0": first + payload["INPUT1"], "OUTPUT1": first - payload["INPUT1"]}
        return Answer(outputs, options.priority or Priority.NORMAL, 0.0, 0.0)

    async def stream(self, model: str, payload: Payload, options: RequestOptions) -> AsyncGenerator[Answer, None]:
        """Count down to one; a number that is negative fails after one part."""
        assert isinstance(payload, dict)
        start = int(payload["INPUT0"][0, 0])
        for number in range(abs(start), 0, -1):
            yield Answer({"OUTPUT0": np.array([[number]], np.int32)}, Priority.NORMAL, 0.0, 0.0)
            if start < 0:
                raise InferenceFailed("it broke")

    def statistics(self, model: str) -> Mapping[str, Any]:
        """Counters that grow."""
        count = sum(name == model for name, _, _ in self.calls)
        duration = {"count": count, "ns": 1000 * count}
        names = ("success", "queue", "compute_input", "compute_infer", "compute_output")
        return {
            "name": model,
            "version": "1",
            "inference_count": count,
            "execution_count": count,
            "inference_stats": dict.fromkeys(names, duration),
        }


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """Where it is served."""
    bodies = BodyReader(max_body=2**20, max_held_bytes=2**24, offload_above=2**16, decode_threads=2)
    listener = GrpcListener(GrpcApp(*both(SimpleService()), bodies), "127.0.0.1", 0)
    await listener.start()
    yield f"127.0.0.1:{listener.port}"
    await listener.close(0.0)


@needs_clients
@pytest.mark.parametrize("name", ["triton_grpc.py", "triton_decoupled.py", "kserve_grpc.py", "standard_grpc.py"])
async def test_clients(address: str, name: str) -> None:
    """Everything that a client does works as its users expect."""
    await asyncio.to_thread(run_script, name, address)


@needs_clients
async def test_the_interface_is_that_of_tritons_client() -> None:
    """Every message and call of ours has the names, numbers and types of Triton's; no call is missing."""
    await asyncio.to_thread(run_script, "triton_interface.py", str(Path(pb.__file__).with_name("definitions.binpb")))


@needs_perf_analyzer
@pytest.mark.parametrize("options", [[], ["--streaming"]], ids=["calls", "stream"])
async def test_perf_analyzer(address: str, options: list[str]) -> None:
    """Triton's load generator measures, with the server's statistics."""
    said = await asyncio.to_thread(run_perf_analyzer, "grpc", address, "sum_diff", *options)
    assert "Concurrency: 2, throughput:" in said
    assert "Inference count:" in said
