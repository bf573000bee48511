"""How many CPUs control groups leave to a process."""

from __future__ import annotations

import time
from math import inf
from pathlib import Path

import pytest

from serve_app.replica.cores import CoreMeter, available_cores, cpu_quota, used_s


def write(root: Path, files: dict[str, str]) -> Path:
    """Files of control groups."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")
    return root


@pytest.mark.parametrize(
    ("files", "membership", "cpus"),
    [
        ({}, "0::/", inf),
        ({}, "", inf),
        ({"cpu.max": "max 100000"}, "0::/", inf),
        ({"cpu.max": "150000 100000"}, "0::/", 1.5),
        ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b", 4.0),
        ({"cpu.max": "200000 100000"}, "0::/of/the/host", 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/", inf),
        ({"cpu/pod/cpu.cfs_quota_us": "50000", "cpu/pod/cpu.cfs_period_us": "100000"}, "4:cpuacct,cpu:/pod", 0.5),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, "4:memory:/", inf),
    ],
)
def test_the_least_quota_of_a_group_and_those_above_it(
    files: dict[str, str], membership: str, cpus: float, tmp_path: Path
) -> None:
    """Of both versions; a group that is not found is passed over."""
    assert cpu_quota(write(tmp_path, files), membership) == cpus


def test_there_is_a_core() -> None:
    """Whatever the quota says."""
    assert available_cores() >= 1


def test_the_meter_tells_what_this_thread_has_computed() -> None:
    """As a part of the time that has passed, whatever else runs here."""
    meter = CoreMeter()
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass

    busy, idle = meter.read(1000)

    assert 0 < busy <= 1.01
    assert 0 <= idle <= available_cores()


@pytest.mark.parametrize(
    ("files", "seconds"),
    [
        ({"cpu.stat": "usage_usec 2500000\nuser_usec 2000000"}, 2.5),
        ({"cpu.stat": "nr_periods 7\nthrottled_time 0", "cpuacct.usage": "1500000000"}, 1.5),
        ({}, 0.0),
    ],
)
def test_what_a_control_group_has_used(files: dict[str, str], seconds: float, tmp_path: Path) -> None:
    """Of both versions; one that does not tell has used nothing."""
    assert used_s(write(tmp_path, files)) == seconds
