"""Deadlines that a model cannot meet, alone or under load, and the classes that numbers name, as clients see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
import httpx
import pytest
from local_server import LocalServer

from benchmarks.faulty_models import make
from serve_app.api.open_inference import inference_pb2 as pb

SLOW, QUICK = -0.3, 1.0
"""What takes the model a few tenths of a second, and what takes it none."""
ADVICE = "name a longer deadline (X-Timeout-Ms, parameters.timeout)"
CLIENT = httpx.Client(timeout=120.0)


class Reply(NamedTuple):
    """What a client sees."""

    status: int
    code: str
    message: str
    retry_after: str | None
    priority: str | None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """Serves a model that is slower than its classes allow, under several names, and has four levels of priority."""
    folder = tmp_path_factory.mktemp("deadlines")
    make(folder / "slow" / "1" / "model.onnx", "slow")
    slow = {"path": str(folder / "slow"), "batching": {"max_rows": 1}}
    args = {
        "models": [
            *(slow | {"name": name} for name in ("unknown", "known")),
            slow | {"name": "cached", "cache": {"ttl_s": 60.0}},
        ],
        "classes": {
            "high": {"timeout_ms": 40_000},
            "normal": {"timeout_ms": 20},
            "low": {"timeout_ms": 30},
            "priorities": {"3": "normal", "4": "low"},
        },
    }
    with LocalServer(args) as server:
        yield server


def ask(server: LocalServer, model: str, value: float, *, priority: int = 0, **headers: str) -> Reply:
    """One row, by V2 over HTTP."""
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [value]}]
    found = CLIENT.post(
        f"{server.url}/v2/models/{model}/infer",
        json={"inputs": inputs, "parameters": {"priority": priority}},
        headers={name.replace("_", "-"): text for name, text in headers.items()},
    )
    body, told = found.json(), found.headers
    return Reply(
        found.status_code, body.get("code", ""), body.get("error", ""), told.get("retry-after"), told.get("x-priority")
    )


def ask_grpc(server: LocalServer, model: str, **parameters: int) -> Any:
    """One slow row, by gRPC: the error that it ends with."""
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=[1, 1]).contents.fp32_contents.append(SLOW)
    for name, value in parameters.items():
        request.parameters[name].uint64_param = value
    with grpc.insecure_channel(server.grpc) as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            call(request.SerializeToString(), timeout=60)
    return caught.value


def measure(server: LocalServer, model: str) -> float:
    """Have the model take its time once; what it is predicted to take from then on, seconds."""
    assert ask(server, model, SLOW, x_priority="high").status == 200
    latencies = CLIENT.get(f"{server.url}/status").json()["models"][model]["latency_s"]
    return float(next(iter(latencies.values()))["1"])


def test_a_model_that_nobody_has_measured_is_late_by_its_class(server: LocalServer) -> None:
    """And the message says which deadline it was and what to set."""
    late = ask(server, "unknown", SLOW)
    assert late[:4] == (
        504,
        "deadline_exceeded",
        (
            "the deadline of 20 ms passed before the answer was ready; the request names no deadline, and class normal"
            f" gives it 0.02 s: {ADVICE} or raise classes.normal.timeout_ms"
        ),
        None,
    )


@pytest.mark.parametrize("model", ["known", "cached"])
def test_a_slow_model_is_given_its_time_where_no_deadline_is_named(server: LocalServer, model: str) -> None:
    """A multiple of what it is measured to take, in any class; the answer tells how long that was."""
    solo_s = measure(server, model)
    assert solo_s > 0.03
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [SLOW]}]
    for header in ("low", "normal"):
        found = CLIENT.post(
            f"{server.url}/v2/models/{model}/infer",
            json={"inputs": inputs, "parameters": {"timings": True}},
            headers={"X-Priority": header, "Cache-Control": "no-cache"},
        )
        assert found.status_code == 200
        assert found.json()["parameters"]["timeout"] / 1e6 == pytest.approx(4 * solo_s, rel=0.9)


def test_a_deadline_that_is_too_short_for_an_idle_server_is_the_callers(server: LocalServer) -> None:
    """504 and DEADLINE_EXCEEDED, whether it passes or is refused at once; there is no time to come again after."""
    solo_s = measure(server, "known")
    replies = [ask(server, "known", SLOW, x_timeout_ms="20") for _ in range(12)]
    assert {(reply.status, reply.code, reply.retry_after) for reply in replies} == {(504, "deadline_exceeded", None)}
    refused = [reply.message for reply in replies if reply.message.startswith("the model takes about ")]
    assert len(refused) >= 8  # the others were let through to measure again, or ended a moment before
    assert all(f"alone; this request allows 0.02 s: {ADVICE}" in reply.message for reply in replies)
    for _ in range(3):
        error = ask_grpc(server, "known", timeout=20_000)
        assert (error.code(), ADVICE in error.details()) == (grpc.StatusCode.DEADLINE_EXCEEDED, True)
        assert {"code": "deadline_exceeded"}.items() <= dict(error.trailing_metadata()).items()
        assert "retry-after" not in dict(error.trailing_metadata())
    assert solo_s > 0.02


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "normal"), (1, "high"), (2, "normal"), (3, "normal"), (4, "low"), (5, "low"), (2**64 - 1, "low")],
)
def test_numbers_name_the_classes_that_are_configured(server: LocalServer, number: int, expected: str) -> None:
    """In the body and in the header; beyond the last one that is named all are the lowest."""
    assert ask(server, "known", QUICK, priority=number, x_timeout_ms="60000").priority == expected
    assert ask(server, "known", QUICK, x_priority=str(number), x_timeout_ms="60000").priority == expected


def test_numbers_that_have_no_64_bits_are_refused(server: LocalServer) -> None:
    """The message says which there are."""
    for number in (-1, 2**64):
        refused = ask(server, "known", QUICK, priority=number)
        assert (refused.status, refused.message) == (
            400,
            (
                "parameters.priority: expected 0 (the default class), or a number from 1 (the most urgent) to"
                " 18446744073709551615"
            ),
        )


def test_the_models_configuration_shows_the_levels(server: LocalServer) -> None:
    """As Triton's clients read them, over HTTP and gRPC."""
    batching = CLIENT.get(f"{server.url}/v2/models/known/config").json()["dynamic_batching"]
    assert (batching["priority_levels"], batching["default_priority_level"]) == (4, 2)
    timeouts = {
        level: policy["default_timeout_microseconds"] for level, policy in batching["priority_queue_policy"].items()
    }
    assert timeouts == {"1": 40_000_000, "2": 20_000, "3": 20_000, "4": 30_000}
    assert batching["default_queue_policy"]["default_timeout_microseconds"] == 30_000
    with grpc.insecure_channel(server.grpc) as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelConfig")
        answer = pb.ModelConfigResponse.FromString(call(pb.ModelConfigRequest(name="known").SerializeToString()))
    assert answer.config.dynamic_batching.priority_levels == 4
    assert answer.config.dynamic_batching.priority_queue_policy[3].default_timeout_microseconds == 20_000
