"""The best of all schedules, found by trying them all: what bounds are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple


class Offered(NamedTuple):
    """A request in whole seconds; ``model`` and ``group`` (its class) are places in lists."""

    arrival: int
    timeout: int
    model: int = 0
    group: int = 0


def best_weight(
    offered: Sequence[Offered], replicas: Sequence[int], costs: Sequence[Sequence[int]], weights: Sequence[float]
) -> float:
    """The most weight in time, over all batches on all replicas in all orders.

    Args:
        offered: The requests, at most about 6.
        replicas: How many each model has.
        costs: Per model, seconds per batch size from 1 on.
        weights: Per class.
    """

    @cache
    def search(left: int, free: tuple[tuple[int, ...], ...]) -> float:
        best = 0.0
        chosen = left
        while chosen:
            batch = [offer for place, offer in enumerate(offered) if chosen >> place & 1]
            model = batch[0].model
            if len(batch) <= len(costs[model]) and all(offer.model == model for offer in batch):
                worth = sum(weights[offer.group] for offer in batch)
                for place, idle in enumerate(free[model]):
                    end = max(idle, *(offer.arrival for offer in batch)) + costs[model][len(batch) - 1]
                    if end <= min(offer.arrival + offer.timeout for offer in batch):
                        mine = tuple(sorted((*free[model][:place], end, *free[model][place + 1 :])))
                        after = (*free[:model], mine, *free[model + 1 :])
                        best = max(best, worth + search(left & ~chosen, after))
            chosen = (chosen - 1) & left
        return best

    return search((1 << len(offered)) - 1, tuple((0,) * count for count in replicas))
