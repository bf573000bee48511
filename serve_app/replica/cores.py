"""How many cores this process may compute with, and how many it does."""

from __future__ import annotations

import os
from contextlib import suppress
from math import inf
from pathlib import Path
from time import perf_counter, thread_time

import psutil


class CoreMeter:
    """Tells what was computed since it was asked before. Asked in one thread, that of the event loop."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._cores = available_cores()
        self._before = 0.0, 0.0
        self.read(1)

    def read(self, cores: int) -> tuple[float, float]:
        """How busy this process is, 0 to 1, and how many of the cores that it might use nobody has used.

        Its event loop is one thread, and what decodes and runs light models; so it is as busy as its loop is, or all
        of it on the cores that its runs use.

        Args:
            cores: Of its runs.
        """
        used = self._process.cpu_percent() / 100
        idle = (1 - psutil.cpu_percent() / 100) * (psutil.cpu_count() or 1)
        (began, before), self._before = self._before, (perf_counter(), thread_time())
        loop = (self._before[1] - before) / (self._before[0] - began)
        return max(used / cores, loop), max(0.0, min(idle, self._cores - used))


def available_cores() -> int:
    """Those that it may run on, and no more than its control groups pay for; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError):
        cores = int(min(cores, cpu_quota(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup").read_text())))
    return max(1, cores)


def cpu_quota(root: Path, membership: str) -> float:
    """CPUs that control groups (v1, v2) mounted there allow: the least of each group and those above it.

    Args:
        root: Where their file system is mounted.
        membership: What ``/proc/self/cgroup`` says.
    """
    least = inf
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            mounted = root / "cpu" if controllers else root
            group = mounted / path.lstrip("/")  # may be the host's, in a container: what is mounted is its own then
            least = min(least, *(_quota(each) for each in (group, *group.parents) if each.is_relative_to(mounted)))
    return least


def _quota(group: Path) -> float:
    with suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else inf
    return inf
