"""Counts this process's available and used cores."""

from __future__ import annotations

import os
from contextlib import suppress
from math import inf
from pathlib import Path
from time import perf_counter, thread_time

import psutil

_ROOT, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


class CoreMeter:
    """Measures usage since the last call. For one thread, the event loop's."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._quota, self._group = inf, None
        with suppress(OSError):
            self._quota, self._group = _limit(_ROOT, _MEMBERSHIP.read_text())
        self._before = 0.0, 0.0, 0.0
        self.read(1)

    def read(self, cores: int) -> tuple[float, float]:
        """This process's load, 0 to 1, and the available cores that no process used.

        Decoding and light models run in the event loop's one thread. So the load is the larger of the loop's and of the
        whole process's on the cores of its runs.

        Args:
            cores: Of its runs.
        """
        then, loop_then, group_then = self._before
        now, loop, group = perf_counter(), thread_time(), 0.0 if self._group is None else used_s(self._group)
        self._before, seconds = (now, loop, group), now - then
        busy = max(self._process.cpu_percent() / 100 / cores, (loop - loop_then) / seconds)
        usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
        shares = enumerate(psutil.cpu_percent(percpu=True))
        idle = sum(1 - share / 100 for core, share in shares if not usable or core in usable)
        return min(1.0, busy), max(0.0, min(idle, self._quota - (group - group_then) / seconds))


def available_cores() -> int:
    """The cores allowed to it, bounded by its control groups; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError):
        cores = int(min(cores, cpu_quota(_ROOT, _MEMBERSHIP.read_text())))
    return max(1, cores)


def cpu_quota(root: Path, membership: str) -> float:
    """CPUs allowed by the control groups (v1, v2): the minimum over each group and its parents.

    Args:
        root: Mount point of their file system.
        membership: Content of ``/proc/self/cgroup``.
    """
    return _limit(root, membership)[0]


def _limit(root: Path, membership: str) -> tuple[float, Path | None]:
    """The minimum, and its group."""
    least: tuple[float, Path | None] = inf, None
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            mounted = root / "cpu" if controllers else root
            group = mounted / path.lstrip("/")  # may be the host's, in a container: what is mounted is its own then
            for each in (group, *group.parents):
                if each.is_relative_to(mounted) and (quota := _quota(each)) < least[0]:
                    least = quota, each
    return least


def used_s(group: Path) -> float:
    """Total CPU seconds of a control group (v1, v2); 0.0 if unknown."""
    with suppress(OSError, ValueError):
        used = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
        if "usage_usec" in used:
            return int(used["usage_usec"]) / 1e6
    with suppress(OSError, ValueError):
        return int((group / "cpuacct.usage").read_text()) / 1e9
    return 0.0


def _quota(group: Path) -> float:
    with suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else inf
    return inf
