"""Cost buckets: the few lengths that variable axes are padded to."""

from __future__ import annotations

from bisect import bisect_left


def bucket_for(length: int, buckets: tuple[int, ...]) -> int:
    """The smallest bucket that holds ``length``; the largest of all if none does. Buckets ascend."""
    return buckets[min(bisect_left(buckets, length), len(buckets) - 1)]
