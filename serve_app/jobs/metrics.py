"""Metrics of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app.jobs.job_service import Jobs
from serve_app.telemetry.readings import Gauge, Samples, Total


def _by_label(numbers: Mapping[str, float]) -> Samples:
    return [((label,), number) for label, number in numbers.items()]


JOBS: Final[tuple[Gauge[Jobs], ...]] = (
    Gauge(
        "serve_app_jobs",
        "Jobs in the store by state. All routers of a store tell the same.",
        ("state",),
        lambda jobs: _by_label({} if jobs.census is None else jobs.census.jobs),
    ),
    Gauge(
        "serve_app_job_items_waiting",
        "Items of jobs in the store that no router has taken yet. All routers of a store tell the same.",
        ("model",),
        lambda jobs: _by_label({} if jobs.census is None else jobs.census.backlog),
    ),
    Gauge(
        "serve_app_job_store_bytes",
        "Bytes of the store of jobs. All routers of a store tell the same.",
        (),
        lambda jobs: [] if jobs.census is None else [((), jobs.census.nbytes)],
    ),
    Gauge(
        "serve_app_job_items_in_flight",
        "Items of jobs that a router has.",
        ("model",),
        lambda jobs: _by_label(jobs.runner.in_flight),
    ),
    Total(
        "serve_app_job_items",
        "Items of jobs that have ended at a router, by state; also those whose outcomes counted for nothing.",
        ("state",),
        lambda jobs: _by_label(jobs.runner.counts.ended),
    ),
    Total(
        "serve_app_job_items_retried",
        "Attempts at items of jobs that were refused for now and are made again.",
        (),
        lambda jobs: [((), jobs.runner.counts.retried)],
    ),
    Total(
        "serve_app_job_items_discarded",
        "Outcomes that counted for nothing: the job had ended, or the item was another router's by then.",
        (),
        lambda jobs: [((), jobs.runner.counts.discarded)],
    ),
    Total(
        "serve_app_job_store_exchanges",
        "Exchanges of a router with the store: outcomes for new items.",
        (),
        lambda jobs: [((), jobs.runner.counts.exchanges)],
    ),
    Total(
        "serve_app_job_store_exchange_seconds",
        "Time that these exchanges took.",
        (),
        lambda jobs: [((), jobs.runner.counts.exchange_s)],
    ),
    Total(
        "serve_app_job_store_failures",
        "Exchanges that failed because the store could not be used.",
        (),
        lambda jobs: [((), jobs.runner.counts.store_failures)],
    ),
    Total(
        "serve_app_job_callbacks",
        "Attempts to tell ends of jobs: delivered, failed (to be tried again) or given_up.",
        ("result",),
        lambda jobs: _by_label(jobs.callbacks.results),
    ),
)
"""Read of `Jobs`."""
