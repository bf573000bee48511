"""Sizes of axes as monomials: a whole number times symbols, such as ``2 * N * tokens``.

Products and exact quotients of them are all that moving rows about needs. What is not a monomial, a sum say, is a new
symbol to whoever makes it, as long as it has nothing to do with the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

BATCH = "N"
"""The symbol of the number of rows. Every other symbol begins with ``#`` (a size) or ``?`` (a number of any sign)."""


class Dim(NamedTuple):
    """A size: ``coefficient`` times the product of symbols to positive powers, sorted by symbol."""

    coefficient: int
    powers: tuple[tuple[str, int], ...] = ()

    def times(self, other: Dim) -> Dim:
        """The product of both."""
        coefficient = self.coefficient * other.coefficient
        if coefficient == 0:
            return Dim(0)
        if not other.powers:
            return Dim(coefficient, self.powers)
        powers = dict(self.powers)
        for symbol, power in other.powers:
            powers[symbol] = powers.get(symbol, 0) + power
        return Dim(coefficient, tuple(sorted(powers.items())))

    def over(self, other: Dim) -> Dim | None:
        """The quotient, or None where it is not known to be whole."""
        if other.coefficient == 0 or self.coefficient % other.coefficient:
            return None
        if self.coefficient == 0:
            return self
        powers = dict(self.powers)
        for symbol, power in other.powers:
            left = powers.get(symbol, 0) - power
            if left < 0:
                return None
            powers[symbol] = left
        quotient = self.coefficient // other.coefficient
        return Dim(quotient, tuple(sorted((symbol, power) for symbol, power in powers.items() if power)))

    @property
    def literal(self) -> int | None:
        """The number it is, or None where it has symbols."""
        return None if self.powers else self.coefficient

    @property
    def has_batch(self) -> bool:
        """Whether it grows with the number of rows."""
        return any(symbol == BATCH for symbol, _ in self.powers)

    @property
    def is_size(self) -> bool:
        """Whether it cannot be negative: no number of unknown sign is in it."""
        return self.coefficient >= 0 and not any(symbol.startswith("?") for symbol, _ in self.powers)

    def __str__(self) -> str:
        factors = [symbol if power == 1 else f"{symbol}^{power}" for symbol, power in self.powers]
        return "*".join([str(self.coefficient), *factors])


ONE = Dim(1)
ROWS_IN_BATCH = Dim(1, ((BATCH, 1),))

Shape = tuple[Dim, ...]


def product(dims: Iterable[Dim]) -> Dim:
    """The product of all; one where there are none."""
    result = ONE
    for dim in dims:
        result = result.times(dim)
    return result


def named(symbol: str) -> Dim:
    """One symbol as a size."""
    return Dim(1, ((symbol, 1),))
