"""The service between protocols and dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from runtime_harness import MODEL, Serving, Transport, classes, make_dispatcher, serve, tensor

from serve_app.domain.agreed import Told
from serve_app.domain.priority import Priority
from serve_app.domain.service import ModelInfo, RequestOptions
from serve_app.errors import InvalidRequest, ModelNotFound, QueueFull, ServeAppError
from serve_app.payloads import Compute, Media, ModelSignature, TensorSpec
from serve_app.processors import create_processor
from serve_app.processors.processor import Cost, Processor
from serve_app.router.served import cost_of

SIGNATURE = ModelSignature((TensorSpec("x", "FP32", (-1, -1)),), (TensorSpec("y", "FP32", (-1, -1)),))


def make_service(
    transport: Transport,
    *,
    on_demand: bool = False,
    processor: Processor | None = None,
    **changes: Any,
) -> Serving:
    """A service of one tensor model; ``changes`` go to the dispatcher."""
    dispatcher, metrics = make_dispatcher(transport, **changes)
    info = ModelInfo(
        name=MODEL,
        version="3",
        versions=("3",),
        task="tensors",
        signature=SIGNATURE,
        max_rows=4,
        max_request_rows=8,
        default_timeout_s={Priority.HIGH: 1.0, Priority.NORMAL: 5.0, Priority.LOW: 30.0},
        labels=(),
    )
    return serve(info, dispatcher, metrics, processor=processor, on_demand=on_demand)


async def test_a_request_is_answered_with_its_class_and_times() -> None:
    """The class asked for is the class told; the deadline of the class travels with the entry."""
    transport = Transport()
    service = make_service(transport)
    asking = asyncio.ensure_future(service.inference.submit(MODEL, tensor(2), RequestOptions(Priority.HIGH)))
    sent = await transport.next()
    assert 0.0 < sent.bundle.entries[0].budget_s <= 1.0
    sent.succeed()
    answer = await asking
    assert answer.priority is Priority.HIGH
    assert answer.value["x"].tolist() == [[2.0]]
    assert 0.0 <= answer.queue_s <= answer.total_s


async def test_unknown_models_and_versions_are_named_with_what_there_is() -> None:
    """A typo shows in the message."""
    service = make_service(Transport())
    with pytest.raises(ModelNotFound, match=r"^Request for unknown model: there is no 'modle' here; models: model"):
        service.inference.find("modle")
    with pytest.raises(
        ModelNotFound, match=r"^Request for unknown model: 'model' has no version '4' here; versions: 3"
    ):
        service.inference.find(MODEL, "4")


async def test_a_request_with_too_many_rows_is_refused() -> None:
    """The limit and the number are in the message."""
    service = make_service(Transport())
    with pytest.raises(InvalidRequest, match="has 9 rows; model model takes at most 8"):
        await service.inference.submit(MODEL, {"x": np.zeros((9, 1), np.float32)}, RequestOptions())


async def test_media_for_a_tensor_model_are_refused_with_the_way_to_go() -> None:
    """There is no processor to decode them."""
    service = make_service(Transport())
    with pytest.raises(InvalidRequest, match=f"POST /v2/models/{MODEL}/infer"):
        await service.inference.submit(MODEL, Media(b"", "image/png", {}), RequestOptions())


async def test_tensors_of_a_media_model_cost_what_its_media_cost(tmp_path: Path) -> None:
    """By the processor's buckets; longer ones than it would make are refused with the limit."""
    signature = ModelSignature((TensorSpec("x", "FP32", (-1, -1)),), (TensorSpec("y", "FP32", (-1, 2)),))
    options = {"sampling_rate": 8000, "max_seconds": 1.0}
    processor = create_processor("audio-classification", signature, tmp_path, options)
    service = make_service(Transport(), processor=processor)
    info = service.inference.find(MODEL)

    assert cost_of(info, processor, {"x": np.zeros((3, 4001), np.float32)}) == Cost(3, 4500)
    with pytest.raises(InvalidRequest, match="input 'x' has 8001 samples; this model takes at most 8000"):
        await service.inference.submit(MODEL, {"x": np.zeros((1, 8001), np.float32)}, RequestOptions())
    assert cost_of(info, None, {"x": np.zeros((3, 9000), np.float32)}) == Cost(3, 0)


def outcomes(page: bytes) -> dict[tuple[str, str, str], float]:
    """Requests by model, class and outcome."""
    return {
        (sample.labels["model"], sample.labels["priority"], sample.labels["outcome"]): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name == "serve_app_requests_total"
    }


async def full_service() -> tuple[Serving, Callable[[], Awaitable[None]]]:
    """A service whose class `normal` has no room: one request is executed, one waits. And what lets both end."""
    transport = Transport()
    service = make_service(transport, max_rows=1, limits=classes(queue_entries=1))
    tasks = []
    for _ in range(2):
        tasks.append(asyncio.ensure_future(service.inference.submit(MODEL, tensor(0), RequestOptions())))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def finish() -> None:
        for _ in tasks:
            (await transport.next()).succeed()
        await asyncio.gather(*tasks)

    return service, finish


