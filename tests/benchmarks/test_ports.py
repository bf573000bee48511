"""Free ports: no two processes get the same one."""

from __future__ import annotations

import os
import subprocess
import sys

from serve_process import ROOT

from benchmarks.ports import free_port_range, free_ports

# A twelfth of all: two that did not know of each other would have some in common.
_TAKES_MANY = (
    "import sys; from benchmarks.ports import free_ports; print(*free_ports(1000), flush=True); sys.stdin.read()"
)


def test_processes_get_ports_of_their_own() -> None:
    """Of two that are there at once, whether or not they listen yet."""

    def started() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _TAKES_MANY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    with started() as first, started() as second:
        assert first.stdout is not None
        assert second.stdout is not None
        mine, others = (set(stream.readline().split()) for stream in (first.stdout, second.stdout))
        for each in (first, second):
            assert each.stdin is not None
            each.stdin.close()
    assert (len(mine), len(others)) == (1000, 1000)
    assert mine.isdisjoint(others)


def test_no_port_is_given_twice() -> None:
    """Not even one that nobody listens on yet."""
    ports = free_ports(50)
    first = free_port_range(50)
    assert len({*ports, *range(first, first + 50)}) == 100
