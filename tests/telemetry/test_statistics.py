"""Statistics of the V2 extension: of one router, and of several together."""

from __future__ import annotations

from typing import Any

import pytest
from runtime_harness import MODEL, Transport, make_dispatcher, submit, tensor

from serve_app.domain.service import ModelInfo
from serve_app.payloads import BundleResult, Execution, Failure, ModelSignature, Success
from serve_app.telemetry.metrics import ModelStatistics
from serve_app.telemetry.statistics import describe, total

INFO = ModelInfo(MODEL, "1", ("1",), "tensors", ModelSignature((), ()), 8, 8, {}, ())
DURATIONS = {
    *("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
}


async def _answered(*executions: Execution, results: tuple[Any, ...] = (Success("fine"),)) -> ModelStatistics:
    """What was counted of one bundle."""
    transport = Transport()
    dispatcher, metrics = make_dispatcher(transport)
    tasks = [submit(dispatcher, tensor(1), rows=2) for _ in results]
    sent = await transport.next()
    sent.answer.set_result(BundleResult(list(results), list(executions), 0.125, 0.0, 0.5))
    for task in tasks:
        try:
            await task
        except Exception:
            continue
    return metrics.statistics(MODEL)


async def test_rows_are_inferences_and_runs_are_executions() -> None:
    """With every field that Triton's tools read."""
    numbers = await _answered(Execution(2, 0, 0.25))

    told = describe(INFO, numbers, numbers.last_arrival or 0.0)

    assert (told["inference_count"], told["execution_count"]) == (2, 1)
    assert set(told["inference_stats"]) == DURATIONS
    assert told["inference_stats"]["compute_infer"] == {"count": 1, "ns": 250_000_000}
    assert told["batch_stats"] == [
        {
            "batch_size": 2,
            "compute_input": {"count": 1, "ns": 125_000_000},
            "compute_infer": {"count": 1, "ns": 250_000_000},
            "compute_output": {"count": 1, "ns": 500_000_000},
        }
    ]
    assert told["last_inference"] > 1_600_000_000_000


async def test_failed_rows_are_no_inferences() -> None:
    """Only what was answered counts."""
    numbers = await _answered(Execution(4, 0, 0.25), results=(Success("fine"), Failure("inference_failed", "bad")))

    assert (numbers.rows, numbers.failed) == (2, 1)


async def test_a_run_of_several_bundles_counts_once() -> None:
    """Each of them brings its part of it."""
    numbers = await _answered(Execution(8, 0, 0.25))

    assert numbers.executions == pytest.approx(0.25)
    assert numbers.batches[8].execute_s == pytest.approx(0.0625)


async def test_a_model_that_nobody_asked_has_no_last_inference() -> None:
    """It is 0 then, as in Triton."""
    told = describe(INFO, ModelStatistics(), 7.0)

    assert (told["last_inference"], told["batch_stats"]) == (0, [])


async def test_several_routers_count_as_one() -> None:
    """Everything is added up, by batch size, but for the moment of the last request."""
    parts = [describe(INFO, await _answered(Execution(rows, 0, 0.25)), 1.0) for rows in (2, 2, 1)]
    parts[1]["last_inference"] = 10**15

    told = total(parts)

    assert (told["name"], told["inference_count"], told["execution_count"]) == (MODEL, 6, 3)
    assert told["last_inference"] == 10**15
    assert told["inference_stats"]["compute_infer"] == {"count": 3, "ns": 750_000_000}
    sizes = {batch["batch_size"]: batch["compute_infer"] for batch in told["batch_stats"]}
    assert sizes == {1: {"count": 1, "ns": 250_000_000}, 2: {"count": 2, "ns": 500_000_000}}
    assert total(parts[:1]) is parts[0]
