"""The best of all schedules, found by trying them all: what bounds are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple


class Wish(NamedTuple):
    """A request in whole seconds; ``model`` and ``group`` (its class) are places in lists."""

    arrival: int
    timeout: int
    model: int = 0
    group: int = 0


def best_weight(
    wishes: Sequence[Wish], replicas: Sequence[int], costs: Sequence[Sequence[int]], weights: Sequence[float]
) -> float:
    """The most weight in time, over all batches on all replicas in all orders.

    Args:
        wishes: The requests, at most about 6.
        replicas: How many each model has.
        costs: Per model, seconds per batch size from 1 on.
        weights: Per class.
    """

    @cache
    def search(left: int, free: tuple[tuple[int, ...], ...]) -> float:
        best = 0.0
        chosen = left
        while chosen:
            batch = [wish for place, wish in enumerate(wishes) if chosen >> place & 1]
            model = batch[0].model
            if len(batch) <= len(costs[model]) and all(wish.model == model for wish in batch):
                worth = sum(weights[wish.group] for wish in batch)
                for place, idle in enumerate(free[model]):
                    end = max(idle, *(wish.arrival for wish in batch)) + costs[model][len(batch) - 1]
                    if end <= min(wish.arrival + wish.timeout for wish in batch):
                        mine = tuple(sorted((*free[model][:place], end, *free[model][place + 1 :])))
                        after = (*free[:model], mine, *free[model + 1 :])
                        best = max(best, worth + search(left & ~chosen, after))
            chosen = (chosen - 1) & left
        return best

    return search((1 << len(wishes)) - 1, tuple((0,) * count for count in replicas))
