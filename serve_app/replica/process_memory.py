"""Measures a replica process's memory, and limits models that leak."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import psutil

from serve_app.errors import ConfigError

logger = logging.getLogger(__name__)

_NEAR = 0.9
_FOR_RUNS = 0.7


def own_memory() -> int:
    """Bytes of memory that this process alone holds.

    Excludes shared memory, such as the router's arena and libraries, if the system reports it.
    """
    memory = psutil.Process().memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


class ProcessMemory:
    """Enforces a process's limit through its health check.

    Args:
        limit: Bytes, if limited.
        measure: Bytes that the process holds.
    """

    def __init__(self, name: str, limit: int | None, measure: Callable[[], int] = own_memory) -> None:
        self._name = name
        self._limit = limit
        self._measure = measure
        self._warned = False

    def check_start(self) -> None:
        """Raise `ConfigError` if the model needs more than the limit: every replica would be replaced for ever."""
        held = self._measure()
        if self._limit is not None and held > self._limit:
            problem = (
                f"model {self._name!r}: resources.memory_limit is {_mebibytes(self._limit)}, but a replica holds"
                f" {_mebibytes(held)} after its warm-up"
            )
            raise ConfigError((problem,))

    def check(self) -> int:
        """The bytes held. Warns once near the limit.

        Raises:
            RuntimeError: The limit is exceeded.
        """
        held = self._measure()
        if self._limit is None:
            return held
        if held > self._limit:
            raise RuntimeError(
                f"{self._name}: this replica holds {_mebibytes(held)} of memory, the limit is {_mebibytes(self._limit)}"
            )
        if held > _NEAR * self._limit and not self._warned:
            self._warned = True
            logger.warning("%s: %s of memory held, %s allowed", self._name, _mebibytes(held), _mebibytes(self._limit))
        return held


class RunMemory:
    """Predicts whether growing runs fit into the remaining memory, in proportion to rows times length.

    A session keeps the memory of its largest run, so the process holds it afterwards.

    Args:
        limit: Bytes for the process; ``None``: those of the machine or its control group.
        measure: Bytes that it holds.
    """

    def __init__(self, limit: int | None, measure: Callable[[], int] = own_memory) -> None:
        self._measure = measure
        self._began = measure()
        self._room = _FOR_RUNS * (_free_memory() if limit is None else limit - self._began)
        self._largest = 0

    def fits(self, rows: int, bucket: int) -> bool:
        """Whether a run probably fits. If so, the next call assumes that it has run."""
        work = rows * max(bucket, 1)
        grown = self._measure() - self._began
        if self._largest and grown / self._largest * work > self._room:
            return False
        self._largest = max(self._largest, work)
        return True


def memory_problem(needed: int, limit: int | None, measure: Callable[[], int] = own_memory) -> str | None:
    """Why this process may not take this much more memory, if so.

    Args:
        needed: Bytes.
        limit: Total bytes; ``None``: those of the machine or its control group.
        measure: Bytes that it holds.
    """
    if limit is None:
        free = _free_memory()
        return None if needed <= free else f"needs about {_mebibytes(needed)} of memory, and {_mebibytes(free)} is free"
    held = measure()
    if held + needed <= limit:
        return None
    return (
        f"does not fit beside the present one: the replica holds {_mebibytes(held)}, it needs about"
        f" {_mebibytes(needed)}, and resources.memory_limit is {_mebibytes(limit)}"
    )


def _free_memory() -> int:
    """Available bytes of the machine or of this process's control group."""
    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        most = int((group / "memory.max").read_text())  # "max" where there is no limit
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return free
    return max(0, min(free, most - used))


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / 1024**2:.0f} MiB"
