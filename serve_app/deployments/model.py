"""The model deployment: one class for every model and modality, one deployment per model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import ray
from ray.serve.metrics import Gauge

from serve_app.backends.description import Description
from serve_app.backends.joining.verdict_store import VerdictStore
from serve_app.composition.replica import make_replica
from serve_app.config import ModelConfig, cache_folder
from serve_app.deployments.batching import batch_with_serve
from serve_app.deployments.log import join_serve_log
from serve_app.payloads import Bundle, BundleResult
from serve_app.replica.process_memory import ProcessMemory
from serve_app.replica.worker import NO_SHARES
from serve_app.scheduling.entry import Priority
from serve_app.telemetry.trace import configured_tracer, traced
from serve_app.transport.link_server import LinkServer

logger = logging.getLogger(__name__)

WARM_UP = "warm_up"
NOT_WARMED = "not_warmed"
JOINABLE = "joinable"
LINK = "link"
IDENTITIES = "identities"
"""Keys of what a replica tells routers of itself: what its warm-up measured, and why that is not all; which requests
may share runs; its node and where its links begin; what tells the models that it runs from others."""


class ModelDeployment:
    """One replica of one model: loads it, warms every batch bucket, and runs bundles.

    Serve reports the replica ready only after ``__init__``, so no request meets a cold session, but for a model that
    runs on no known input.

    Args:
        config: The model as configured; validated.
        builds: By variant, what its file says of it.
        identities: Of the model and its variants, where routers keep its answers.
        min_share: Guaranteed share of a replica's time per class, 0 to 1.
        planned: Whether it shares a device with other models, so that routers compose its batches.
    """

    def __init__(
        self,
        config: ModelConfig,
        builds: Mapping[str, Description],
        identities: Mapping[str, str] = MappingProxyType({}),
        min_share: Mapping[Priority, float] = NO_SHARES,
        *,
        planned: bool = False,
    ) -> None:
        join_serve_log()
        self._config = config
        self._identities = dict(identities)
        replica = make_replica(
            config,
            builds,
            batch_with_serve(config.batching.max_rows),
            gpu_available=bool(ray.get_gpu_ids()),
            records=VerdictStore(cache_folder() / "joinable"),
            min_share=min_share,
            planned=planned,
        )
        self._worker, self._warm_up, self._joining = replica.worker, replica.warm_up, replica.joining
        self._memory = ProcessMemory(config.name, config.resources.memory_limit)
        self._memory.check_start()
        self._held = Gauge(
            "serve_app_replica_memory_bytes", "Memory of the host that a replica holds alone.", tag_keys=("model",)
        )
        self._verified = Gauge(
            "serve_app_replica_verified_requests",
            "Requests that a replica has run again alone, by whether their answers were the same.",
            tag_keys=("model", "outcome"),
        )
        # Ray's metrics take ASCII only.
        named = config.name if config.name.isascii() else config.deployment
        for gauge in (self._held, self._verified):
            gauge.set_default_tags({"model": named})  # which Serve adds its own to
        tracer = configured_tracer()
        self._run = self._worker.run if tracer is None else traced(self._worker.run, config.name, tracer)
        self._links = LinkServer(config.name, self._run, self._worker.recall) if LinkServer.supported() else None
        # Serve awaits this before it ends the replica. On the instance, and not on the class: Python must not call it.
        self.__del__ = self._stop

    async def run(self, bundle: Bundle, replica: str | None = None) -> BundleResult:  # noqa: ARG002 - read by SlotRouter
        """Run one bundle; see `serve_app.replica.worker.Worker.run`."""
        return await self._run(bundle)

    def record_replica_metadata(self) -> dict[str, Any]:
        """What routers learn of this replica the moment it is ready."""
        told: dict[str, Any] = {WARM_UP: [list(execution) for execution in self._warm_up.executions]}
        told[JOINABLE] = {variant: list(verdict) for variant, verdict in self._joining.verdicts.items()}
        if self._warm_up.reason is not None:
            told[NOT_WARMED] = self._warm_up.reason
        if self._identities:
            told[IDENTITIES] = self._identities
        if self._links is not None:
            told[LINK] = [ray.get_runtime_context().get_node_id(), self._links.address]
        return told

    def check_health(self) -> None:
        """Fail when this replica should be replaced.

        Its session is broken, fails even on what it could run at first, or has been inside one run for too long (it is
        wedged, not busy); or the process holds too much memory.
        """
        if self._worker.broken:
            raise RuntimeError(f"{self._config.name}: the session has failed, and the log says how")
        if self._worker.failing:
            raise RuntimeError(f"{self._config.name}: the model fails on an input that it could run at first")
        stalled = self._worker.stalled_s()
        limit = self._config.health.stall_timeout_s
        if stalled > limit:
            raise RuntimeError(f"{self._config.name}: one run has lasted {stalled:.0f} s, the limit is {limit:.0f} s")
        checked, deviated = self._worker.verified
        self._verified.set(checked - deviated, tags={"outcome": "same"})
        self._verified.set(deviated, tags={"outcome": "different"})
        self._held.set(self._memory.check())

    async def _stop(self) -> None:
        """Answer what came by links, of which Serve knows nothing, and free everything."""
        if self._links is not None:
            await self._links.drain(self._config.health.drain_timeout_s)
        self._worker.close()
