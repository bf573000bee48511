"""What ends a benchmark."""

from __future__ import annotations


class BenchmarkError(Exception):
    """Something that makes figures impossible or worthless; the message says what, and what to do about it."""