async def test_refusals_are_counted_once() -> None:
    """Those of the scheduler by the scheduler, all others as adapters tell; names that are not served share a label."""
    service, finish = await full_service()
    seen = []
    with pytest.raises(ServeAppError) as early:
        service.inference.precheck(MODEL, None, 8)
    with pytest.raises(ServeAppError) as full:
        await service.inference.submit(MODEL, tensor(0), RequestOptions())
    with pytest.raises(ServeAppError) as empty:
        await service.inference.submit(MODEL, {}, RequestOptions())
    with pytest.raises(ServeAppError) as unknown:
        await service.inference.submit("modle", tensor(0), RequestOptions())
    for error, model in ((early, MODEL), (full, MODEL), (empty, MODEL), (unknown, "modle")):
        seen.append((error.value.code, error.value.counted))
        if not error.value.counted:
            service.inference.refused(model, error.value.code)
    service.inference.refused("", "invalid_request")
    await finish()

    assert seen == [
        ("queue_full", True),
        ("queue_full", True),
        ("invalid_request", False),
        ("model_not_found", False),
    ]
    page, _ = await service.administration.metrics()
    assert outcomes(page) == {
        (MODEL, "normal", "ok"): 2.0,
        (MODEL, "normal", "queue_full"): 2.0,
        (MODEL, "unknown", "invalid_request"): 1.0,
        ("unknown", "unknown", "model_not_found"): 1.0,
        ("unknown", "unknown", "invalid_request"): 1.0,
    }
    assert service.administration.statistics(MODEL)["inference_stats"]["fail"]["count"] == 3


async def test_a_full_class_is_refused_before_anything_is_decoded() -> None:
    """`precheck` knows without a payload."""
    service, finish = await full_service()
    with pytest.raises(QueueFull):
        service.inference.precheck(MODEL, None, 8)
    await finish()
    service.inference.precheck(MODEL, None, 8)


async def test_readiness_means_that_a_replica_is_within_reach() -> None:
    """A model that starts on demand is ready without one; any other is not."""
    assert make_service(Transport(), replicas=("a",)).administration.ready()
    assert not make_service(Transport(), replicas=()).administration.ready()
    assert make_service(Transport(), replicas=(), on_demand=True).administration.ready()


async def test_statistics_count_rows_runs_and_times() -> None:
    """Every field that Triton's tools read is there."""
    transport = Transport()
    service = make_service(transport)
    asking = asyncio.ensure_future(service.inference.submit(MODEL, tensor(0), RequestOptions()))
    (await transport.next()).succeed()
    await asking
    statistics = service.administration.statistics(MODEL)
    assert (statistics["inference_count"], statistics["execution_count"]) == (1, 1)
    assert statistics["inference_stats"]["success"]["count"] == 1
    assert statistics["inference_stats"]["compute_infer"]["ns"] == 1_000_000


@pytest.mark.parametrize(
    "payload",
    [{}, {"x": np.float32(1.0)}],
    ids=["no tensor", "no rows dimension"],
)
async def test_tensors_without_a_number_of_rows_are_refused(payload: Any) -> None:
    """Other applications call the service directly: no protocol has checked what they send."""
    with pytest.raises(InvalidRequest, match="same number of rows"):
        await make_service(Transport()).inference.submit(MODEL, payload, RequestOptions())


async def test_the_size_of_a_payload_without_a_body_is_counted() -> None:
    """The bounds in bytes, and the choice of transport, hold for calls of other applications too."""
    transport = Transport()
    service = make_service(transport)
    asking = asyncio.ensure_future(service.inference.submit(MODEL, {"x": np.zeros((2, 100))}, RequestOptions()))
    sent = await transport.next()
    assert sent.nbytes == 1600
    sent.succeed()
    await asking


async def test_the_status_tells_of_any_replica_that_is_not_warm() -> None:
    """Nothing is said while there is none."""
    service = make_service(Transport())
    (model,) = service.inference.models
    said = []
    for reasons in ([], [None], [None, "it fails"], [None, None], []):
        service.models.on_warm_up(model, [Told(not_warmed=reason) for reason in reasons])
        said.append(service.administration.status()["models"][model].get("warm_up"))
    assert said == [None, {"warmed": True}, {"warmed": False, "reason": "it fails"}, {"warmed": True}, None]


async def test_the_status_tells_what_a_replica_computes_with() -> None:
    """As long as one has told."""
    service = make_service(Transport())
    (model,) = service.inference.models
    said = []
    on_gpu = Compute(1, 1, "so its device wants it", device="cuda:1 NVIDIA H100", row_sizes=(1, 3))
    for told in ([], [Told()], [Told(), Told(compute=Compute(1, 2, "it pays", 64))], [Told(compute=on_gpu)] * 2):
        service.models.on_warm_up(model, told)
        status = service.administration.status()["models"][model]
        said.append([status.get(key) for key in ("compute", "devices")])
    assert said == [
        [None, None],
        [None, None],
        [Compute(1, 2, "it pays", 64)._asdict(), {"": 1}],
        [on_gpu._asdict(), {"cuda:1 NVIDIA H100": 2}],
    ]
    assert on_gpu.told == "1 thread, 1 instance: so its device wants it; batches are filled up to 1, 3 rows"
