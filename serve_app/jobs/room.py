"""Bounds items in flight: a few full batches of each model, whatever the backlog.

That keeps its replicas busy: during one batch, the next wait in the router's queue, where live requests pass them.
Items in the store take no memory, no queue place and no lease.
"""

from __future__ import annotations

from collections.abc import Iterable

from serve_app.domain.priority import Priority
from serve_app.domain.service import ModelInfo


def room(models: Iterable[ModelInfo], batches: int) -> dict[str, int]:
    """Items in flight by model.

    At most half of the queue of class ``low``: the rest is for live requests.

    Args:
        batches: Full batches for each potential replica of a model.
    """
    found = {}
    for info in models:
        most = info.serving.queue_entries.get(Priority.LOW)
        wanted = batches * max(1, info.max_rows) * max(1, info.serving.max_replicas)
        found[info.name] = max(1, wanted if most is None else min(wanted, most // 2))
    return found
