"""A model that fails, as its clients see it: bad inputs, an open breaker, a fallback, and recovery."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
import httpx
import pytest
from local_server import LocalServer

from benchmarks.faulty_models import BAD, make
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app_client import Client

IMPATIENT = {"window_s": 1e-6, "min_samples": 3}
"""Three failures without an answer between them open the breaker, whoever is to blame."""


CLIENT = httpx.Client(timeout=30.0)


class Reply(NamedTuple):
    """What a client sees."""

    status: int
    y: Any
    code: str
    retry_after: str
    variant: str


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """Serves a faulty model under several names."""
    folder = tmp_path_factory.mktemp("faulty")
    for kind in ("raises", "wrong_shape", "gives_nan"):
        make(folder / kind / "1" / "model.onnx", kind)
    raises = {"path": str(folder / "raises")}
    light = {"name": "light", "path": str(folder / "wrong_shape")}
    models = [
        raises | {"name": "patient"},
        raises | {"name": "impatient", "breaker": IMPATIENT},
        raises | {"name": "forgiving", "breaker": IMPATIENT | {"reset_s": 1e-6, "probes": 1}},
        raises | {"name": "never", "breaker": IMPATIENT | {"enabled": False}},
        raises | {"name": "backed", "breaker": IMPATIENT, "variants": [light], "fallbacks": ["light"]},
        raises | {"name": "stepped", "breaker": IMPATIENT, "variants": [light], "fallbacks": ["light"]},
        {"name": "numbers", "path": str(folder / "gives_nan"), "health": {"refuse_non_finite": True}},
    ]
    pipeline = {
        "name": "chain",
        "inputs": {"x": {"type": "tensor", "datatype": "FP32", "shape": [-1, 1]}},
        "steps": [{"name": "only", "model": "stepped", "input": "x"}],
        "outputs": {"y": "only"},
    }
    with LocalServer({"models": models, "pipelines": [pipeline]}) as server:
        yield server


def ask(server: LocalServer, model: str, value: float, **headers: str) -> Reply:
    """One row."""
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [value]}]
    found = CLIENT.post(
        f"{server.url}/v2/models/{model}/infer",
        json={"inputs": inputs},
        headers={name.replace("_", "-"): text for name, text in headers.items()},
    )
    body = found.json()
    y = body["outputs"][0]["data"][0] if found.status_code == 200 else None
    told = found.headers
    return Reply(found.status_code, y, body.get("code", ""), told.get("retry-after", ""), told.get("x-variant", ""))


def test_a_client_with_bad_rows_does_not_lock_others_out(faulty: LocalServer) -> None:
    """However many it sends: the replica still runs what it should."""
    for _ in range(30):
        assert ask(faulty, "patient", BAD)[:3] == (500, None, "inference_failed")
    assert ask(faulty, "patient", 2.0)[:2] == (200, 4.0)


def test_a_model_that_answers_nothing_is_not_asked_any_more(faulty: LocalServer) -> None:
    """503 with the time until the next try, in the status and in the metrics."""
    for _ in range(3):
        assert ask(faulty, "impatient", BAD).status == 500
    refused = ask(faulty, "impatient", 2.0)
    assert refused[:3] == (503, None, "model_unavailable")
    assert 1 <= int(refused.retry_after) <= 60
    exact = CLIENT.get(f"{faulty.url}/status").json()["models"]["impatient"]["breaker"]["builds"]["exact"]
    assert (exact["state"], exact["reason"].startswith("3 failures and no answer")) == ("open", True)
    page = CLIENT.get(f"{faulty.url}/metrics").text
    for line in (
        'serve_app_breaker_state{model="impatient",variant=""} 2.0',
        'serve_app_breaker_transitions_total{model="impatient",to="open",variant=""} 1.0',
        'serve_app_breaker_refused_total{model="impatient",variant=""} 1.0',
        'serve_app_ejections_total{model="impatient"} 0.0',
    ):
        assert line in page


def test_it_is_asked_again_and_answers_close_it(faulty: LocalServer) -> None:
    """With one probe, its answer does."""
    for _ in range(3):
        ask(faulty, "forgiving", BAD)
    assert ask(faulty, "forgiving", 2.0)[:2] == (200, 4.0)
    breaker = CLIENT.get(f"{faulty.url}/status").json()["models"]["forgiving"]["breaker"]
    assert breaker["builds"]["exact"]["state"] == "closed"
    assert breaker["ejected_replicas"] == {}


def test_without_breakers_it_is_asked_for_ever(faulty: LocalServer) -> None:
    """And the status says that there are none."""
    for _ in range(10):
        assert ask(faulty, "never", BAD).status == 500
    assert ask(faulty, "never", 2.0).status == 200
    assert CLIENT.get(f"{faulty.url}/status").json()["models"]["never"]["breaker"] is None


def test_a_fallback_answers_meanwhile(faulty: LocalServer) -> None:
    """For those who allow it, and by its name."""
    assert ask(faulty, "backed", 2.0).variant == ""
    for _ in range(3):
        ask(faulty, "backed", BAD)
    answered = ask(faulty, "backed", 2.0)
    assert (answered.status, answered.y, answered.variant) == (200, 4.0, "light")
    assert ask(faulty, "backed", 2.0, x_fallback="never").status == 503


def test_a_pipeline_tells_that_a_fallback_answered_a_step(faulty: LocalServer) -> None:
    """In the header, and in the parameters of V2, of HTTP and of gRPC."""
    assert ask(faulty, "chain", 2.0).variant == ""
    for _ in range(3):
        ask(faulty, "chain", BAD)
    answered = ask(faulty, "chain", 2.0)
    assert (answered.status, answered.y, answered.variant) == (200, 4.0, "only=light")

    predicted = CLIENT.post(f"{faulty.url}/v1/models/chain/predict", json={"x": [[2.0]]})
    assert (predicted.json(), predicted.headers["x-variant"]) == ({"y": [[4.0]]}, "only=light")
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [2.0]}
    v2 = CLIENT.post(f"{faulty.url}/v2/models/chain/infer", json={"inputs": [tensor]}).json()
    assert v2["parameters"] == {"variant": "only=light"}
    request = pb.ModelInferRequest(model_name="chain")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 1]).contents.fp32_contents.append(2.0)
    with grpc.insecure_channel(faulty.grpc) as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer = pb.ModelInferResponse.FromString(call(request.SerializeToString(), timeout=60))
    assert answer.parameters["variant"].string_param == "only=light"
    with Client(faulty.url) as client:
        assert client.run_pipeline("chain", {"x": [[2.0]]}).served.variant == "only=light"


def test_what_is_no_number_is_refused_where_that_is_asked_for(faulty: LocalServer) -> None:
    """With an error that names the output."""
    assert ask(faulty, "numbers", BAD)[:3] == (500, None, "inference_failed")
    assert ask(faulty, "numbers", 2.0)[:2] == (200, 4.0)
