"""The model deployment: one class for every model and modality, one deployment per model."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import ray
from ray.serve.metrics import Gauge

from serve_app.backends.joining.verdict_store import VerdictStore
from serve_app.backends.memory import large_blocks_apart
from serve_app.composition.replica import expected_memory, host_revision, make_replica
from serve_app.composition.revision import forget_revisions, open_revision
from serve_app.config.files import cache_folder
from serve_app.config.model import ModelConfig
from serve_app.deployments.autoscaling import BUSY, IDLE_CORES
from serve_app.deployments.batching import batch_with_serve
from serve_app.deployments.garbage import leave_out_what_is_there
from serve_app.deployments.log import join_serve_log
from serve_app.deployments.register import ClusterRegister
from serve_app.domain.agreed import Agreed, Told
from serve_app.domain.priority import Priority
from serve_app.payloads import Bundle, BundleResult
from serve_app.replica.cores import CoreMeter
from serve_app.replica.process_memory import ProcessMemory, memory_problem, own_memory
from serve_app.replica.revisions import Hosted, Revisions
from serve_app.replica.worker import NO_SHARES
from serve_app.telemetry.trace import configured_tracer, traced
from serve_app.transport.link_server import LinkServer

logger = logging.getLogger(__name__)

_LOOK_EVERY = 12
SURGE_PERCENT = 100
"""A redeploy starts new replicas first and stops the old ones when those are ready."""
"""Every so many health checks a replica looks whether it serves what is agreed on. And at the first: that may have
changed while it started."""

WARM_UP = "warm_up"
NOT_WARMED = "not_warmed"
JOINABLE = "joinable"
COMPUTE = "compute"
LINK = "link"
IDENTITIES = "identities"
REVISION = "revision"
BASE = "base"
"""Keys of what a replica tells routers of itself when it becomes ready: what its warm-up measured, and why that is not
all; which requests may share runs; what it computes with; its node and where its links begin; what tells the models
that it runs from others; the revision that this is of, and the one that the model was deployed with."""


class ModelDeployment:
    """One replica of one model: loads it, warms every batch bucket, and runs bundles.

    Serve reports the replica ready only after ``__init__``, so no request meets a cold session, but for a model that
    runs on no known input.

    Args:
        config: The model as configured; validated.
        base: Name of the revision that the model was deployed with.
        identities: Of the model and its variants as they were deployed, where routers keep its answers.
        min_share: Guaranteed share of a replica's time per class, 0 to 1.
        protect: Part of class `high` that is to be in time whatever that costs the others, 0 to 1.
    """

    def __init__(
        self,
        config: ModelConfig,
        base: str,
        identities: Mapping[str, str] = MappingProxyType({}),
        min_share: Mapping[Priority, float] = NO_SHARES,
        protect: float = 0.0,
    ) -> None:
        join_serve_log()
        leave_out_what_is_there()  # before a model is loaded: models come and go
        self._config = config
        self._identities = dict(identities)
        self._base = base
        self._make = partial(
            make_replica,
            batch=batch_with_serve(config.most_rows),
            gpu_available=bool(ray.get_gpu_ids()),
            records=VerdictStore(cache_folder() / "joinable"),
            min_share=min_share,
            protect=protect,
            on_lost=self._die,
        )
        register = ClusterRegister({config.name: base})
        agreed = register.read_now(config.name) or Agreed(base, config.version)
        first = self._load(agreed.revision, agreed.version) if agreed.revision else None
        self._first = None if first is None else (first.name, first.told)
        self._revisions = Revisions(
            config.name,
            first,
            Agreed(base, config.version),
            self._load,
            lambda name, version: expected_memory(open_revision(config, name, version)),
            lambda: register.read(config.name),
            partial(forget_revisions, config),
            config.resources.memory_limit,
        )
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
        self._stuck = Gauge(
            "serve_app_replica_stuck_threads",
            "Threads of a replica's processor that are inside a call which does not end.",
            tag_keys=("model",),
        )
        # Ray's metrics take ASCII only.
        named = config.name if config.name.isascii() else config.deployment
        for gauge in (self._held, self._verified, self._stuck):
            gauge.set_default_tags({"model": named})  # which Serve adds its own to
        tracer = configured_tracer()
        self._run = self._revisions.run if tracer is None else traced(self._revisions.run, config.name, tracer)
        self._links = LinkServer(config.name, self._run, self._revisions.recall) if LinkServer.supported() else None
        self._loop = asyncio.get_running_loop()
        self._checks = itertools.count()
        self._meter = CoreMeter()
        self._scales = config.more_processes
        # Serve awaits this before it ends the replica. On the instance, and not on the class: Python must not call it.
        self.__del__ = self._stop

    async def run(self, bundle: Bundle, replica: str | None = None) -> BundleResult:  # noqa: ARG002 - read by SlotRouter
        """Run one bundle; see `serve_app.replica.revisions.Revisions.run`."""
        return await self._run(bundle)

    def record_replica_metadata(self) -> dict[str, Any]:
        """What routers learn of this replica the moment it is ready."""
        told: dict[str, Any] = {BASE: self._base}
        if self._first is not None:
            told[REVISION], first = self._first
            told[WARM_UP] = [list(execution) for execution in first.executions]
            told[JOINABLE] = {variant: list(verdict) for variant, verdict in first.joinable.items()}
            if first.not_warmed is not None:
                told[NOT_WARMED] = first.not_warmed
            if first.compute is not None:
                told[COMPUTE] = list(first.compute)
        if self._identities:
            told[IDENTITIES] = self._identities
        if self._links is not None:
            told[LINK] = [ray.get_runtime_context().get_node_id(), self._links.address]
        return told

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """How busy this process is, for the application's autoscaling policy; nothing where another would not help."""
        if not self._scales:
            return {}
        busy, idle = self._meter.read(self._revisions.cores)
        fits = memory_problem(own_memory(), None) is None
        return {BUSY: busy, IDLE_CORES: idle if fits else 0.0}

    async def prepare(self, name: str, version: int | None, claim: str) -> Told:
        """Load another revision beside the present one; see `Revisions.prepare`."""
        return await self._revisions.prepare(name, version, claim)

    async def renew(self, claim: str) -> None:
        """A load goes on; see `Revisions.renew`."""
        self._revisions.renew(claim)

    async def settle(self, given_up: str | None = None) -> str:
        """Serve what is agreed on; see `Revisions.settle`."""
        return await self._revisions.settle(given_up)

    def _die(self) -> None:
        """End this process as what ran its model has ended: routers see that at once, and ask other replicas."""
        logger.error("%s: this replica ends, since the session of its model has ended", self._config.name)
        os.kill(os.getpid(), signal.SIGKILL)

    def _load(self, name: str, version: int | None) -> Hosted:
        revision = open_revision(self._config, name, version)
        with large_blocks_apart():
            return host_revision(revision, revision.builds, self._make)

    def check_health(self) -> None:
        """Fail when this replica should be replaced.

        Its session is broken, fails even on what it could run at first, or has been inside one run for too long (it is
        wedged, not busy); every thread of its processor is inside a call that does not end; or the process holds too
        much memory.
        """
        if self._revisions.broken:
            raise RuntimeError(f"{self._config.name}: the session has failed, and the log says how")
        if self._revisions.failing:
            raise RuntimeError(f"{self._config.name}: the model fails on an input that it could run at first")
        stalled = self._revisions.stalled_s()
        limit = self._config.health.stall_timeout_s
        if stalled > limit:
            raise RuntimeError(f"{self._config.name}: one run has lasted {stalled:.0f} s, the limit is {limit:.0f} s")
        self._stuck.set(self._revisions.stuck_calls(limit))
        if (stalled := self._revisions.calls_stalled_s()) > limit:
            raise RuntimeError(
                f"{self._config.name}: every thread of its processor has been in one call for {stalled:.0f} s or"
                f" longer, the limit is {limit:.0f} s"
            )
        if next(self._checks) % _LOOK_EVERY == 0:
            self._loop.call_soon_threadsafe(self._revisions.check)
        checked, deviated = self._revisions.verified
        self._verified.set(checked - deviated, tags={"outcome": "same"})
        self._verified.set(deviated, tags={"outcome": "different"})
        self._held.set(self._memory.check())

    async def _stop(self) -> None:
        """Answer what came by links, of which Serve knows nothing, and free everything."""
        if self._links is not None:
            await self._links.drain(self._config.health.drain_timeout_s)
        await self._revisions.close()
