"""Jobs of a router, put together."""

from __future__ import annotations

from functools import partial

from serve_app.access.guard import wall_clock
from serve_app.domain.service import InferenceService
from serve_app.http.post import post
from serve_app.jobs.jobs import Jobs
from serve_app.jobs.redis import RedisStore
from serve_app.jobs.room import room
from serve_app.jobs.settings import JobSettings
from serve_app.jobs.sqlite.store import SqliteStore
from serve_app.jobs.store import Store


def make_store(settings: JobSettings) -> Store:
    """The store that the settings name."""
    if settings.redis is not None:
        return RedisStore(settings.redis)
    assert settings.path is not None
    return SqliteStore(settings.path)


def make_jobs(settings: JobSettings, service: InferenceService) -> Jobs:
    """Jobs over a service. To be started, and closed."""
    return Jobs(
        make_store(settings),
        settings,
        lambda: room(service.models.values(), settings.batches),
        partial(post, networks=settings.callbacks.networks),
        wall_clock,
    )
