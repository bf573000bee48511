"""Copies of requests that a service sends to another version of their model."""

from __future__ import annotations

import asyncio

import pytest
from runtime_harness import Sent, Transport, classes, tensor, until

from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer, ModelInfo, RequestOptions
from serve_app.domain.versions import version_key
from serve_app.payloads import ModelSignature, TensorSpec
from serve_app.router.dispatcher import Dispatcher
from serve_app.router.inference import RouterInference
from serve_app.router.models import Models
from serve_app.router.settings import RoutedModel
from serve_app.router.versions import VersionsContext
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ModelScheduling, ProcessLimits
from serve_app.telemetry.metrics import RouterMetrics
from serve_app.transport.send import awaiting
from serve_app.versions.policy import Shadow, Traffic
from serve_app.versions.router import make_tables

SIGNATURE = ModelSignature((TensorSpec("x", "FP32", (-1, -1)),), (TensorSpec("x", "FP32", (-1, -1)),))
REAL, COPY = version_key("m", "3"), version_key("m", "5")


class Versions:
    """A service of versions 3 and 5 of a model, each with a fallback, of which 5 runs copies of what 3 answers."""

    def __init__(self, fallback_of_copy: str = "light") -> None:
        self.transport = Transport()
        scheduling = [
            ModelScheduling(key, max_rows=4, slo_s=1.0, fallbacks=(fallback,))
            for key, fallback in ((REAL, "light"), (COPY, fallback_of_copy))
        ]
        scheduler = Scheduler(scheduling, classes(), ProcessLimits(total_bytes=10**9))
        self.metrics = RouterMetrics(scheduler)
        dispatcher = Dispatcher(scheduler, awaiting(self.transport), self.metrics, 60.0)
        self.models = Models(dispatcher)
        self.inference = RouterInference(self.models, dispatcher, self.metrics)
        self.tables = self.models.versions = make_tables(
            VersionsContext(
                store=None,
                tell=None,
                changed=self.models.publish,
                info_of=lambda key: self.models.served[key].info,
                execute=self.inference.execute,
                scheduler=scheduler,
                metrics=self.metrics,
            )
        )
        info = ModelInfo(
            name="m",
            version="3",
            versions=("3",),
            task="tensors",
            signature=SIGNATURE,
            max_rows=4,
            max_request_rows=8,
            default_timeout_s=dict.fromkeys(Priority, 30.0),
            labels=(),
            variants=("light",),
            key=REAL,
        )
        copy = info._replace(version="5", key=COPY, variants=(fallback_of_copy,))
        traffic = Traffic({"stable": "3"}, shadow=Shadow("5"))
        for told, scheduled in zip((info, copy), scheduling, strict=True):
            dispatcher.on_replicas(scheduled.name, ["a"])
            self.models.add(RoutedModel(info=told, scheduling=scheduled, traffic=traffic))

    def ask(self) -> asyncio.Task[Answer]:
        """A client asks version 3."""
        return asyncio.ensure_future(self.inference.submit(REAL, tensor(2.0), RequestOptions()))

    async def copy(self) -> Sent:
        """The copy, on its way."""
        async with asyncio.timeout(30.0):
            sent = await self.transport.next()
        assert sent.model == COPY
        return sent

    def ended(self, outcome: str) -> float:
        """How many copies have ended so."""
        labels = {"model": COPY, "outcome": outcome}
        return self.metrics.registry.get_sample_value("serve_app_shadow_requests_total", labels) or 0.0


@pytest.mark.parametrize("variant", ["", "light"])
async def test_a_copy_runs_on_the_variant_that_answered(variant: str) -> None:
    """And on no other: else what is compared is the exact model with its fallback, and not two versions."""
    versions = Versions()
    asked = versions.ask()
    (await versions.transport.next()).succeed(variant)
    assert (await asked).variant == variant
    sent = await versions.copy()
    (entry,) = sent.bundle.entries
    assert (entry.variant, entry.exact) == (variant, True)
    sent.succeed(variant)
    await until(lambda: versions.ended("same") == 1.0)
    await versions.tables.end()


async def test_what_the_other_version_cannot_run_is_not_compared() -> None:
    """It has no variant of that name, which counts as failed."""
    versions = Versions("small")
    asked = versions.ask()
    (await versions.transport.next()).succeed("light")
    assert (await asked).variant == "light"
    assert versions.ended("failed") == 1.0
    assert versions.transport.sent.empty()
    await versions.tables.end()


async def test_what_is_answered_after_all_versions_were_unloaded_has_no_copy() -> None:
    """There is none to run it; the client has its answer."""
    versions = Versions()
    asked = versions.ask()
    sent = await versions.transport.next()
    gone = [versions.models.remove(key, unloaded=True) for key in (REAL, COPY)]
    sent.succeed()
    assert (await asked).version == "3"
    await asyncio.gather(*gone)
    await versions.tables.end()
