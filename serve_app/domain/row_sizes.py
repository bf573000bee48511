"""The numbers of rows that runs are warmed up for, and those that batches are filled up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

FILLING: Final = 1.15
"""A filled batch takes at most this many times as long as one of its own rows would."""
_STEP: Final = 1.02


def row_buckets(max_rows: int) -> tuple[int, ...]:
    """The numbers of rows to warm up: powers of two, and the maximum itself."""
    powers = [1 << exponent for exponent in range(max_rows.bit_length())]
    return tuple(dict.fromkeys([*powers, max_rows]))


def row_sizes(costs: Sequence[Callable[[int], float]], largest: int, most: int) -> tuple[int, ...]:
    """Choose the fewest numbers of rows to fill batches up to, so that filling costs at most `FILLING`.

    A batch of r rows runs as one of s, the next size: ``cost(s) <= FILLING * cost(r)`` for each r up to ``largest`` and
    each cost. Where that takes more than ``most`` sizes, the bound is raised in steps of 2% until it does not.

    Args:
        costs: Seconds of a run by its rows, positive and never falling; one per cost bucket.
        largest: Always one of the sizes.
        most: Most sizes, at least 1.

    Returns:
        Ascending.
    """
    bound = FILLING
    while len(sizes := _covering(costs, largest, bound)) > most:
        bound *= _STEP
    return sizes


def _covering(costs: Sequence[Callable[[int], float]], largest: int, bound: float) -> tuple[int, ...]:
    """From the largest down, each the largest that those above cannot stand in for."""
    sizes = [largest]
    for rows in range(largest - 1, 0, -1):
        if any(cost(sizes[-1]) > bound * cost(rows) for cost in costs):
            sizes.append(rows)
    return tuple(reversed(sizes))
