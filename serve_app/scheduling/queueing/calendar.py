"""A priority queue for deadlines: only what is due first is kept in order.

Pairs ``(deadline, id)`` fall into cells of 1/32 s. The pairs of the first cell are a binary heap; the other cells are
plain lists, which become the heap one after the other. So that with many pairs taking the first one costs a walk
through one cell and not through all of memory. Source: the calendar queue (Brown, CACM 31(10), 1988), with a heap of
cells in place of the ring of days, so that deadlines may be spread in any way.
"""

from __future__ import annotations

from collections.abc import Container
from heapq import heapify, heappop, heappush

_CELLS_PER_S = 32
_LAST_CELL = 1 << 62
_LATEST = _LAST_CELL / _CELLS_PER_S

Pair = tuple[float, int]
"""A deadline in seconds, and an id."""


class Calendar:
    """Pairs ``(deadline, id)``, the smallest first."""

    __slots__ = ("_cells", "_later", "_now", "_until")

    def __init__(self) -> None:
        # A heap: the pairs of all cells up to this one.
        self._now: list[Pair] = []
        self._until = -1
        # The pairs of the cells after it, in no order, and a heap of these cells.
        self._later: dict[int, list[Pair]] = {}
        self._cells: list[int] = []

    def push(self, pair: Pair) -> None:
        """Add a pair."""
        deadline = pair[0]
        cell = int(deadline * _CELLS_PER_S) if deadline < _LATEST else _LAST_CELL
        if cell <= self._until:
            heappush(self._now, pair)
        elif (pairs := self._later.get(cell)) is not None:
            pairs.append(pair)
        else:
            self._later[cell] = [pair]
            heappush(self._cells, cell)

    def first(self) -> Pair | None:
        """The smallest pair, or ``None``."""
        if not self._now:
            if not self._cells:
                return None
            self._until = heappop(self._cells)
            self._now = self._later.pop(self._until)
            heapify(self._now)
        return self._now[0]

    def pop(self) -> Pair | None:
        """Remove the smallest pair, or return ``None``."""
        return heappop(self._now) if self._now or self.first() is not None else None

    def keep(self, ids: Container[int]) -> None:
        """Drop all pairs but those of these ids."""
        pairs = [pair for cell in (self._now, *self._later.values()) for pair in cell if pair[1] in ids]
        self._now, self._until, self._later, self._cells = [], -1, {}, []
        for pair in pairs:
            self.push(pair)
