"""A sparse linear programme that is put together in blocks and maximised by HiGHS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(slots=True)
class _Block:
    """Rows of a constraint matrix in coordinate form, and their right-hand sides."""

    rows: list[Integers] = field(default_factory=list)
    columns: list[Integers] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)
    sides: list[Floats] = field(default_factory=list)
    count: int = 0

    def open(self, sides: Floats) -> Integers:
        first = self.count
        self.count += len(sides)
        self.sides.append(sides)
        return np.arange(first, self.count)

    def put(self, rows: Integers, columns: Integers, values: ArrayLike) -> None:
        self.rows.append(rows)
        self.columns.append(columns)
        self.values.append(np.broadcast_to(np.asarray(values, dtype=np.float64), rows.shape))


class Programme:
    """Maximise ``worth . x`` for ``0 <= x <= upper``, with rows ``A x <= b`` and ``A x = b``."""

    def __init__(self) -> None:
        self._worth: list[Floats] = []
        self._upper: list[Floats] = []
        self._size = 0
        self.limits = _Block()
        self.balances = _Block()

    @property
    def size(self) -> int:
        """Variables so far."""
        return self._size

    def variables(self, count: int, upper: ArrayLike = np.inf, worth: ArrayLike = 0.0) -> Integers:
        """Add variables and return their numbers."""
        first = self._size
        self._size += count
        self._upper.append(np.broadcast_to(np.asarray(upper, dtype=np.float64), (count,)))
        self._worth.append(np.broadcast_to(np.asarray(worth, dtype=np.float64), (count,)))
        return np.arange(first, self._size)

    def allows_most(self) -> bool:
        """Whether all variables at their upper bounds meet the limits so far (balances are not looked at)."""
        if not self.limits.count or not self.limits.rows:
            return True
        upper = np.concatenate(self._upper)
        used = np.concatenate(self.limits.values) * upper[np.concatenate(self.limits.columns)]
        totals = np.bincount(np.concatenate(self.limits.rows), used, self.limits.count)
        return bool((totals <= np.concatenate(self.limits.sides)).all())

    def maximise(self) -> float:
        """The optimum.

        Raises:
            ModuleNotFoundError: SciPy is missing.
            RuntimeError: The solver gave up.
        """
        if not self._size:
            return 0.0
        try:
            from scipy.optimize import linprog  # noqa: PLC0415 - only bounds need it
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("upper bounds need SciPy: pip install scipy", name="scipy") from error
        upper = np.concatenate(self._upper)
        result: Any = linprog(
            -np.concatenate(self._worth),
            *self._matrix(self.limits),
            *self._matrix(self.balances),
            bounds=np.column_stack([np.zeros(self._size), upper]),
            method="highs-ipm",
        )
        if result.status != 0:
            raise RuntimeError(f"the solver found no bound: {result.message}")
        return -float(result.fun)

    def _matrix(self, block: _Block) -> tuple[Any, Floats | None]:
        from scipy.sparse import csr_matrix  # noqa: PLC0415 - see above

        if not block.count:
            return None, None
        coordinates = (np.concatenate(block.rows), np.concatenate(block.columns))
        shape = (block.count, self._size)
        return csr_matrix((np.concatenate(block.values), coordinates), shape=shape), np.concatenate(block.sides)
