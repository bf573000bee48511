"""The pool deployment: processes that each hold many models, and load and unload them as the router says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.metrics import Gauge

from serve_app.backends.description import Description
from serve_app.backends.joining.verdict_store import VerdictStore
from serve_app.backends.memory import give_memory_back, keep_large_blocks_apart
from serve_app.composition.replica import make_replica
from serve_app.composition.revision import Revision
from serve_app.config.args import AppArgs
from serve_app.config.files import cache_folder
from serve_app.deployments.batching import batch_with_serve
from serve_app.deployments.garbage import leave_out_what_is_there
from serve_app.deployments.log import join_serve_log
from serve_app.deployments.model import BASE, LINK, SURGE_PERCENT
from serve_app.domain.hosting import LoadOutcome, Owner
from serve_app.domain.priority import Priority
from serve_app.errors import ServeAppError
from serve_app.payloads import Bundle, BundleResult
from serve_app.pools.config import PoolConfig, pools_with_members
from serve_app.pools.host import PoolHost
from serve_app.pools.hosting import MemberLoader, MemberPlan
from serve_app.replica.process_memory import own_memory
from serve_app.replica.worker import NO_SHARES
from serve_app.telemetry.trace import configured_tracer, traced
from serve_app.transport.link_server import LinkServer

logger = logging.getLogger(__name__)

_CALLS: Final = 100_000
_TRIM_ABOVE: Final = 1.05
"""If the process holds this multiple of its members' memory, it returns free memory at its next health check."""


class PoolDeployment:
    """One host of a pool. It begins empty.

    Args:
        config: Validated.
        plans: Its members as deployed, by name.
        max_rows: Most rows of a batch of any of them.
        min_share: Guaranteed share of a host's time per class, 0 to 1.
    """

    def __init__(
        self,
        config: PoolConfig,
        plans: Mapping[str, MemberPlan],
        max_rows: int,
        min_share: Mapping[Priority, float] = NO_SHARES,
    ) -> None:
        join_serve_log()
        leave_out_what_is_there()  # before a member is loaded: members come and go
        keep_large_blocks_apart()
        self._config = config
        make = partial(
            make_replica,
            batch=batch_with_serve(max_rows),
            records=VerdictStore(cache_folder() / "joinable"),
            min_share=min_share,
        )
        loader = MemberLoader(plans, make)
        if plans:
            _import_backends(loader, min(plans, key=lambda name: plans[name].revision.nbytes))
        self._base = own_memory()
        alone = all(plan.revision.model.resources.session_threads == 1 for plan in plans.values())
        self._host = PoolHost(config.name, loader.load, yields=alone)
        self._held = Gauge(
            "serve_app_replica_memory_bytes", "Memory of the host that a replica holds alone.", tag_keys=("model",)
        )
        self._stuck = Gauge(
            "serve_app_replica_stuck_threads",
            "Threads of a replica's processor that are inside a call which does not end.",
            tag_keys=("model",),
        )
        # Ray's metrics take ASCII only.
        for gauge in (self._held, self._stuck):
            gauge.set_default_tags({"model": config.name if config.name.isascii() else config.deployment})
        tracer = configured_tracer()
        self._run = self._host.run if tracer is None else traced(self._host.run, config.name, tracer)
        self._links = LinkServer(config.name, self._run, self._host.recall) if LinkServer.supported() else None
        self._loop = asyncio.get_running_loop()
        # Serve awaits this before it ends the replica. On the instance, and not on the class: Python must not call it.
        self.__del__ = self._stop

    async def run(self, bundle: Bundle, replica: str | None = None) -> BundleResult:  # noqa: ARG002 - read by SlotRouter
        """Run one bundle, as `PoolHost.run`."""
        return await self._run(bundle)

    async def change(
        self,
        owner: Owner,
        evicted: Sequence[str],
        load: str,
        urgent: bool,
        replica: str | None = None,  # noqa: ARG002 - read by SlotRouter
    ) -> LoadOutcome:
        """Unload members, and load one, as `PoolHost.change`."""
        return await self._host.change(owner, evicted, load, urgent=urgent)

    def record_replica_metadata(self) -> dict[str, Any]:
        """Data for routers, available the moment this host is ready."""
        told: dict[str, Any] = {BASE: self._config.name}
        if self._links is not None:
            told[LINK] = [ray.get_runtime_context().get_node_id(), self._links.address]
        return told

    def check_health(self) -> None:
        """Fail if this host should be replaced: a run, a load, or calls of a member's processor last for too long."""
        stalled, limit = self._host.stalled_s(), self._config.health.stall_timeout_s
        if stalled > limit:
            raise RuntimeError(f"{self._config.name}: one run has lasted {stalled:.0f} s, the limit is {limit:.0f} s")
        self._stuck.set(self._host.stuck_calls(limit))
        if (stalled := self._host.calls_stalled_s()) > limit:
            raise RuntimeError(
                f"{self._config.name}: every thread of a member's processor has been in one call for {stalled:.0f} s or"
                f" longer, the limit is {limit:.0f} s"
            )
        loads_for, limit = self._host.loads_for_s(), self._config.load_timeout_s
        if loads_for > limit:
            raise RuntimeError(f"{self._config.name}: a load has lasted {loads_for:.0f} s, the limit is {limit:.0f} s")
        self._loop.call_soon_threadsafe(self._host.check)
        held = own_memory()
        if held - self._base > _TRIM_ABOVE * self._host.resident_bytes:
            give_memory_back()
            held = own_memory()
        self._held.set(held)

    async def _stop(self) -> None:
        """Answer bundles of links, which Serve does not know, and free everything."""
        if self._links is not None:
            await self._links.drain(self._config.health.drain_timeout_s)
        self._host.close()


def _import_backends(loader: MemberLoader, smallest: str) -> None:
    """Load a member once, and drop it, so that common imports are not at the cost of a request."""
    try:
        loader.load(smallest).worker.close()
    except ServeAppError as error:  # clients of this member get the error
        logger.warning("%s", error)
    give_memory_back()


def deployments(
    config: AppArgs, revisions: Mapping[str, Revision], described: Mapping[str, Mapping[str, Description]]
) -> dict[str, Any]:
    """A bound deployment of each pool, by its name.

    Args:
        revisions: Of every model, by name.
        described: Contents of its files, by name and variant.
    """
    min_share = {priority: limits.min_share for priority, limits in config.class_settings().items()}
    return {
        pool.name: serve.deployment(PoolDeployment)
        .options(
            name=pool.deployment,
            num_replicas=pool.hosts,
            ray_actor_options={"num_cpus": pool.cpus},
            # The scheduler keeps to few bundles for each member and class, and to few loads.
            max_ongoing_requests=_CALLS,
            request_router_config=RequestRouterConfig(
                request_router_class="serve_app.deployments.slot_router:SlotRouter"
            ),
            health_check_period_s=pool.health.check_period_s,
            health_check_timeout_s=pool.health.check_timeout_s,
            graceful_shutdown_timeout_s=pool.health.drain_timeout_s,
            max_surge_percent=SURGE_PERCENT,
        )
        .bind(
            pool,
            {model.name: MemberPlan(revisions[model.name], described[model.name]) for model in members},
            max_rows=max([model.batching.configured_rows for model in members], default=1),
            min_share=min_share,
        )
        for pool, members in pools_with_members(config)
    }
