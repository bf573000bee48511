"""Fairness over sizes: no kind of request is given up so often that hardly any of it is ever in time.

The run with the most answers per second leaves out expensive requests: in an overload always those of many rows and
long sequences. So every size of a class, its cost bucket and its rows up to the next powers of two, has a deficit: the
answers by which it is short of a fraction of the class's mean attainment. A size that is short of a whole answer goes
first, with others of its size, until it is not: if a fraction is guaranteed in any case, else where that is free
(`batching.composition`).

Source: the deficit counter of deficit round robin (Shreedhar and Varghese, SIGCOMM 1995), in answers.
"""

from __future__ import annotations

from typing import Final

from serve_app.scheduling.entry import Entry

Size = tuple[int, int]
"""Cost bucket and rows, each up to the next power of two."""

_WANTED: Final = 0.5
_RECENT: Final = 1.0 / 256
_MOST: Final = 4.0
"""Bound of deficits in both directions, in answers: neither credit nor debt grows without bound."""
_REMEMBERED: Final = 64


def size_of(entry: Entry) -> Size:
    """The size of an entry."""
    return (entry.bucket - 1).bit_length() if entry.bucket else 0, (entry.rows - 1).bit_length()


class SizeFairness:
    """The deficits of one class.

    Args:
        part: Fraction of the class's mean attainment that each size is guaranteed, 0 to 1. 0: none is, and those below
            a half are short.
    """

    __slots__ = ("_deficit", "_mean", "_part")

    def __init__(self, part: float) -> None:
        self._part = part or _WANTED
        self._mean = 1.0
        self._deficit: dict[Size, float] = {}

    def ended(self, entry: Entry, *, ran: bool) -> None:
        """Record that an entry of this class was run, or given up."""
        deficit, answers = self._deficit, float(ran)
        self._mean += _RECENT * (answers - self._mean)
        size = size_of(entry)
        short = deficit.get(size, 0.0) + self._part * self._mean - answers
        deficit[size] = min(_MOST, max(-_MOST, short))
        if len(deficit) > _REMEMBERED:
            del deficit[min(deficit, key=lambda size: abs(deficit[size]))]

    def short(self) -> list[Size]:
        """The sizes that are short of an answer, the one with the largest deficit first."""
        deficit = self._deficit
        if max(deficit.values(), default=0.0) < 1.0:
            return []
        return sorted((size for size in deficit if deficit[size] >= 1.0), key=deficit.__getitem__, reverse=True)
