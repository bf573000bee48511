"""Which requests of a pipeline are refused at once: those that no schedule of the model could serve in time."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from runtime_harness import MODEL, Transport, make_dispatcher, serve

from serve_app.cache.response_cache import ResponseCache
from serve_app.cache.settings import CacheSettings
from serve_app.domain.pipeline import PIPELINE, ModelStep, Output, Pipeline, PipelineInput, Reference
from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer, ModelInfo, RequestOptions
from serve_app.errors import DeadlineExceeded
from serve_app.payloads import Joinable, ModelSignature, TensorSpec
from serve_app.pipelines.inference import PipelineInference
from serve_app.router.answer_cache import ModelCacheSettings

LONG_S = 2000.0
"""What the exact model is predicted to take for a row: far longer than any test."""


class Line:
    """A pipeline over one model, whose scheduler is real, and a transport that the test steers."""

    def __init__(self, *steps: ModelStep, cached: bool = False, **changes: Any) -> None:
        self.transport = Transport()
        settings: dict[str, Any] = {"max_rows": 1, "executions": [(1, 0, LONG_S, "")], **changes}
        dispatcher, metrics = make_dispatcher(self.transport, **settings)
        info = ModelInfo(
            name=MODEL,
            version="1",
            versions=("1",),
            task="tensors",
            signature=ModelSignature((TensorSpec("x", "FP32", (-1, 1)),), (TensorSpec("x", "FP32", (-1, 1)),)),
            max_rows=1,
            max_request_rows=8,
            default_timeout_s=dict.fromkeys(Priority, 30.0),
            labels=(),
            joinable={"": Joinable("exact", "")},
        )
        caches = ResponseCache(CacheSettings(10), dispatcher, metrics) if cached else None
        service = serve(
            info, dispatcher, metrics, cache=ModelCacheSettings(300.0, 10**6, {"": "a", "int8": "b"}), caches=caches
        )
        plan = Pipeline(
            "chain",
            {"x": PipelineInput("x", "tensor", datatype="FP32", shape=(-1, 1))},
            {step.name: step for step in steps},
            {"out": Output(Reference(steps[-1].name))},
        )
        pipeline = info._replace(name="chain", task=PIPELINE, pipeline=plan)
        self._service = PipelineInference(
            service.inference,
            [pipeline],
            dispatcher.scheduler.solo_s,
            service.inference.least_s,
            CollectorRegistry(),
            None,
        )

    def ask(self, timeout_s: float, *, rows: int = 1, **options: Any) -> asyncio.Task[Answer]:
        """Ask in a task of its own."""
        given = {"x": np.ones((rows, 1), np.float32)}
        return asyncio.ensure_future(self._service.submit("chain", given, RequestOptions(None, timeout_s, **options)))

    async def answered(self, asking: asyncio.Task[Answer], bundles: int, variant: str = "") -> Answer:
        """Its answer, after so many bundles, which run on this variant and take as long as predicted."""
        for _ in range(bundles):
            (await self.transport.next()).succeed(variant, LONG_S)
        return await asking

    async def refusal(self, timeout_s: float, **options: Any) -> str:
        """What a request is told that is refused at once; the one before it was a probe."""
        with pytest.raises(DeadlineExceeded) as caught:
            await self.ask(timeout_s, **options)
        assert self.transport.sent.empty()
        return caught.value.message


ONLY = ModelStep("only", MODEL, input=Reference("x"))


async def test_one_runs_although_it_is_predicted_to_be_late() -> None:
    """So that the model is measured again. Its first step may take all that is left."""
    line = Line(ModelStep("first", MODEL, input=Reference("x")), ModelStep("second", MODEL, input=Reference("first")))
    probe = line.ask(1000.0)
    sent = await line.transport.next()
    assert sent.bundle.entries[0].budget_s == pytest.approx(1000.0, abs=60.0)
    advice = "name a longer deadline (X-Timeout-Ms, parameters.timeout)"
    assert await line.refusal(1000.0) == (f"the steps take about 4000 s alone; this request allows 1000 s: {advice}")
    probe.cancel()


async def test_a_fallback_makes_a_deadline_reachable() -> None:
    """Unless the client wants the exact model; the answer says which variant it is of."""
    line = Line(ONLY, executions=[(1, 0, LONG_S, ""), (1, 0, 500.0, "int8")], fallbacks=("int8",))
    probe = line.ask(1000.0, fallback=False)
    await line.answered(probe, 1)
    assert "the steps take about 2000 s alone" in await line.refusal(1000.0, fallback=False)
    assert "the steps take about 500 s alone" in await line.refusal(400.0)
    assert (await line.answered(line.ask(1000.0), 1, "int8")).variant == "only=int8"


async def test_the_parts_of_a_map_run_at_all_replicas() -> None:
    """As many at once as there are replicas."""
    line = Line(ModelStep("every", MODEL, over=Reference("x")), replicas=("a", "b"))
    await line.answered(line.ask(3000.0, rows=4), 4)  # as a probe
    assert "the steps take about 4000 s alone" in await line.refusal(3000.0, rows=4)
    await line.answered(line.ask(5000.0, rows=4), 4)


async def test_what_a_cache_may_answer_is_not_refused() -> None:
    """Before it is asked, nobody knows whether the model runs at all."""
    line = Line(ONLY, cached=True)
    await line.answered(line.ask(3000.0), 1)
    probe = line.ask(1000.0, fresh=True)
    await line.transport.next()
    for options in ({"cacheable": False}, {"fresh": True}):
        assert "the steps take about 2000 s alone" in await line.refusal(1000.0, **options)
    assert (await line.ask(1000.0)).value["out"].tolist() == [b"[[1.0]]"]
    probe.cancel()
