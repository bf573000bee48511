"""Jobs of a router, put together."""

from __future__ import annotations

from functools import partial
from typing import Final

from serve_app.access.guard import wall_clock
from serve_app.domain.service import Inference
from serve_app.jobs.job_service import Jobs
from serve_app.jobs.post import post
from serve_app.jobs.redis import RedisStore
from serve_app.jobs.room import room
from serve_app.jobs.settings import JobSettings
from serve_app.jobs.sqlite.store import SqliteStore
from serve_app.jobs.store import Store

_LONGEST_WAIT_S: Final = 20.0


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
