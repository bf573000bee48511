"""A plain schedule, to see at once that everything can be answered in time and no bound need be calculated."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def serves_all(arrivals: Floats, deadlines: Floats, rows: Integers, costs: Floats, replicas: int) -> bool:
    """Whether batches by earliest deadline, as large as what waits and the deadlines allow, leave no request late.

    Args:
        arrivals: Seconds, in any order; shape (n,).
        deadlines: Seconds.
        rows: Rows of each.
        costs: Seconds per batch size, never falling; shape (max_rows,).
        replicas: How many run side by side.

    Returns:
        ``False`` says nothing: another schedule may do better.
    """
    if replicas < 1 or (len(rows) and int(rows.max()) > len(costs)):
        return False
    order = np.argsort(arrivals, kind="stable")
    coming = list(zip(arrivals[order].tolist(), deadlines[order].tolist(), rows[order].tolist(), strict=True))
    waiting: list[tuple[float, int]] = []
    free = [-np.inf] * replicas
    at = 0
    while at < len(coming) or waiting:
        now = free[0] if waiting else max(free[0], coming[at][0])
        while at < len(coming) and coming[at][0] <= now:
            heappush(waiting, coming[at][1:])
            at += 1
        room = int(np.searchsorted(costs, waiting[0][0] - now, side="right"))
        taken = 0
        while waiting and taken + waiting[0][1] <= room:
            taken += heappop(waiting)[1]
        if not taken:
            return False
        heapreplace(free, now + float(costs[taken - 1]))
    return True
