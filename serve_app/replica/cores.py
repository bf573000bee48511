"""How many cores this process may compute with."""

from __future__ import annotations

import os
from contextlib import suppress
from math import inf
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def available_cores() -> int:
    """Those that it may run on, and no more than the quotas of its control groups (v1 or v2) pay for; at least 1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    membership = ""
    with suppress(OSError):
        membership = _MEMBERSHIP.read_text()
    return max(1, min(cores, int(min(cores, cpu_quota(_CGROUPS, membership)))))


def cpu_quota(root: Path, membership: str) -> float:
    """CPUs that control groups allow, the least of each group and those above it; ``inf``: any number.

    Args:
        root: Where their file system is mounted.
        membership: What ``/proc/self/cgroup`` says.
    """
    least = inf
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mounted = root / "cpu" if controllers else root
        # In a container the path may be the host's: then the mounted root is this group.
        folder = mounted / path.lstrip("/")
        for group in (folder, *folder.parents):
            least = min(least, _quota(group))
            if group == mounted:
                break
    return least


def _quota(group: Path) -> float:
    with suppress(OSError, ValueError):
        quota, _, period = (group / "cpu.max").read_text().partition(" ")
        return int(quota) / int(period)
    with suppress(OSError, ValueError):
        allowed = int((group / "cpu.cfs_quota_us").read_text())
        return allowed / int((group / "cpu.cfs_period_us").read_text()) if allowed > 0 else inf
    return inf
