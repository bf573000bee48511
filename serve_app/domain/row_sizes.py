"""The numbers of rows that runs are warmed up for."""

from __future__ import annotations


def row_buckets(max_rows: int) -> tuple[int, ...]:
    """The numbers of rows to warm up: powers of two, and the maximum itself."""
    powers = [1 << exponent for exponent in range(max_rows.bit_length())]
    return tuple(dict.fromkeys([*powers, max_rows]))
