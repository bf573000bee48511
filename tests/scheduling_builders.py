"""Entries and schedulers for tests, with settings that a test names only where they matter to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Literal

from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ClassSettings, ModelScheduling, ProcessLimits

_ids = itertools.count(1)

HIGH, NORMAL, LOW = Priority

AFFINE = [(rows, 0, 0.005 + 0.001 * rows) for rows in (1, 2, 4, 8, 16, 32)]
"""A warm-up profile: 5 ms fixed and 1 ms per row."""


def make_entry(
    priority: Priority = NORMAL,
    deadline: float = 10.0,
    *,
    model: str = "m",
    rows: int = 1,
    bucket: int = 0,
    nbytes: int = 0,
    arrival: float = 0.0,
    variant: str = "",
) -> Entry:
    """An entry with an id of its own; ids ascend."""
    return Entry(next(_ids), model, priority, arrival, deadline, rows, bucket, nbytes, variant=variant)


def make_class(
    *,
    entries: int = 1000,
    nbytes: int = 10**9,
    overflow: Literal["reject", "demote"] = "reject",
    min_share: float = 0.0,
) -> ClassSettings:
    """Settings of one class, roomy unless said otherwise."""
    return ClassSettings(entries, nbytes, timeout_s=10.0, overflow=overflow, min_share=min_share)


def make_scheduler(
    *,
    models: Iterable[str] = ("m",),
    max_rows: int = 32,
    slo_s: float = 0.1,
    window: int = 2,
    high: ClassSettings | None = None,
    normal: ClassSettings | None = None,
    low: ClassSettings | None = None,
    limits: ProcessLimits | None = None,
    replicas: Iterable[str] = ("a",),
    profile: Iterable[tuple[int, int, float]] = (),
) -> Scheduler:
    """A scheduler whose models have the given replicas and warm-up profile at time 0."""
    scheduler = Scheduler(
        [ModelScheduling(name, max_rows, slo_s, window) for name in models],
        {HIGH: high or make_class(), NORMAL: normal or make_class(), LOW: low or make_class()},
        limits or ProcessLimits(total_bytes=10**12, network_s=0.002),
    )
    for name in models:
        scheduler.on_replicas(name, list(replicas), 0.0)
        scheduler.seed(name, [(*point, "") for point in profile])
    return scheduler


def accept(scheduler: Scheduler, *entries: Entry, now: float = 0.0) -> list[Entry]:
    """Let entries arrive; each must be accepted."""
    for entry in entries:
        assert scheduler.on_arrival(entry, now) is None, entry
    return list(entries)


def queued_rows(scheduler: Scheduler, model: str = "m") -> dict[str, Any]:
    """Rows queued per class label."""
    return {priority.label: length.rows for priority, length in scheduler.queue_lengths(model).items()}
