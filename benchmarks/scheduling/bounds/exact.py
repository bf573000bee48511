"""The most requests that one server can answer in time, by dynamic programming. The planner knows the future.

One server runs batches one after another; a batch of b requests takes L(b). When deadlines stand in the same order as
arrivals, some best schedule serves in order of arrival and leaves nobody out between the first and the last request of
a batch: an exchange shows it (two served out of order swap places; one left out takes the place of the first in its
batch, whose deadline is no later). So a schedule is a sequence of runs of arrivals that are served, one batch each, and
of arrivals that are dropped. With ``F[j][m]`` the earliest time at which the server is free after the first j arrivals,
m of which were dropped:

    F[j][m] = min( F[j-1][m-1],                                            j is dropped
                   min over b of  max(F[j-b][m], a_j) + L(b) =: f,         j ends a batch of b
                                  as far as f <= d_(j-b+1) )

and the answer is n less the smallest m for which ``F[n][m]`` is finite. Counting the dropped instead of the served
keeps the predecessors in one column, so that a step is a few numpy operations on a B x width block. The width is small:

- a state with m above the first one that is free at the next arrival is worth no more than that one (the later start
  is the same, fewer are dropped), and it is left out;
- columns below the fewest drops possible are empty, and that number never falls.

What is left lies between these two: as many drops as a server can save by being busy for one deadline's length.
The recurrence and its exchange argument are that of serial batching with agreeable deadlines; see Brucker et al.,
"Scheduling a batching machine" (Journal of Scheduling, 1998), for the family.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

TOLERANCE_S = 2e-9
"""Deadlines are this much later than given: the simulator forgives 1e-9 s and rounds sums of times in other orders."""
_BLOCK = 2048

Floats = NDArray[np.float64]


class PlannedBatch(NamedTuple):
    """One batch of a best schedule.

    Attributes:
        first: Index of its first request; the others follow it.
        size: How many requests.
        start_s: When it starts.
        end_s: When it ends.
    """

    first: int
    size: int
    start_s: float
    end_s: float


def exact_bound(arrivals: ArrayLike, deadlines: ArrayLike, latency: Callable[[int], float], max_rows: int) -> int:
    """Count the most requests that one server can answer in time.

    What is fixed per request folds into the columns: add the way to the server to ``arrivals``, take the way back off
    ``deadlines``. What a batch keeps the server from doing besides belongs into ``latency``.

    Args:
        arrivals: When each request can first be executed, seconds, ascending; shape (n,). One row each.
        deadlines: When its execution must have ended, seconds, ascending too; shape (n,).
        latency: Seconds for a batch of that many rows, 1 to ``max_rows``. Where a larger batch takes less time, a
            smaller one is taken to be padded to it.
        max_rows: The most rows in a batch.

    Returns:
        How many are in time; an execution that ends at its deadline is.

    Raises:
        ValueError: The columns differ in length or are not finite and ascending, ``max_rows`` is below 1, or a latency
            is not positive and finite.
    """
    released, due = _columns(arrivals, deadlines)
    dropped = _solve(released, due, batch_costs(latency, max_rows), None)
    return len(released) - dropped


def exact_schedule(
    arrivals: ArrayLike, deadlines: ArrayLike, latency: Callable[[int], float], max_rows: int
) -> list[PlannedBatch]:
    """Find a schedule that attains `exact_bound`. Takes the same and keeps every state: about 1 kB per request.

    Returns:
        Its batches in order of time.

    Raises:
        ValueError: As `exact_bound`.
    """
    released, due = _columns(arrivals, deadlines)
    costs = batch_costs(latency, max_rows)
    states: list[tuple[int, Floats]] = []
    dropped = _solve(released, due, costs, states)

    def free_after(count: int, column: int) -> float:
        low, row = states[count]
        return float(row[column - low]) if low <= column < low + len(row) else np.inf

    batches: list[PlannedBatch] = []
    end = len(released)
    while end:
        free = free_after(end, dropped)
        if free_after(end - 1, dropped - 1) <= free:
            end, dropped = end - 1, dropped - 1
            continue
        for size in range(1, min(max_rows, end) + 1):
            start = max(free_after(end - size, dropped), float(released[end - 1]))
            if start + costs[size - 1] == free and free <= due[end - size]:
                break
        batches.append(PlannedBatch(end - size, size, start, free))
        end -= size
    return batches[::-1]


def _solve(released: Floats, due: Floats, costs: Floats, states: list[tuple[int, Floats]] | None) -> int:
    """Count the drops of a best schedule; append (first column, free times) of every row to ``states`` if given."""
    total, depth = len(released), len(costs)
    if states is not None:
        states.append((0, np.array([-np.inf])))
    reach = _feasible_sizes(released, due, costs)
    nexts = np.append(released[1:], np.finfo(np.float64).max)
    lengths = costs[::-1, None].copy()
    # Row `depth + i` of the table belongs to the first `base + i` arrivals; its columns are `left`, `left + 1`, ...
    # drops. Of the states after j arrivals, those in use are in columns lows[j] to highs[j].
    table, base, left = np.full((depth + _BLOCK, 256), np.inf), 0, 0
    table[depth, 0] = -np.inf
    lows, highs = [0], [0]
    for j in range(1, total + 1):
        size = int(reach[j - 1])
        low, high = lows[-max(size, 1)], max(highs[-max(size, 1) :])
        here = depth + j - base
        if here == len(table) or high + 2 - left > table.shape[1]:
            bottom, top = lows[-min(depth, j)], max(highs[-depth:]) + 1
            kept = table[here - depth : here, bottom - left : top - left].copy()
            table = np.full((depth + _BLOCK, max(256, 3 * (top + 1 - bottom))), np.inf)
            table[:depth, : kept.shape[1]] = kept
            base, left, here = j, bottom, depth
        span = slice(low - left, high + 2 - left)
        row = table[here, span]
        row[1:] = table[here - 1, low - left : high + 1 - left]
        if size:
            free = np.maximum(table[here - size : here, span], released[j - 1])
            free += lengths[depth - size :]
            free[free > due[j - size : j, None]] = np.inf
            np.minimum(row, free.min(axis=0), out=row)
        first = int((row < np.inf).argmax())
        idle = row <= nexts[j - 1]
        last = int(idle.argmax())
        if idle[last]:
            row[last + 1 :] = np.inf
        else:
            last = len(row) - 1 - int((row[::-1] < np.inf).argmax())
        lows.append(low + first)
        highs.append(low + last)
        if states is not None:
            states.append((low + first, row[first : last + 1].copy()))
    return lows[-1]


def _feasible_sizes(released: Floats, due: Floats, costs: Floats) -> NDArray[np.int64]:
    """For each request, the largest batch that it can end: started when it arrives, in time for its first request."""
    sizes = np.zeros(len(released), dtype=np.int64)
    for size, cost in enumerate(costs[: len(released)], 1):
        # Costs rise and deadlines of earlier requests fall with the size: once infeasible, infeasible from there on.
        sizes[size - 1 :] += released[size - 1 :] + cost <= due[: len(due) - size + 1]
    return sizes


def batch_costs(latency: Callable[[int], float], max_rows: int) -> Floats:
    """Seconds per batch size, never falling with the size."""
    if max_rows < 1:
        raise ValueError(f"max_rows must be at least 1, not {max_rows}")
    costs = np.array([latency(rows) for rows in range(1, max_rows + 1)], dtype=np.float64)
    if not (np.isfinite(costs).all() and (costs > 0.0).all()):
        raise ValueError("latency must be positive and finite for every number of rows")
    return np.minimum.accumulate(costs[::-1])[::-1].copy()


def _columns(arrivals: ArrayLike, deadlines: ArrayLike) -> tuple[Floats, Floats]:
    released, due = np.asarray(arrivals, dtype=np.float64), np.asarray(deadlines, dtype=np.float64)
    if released.ndim != 1 or released.shape != due.shape:
        raise ValueError(f"arrivals and deadlines must be columns of one length, not {released.shape} and {due.shape}")
    if not (np.isfinite(released).all() and np.isfinite(due).all()):
        raise ValueError("arrivals and deadlines must be finite")
    for name, column in (("arrivals", released), ("deadlines", due)):
        falls = np.flatnonzero(np.diff(column) < 0.0)
        if len(falls):
            raise ValueError(f"{name} must ascend: request {falls[0] + 1} comes before request {falls[0]}")
    return released, due + TOLERANCE_S
