"""How many items of jobs may be in flight: a few full batches of each model, whatever the backlog.

That is enough to keep its replicas busy: while they run one batch, the next ones wait in the router's queue, where live
requests pass them. What waits in the store holds no memory, no place in that queue and no lease.
"""

from __future__ import annotations

from collections.abc import Iterable

from serve_app.domain.service import ModelInfo
from serve_app.scheduling.entry import Priority


def room(models: Iterable[ModelInfo], batches: int) -> dict[str, int]:
    """Items in flight by the model's name.

    At most half of the queue of class ``low``: the rest is for live requests.

    Args:
        models: What is served.
        batches: Full batches for each replica that a model may have.
    """
    found = {}
    for info in models:
        most = info.serving.queue_entries.get(Priority.LOW)
        wanted = batches * max(1, info.max_rows) * max(1, info.serving.max_replicas)
        found[info.name] = max(1, wanted if most is None else min(wanted, most // 2))
    return found
