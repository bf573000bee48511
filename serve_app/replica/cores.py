"""How many cores this process may compute with."""

from __future__ import annotations

import os
from contextlib import suppress
from math import inf
from pathlib import Path


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
