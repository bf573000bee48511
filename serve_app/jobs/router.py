"""Jobs as a part of a router."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

from prometheus_client.registry import Collector

from serve_app.access.guard import wall_clock
from serve_app.api.gateway import Gateway
from serve_app.api.routes import ApiRoutes, Find
from serve_app.domain.service import Inference
from serve_app.http.errors import render
from serve_app.jobs.api import batches, routes
from serve_app.jobs.api.items import ItemRoutes
from serve_app.jobs.job_service import Jobs
from serve_app.jobs.metrics import JOBS
from serve_app.jobs.post import post
from serve_app.jobs.redis import RedisStore
from serve_app.jobs.room import room
from serve_app.jobs.settings import JobSettings
from serve_app.jobs.sqlite.store import SqliteStore
from serve_app.jobs.store import Store
from serve_app.router.part import PartContext, RouterPart
from serve_app.telemetry.readings import Readings

_LONGEST_WAIT_S: Final = 20.0


class JobsPart(RouterPart):
    """Keeps jobs and runs them, with the routes for them.

    Args:
        jobs: ``None``: no jobs are kept, and the routes answer with the setting to change.
    """

    name: ClassVar = "jobs"

    def __init__(self, jobs: Jobs | None) -> None:
        self._jobs = jobs
        self._items: ItemRoutes | None = None

    def routes(self, gateway: Gateway, find: Find) -> ApiRoutes:
        """``/v1/jobs``, ``/v1/files`` and ``/v1/batches``."""
        asks = self._jobs is not None and self._jobs.settings.ask_for_replicas
        self._items = items = ItemRoutes(gateway, find, wall_clock, asks)
        served = (*routes.routes(gateway, self._jobs, items), *batches.routes(gateway, self._jobs, items))
        return ApiRoutes(served, {routes.ERRORS_BELOW: render})

    def collectors(self) -> Iterable[Collector]:
        """Metrics of the store and of this router's items."""
        jobs = self._jobs
        return () if jobs is None else (Readings(JOBS, lambda: jobs),)

    def status(self) -> Mapping[str, Any] | None:
        """`Jobs.status`."""
        return None if self._jobs is None else self._jobs.status()

    def start(self) -> None:
        """Open the store, and run items."""
        if self._jobs is not None:
            assert self._items is not None
            self._jobs.start(self._items.run)

    async def stop(self) -> None:
        """Run no more items."""
        if self._jobs is not None:
            await self._jobs.stop()

    async def close(self) -> None:
        """Close the store."""
        if self._jobs is not None:
            await self._jobs.close()


def make_part(settings: JobSettings | None, context: PartContext) -> JobsPart:
    """The part of a router; without settings it keeps no jobs."""
    return JobsPart(None if settings is None else make_jobs(settings, context.inference))


def make_store(settings: JobSettings) -> Store:
    """The store that the settings name."""
    if settings.redis is not None:
        return RedisStore(settings.redis, wall_clock)
    assert settings.path is not None
    return SqliteStore(settings.path, min(_LONGEST_WAIT_S, settings.lease_s / 2))


def make_jobs(settings: JobSettings, inference: Inference) -> Jobs:
    """Jobs over a service. To be started, and closed."""
    return Jobs(
        make_store(settings),
        settings,
        lambda: room(inference.models.values(), settings.batches),
        partial(post, networks=settings.callbacks.networks),
        wall_clock,
    )
