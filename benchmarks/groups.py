"""What became of the requests of each class: on a real server, and as the simulator says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.open_loop_workload import Result, Workload
from serve_app.domain.priority import Priority
from serve_app_simulator.results import Result as Simulated
from serve_app_simulator.results import Tally


@dataclass(frozen=True, slots=True)
class Group:
    """What became of the requests of one class, or of all.

    Attributes:
        offered: How many were sent.
        in_time: How many were answered by their deadline.
        p50_s: Median latency of the answers; ``None`` without answers.
        p99_s: 99th percentile.
    """

    offered: int
    in_time: int
    p50_s: float | None
    p99_s: float | None

    @property
    def attainment(self) -> float:
        """In time / offered."""
        return self.in_time / max(1, self.offered)


def masks(workload: Workload, counts: npt.NDArray[np.bool_] | None = None) -> dict[str, npt.NDArray[np.bool_]]:
    """Which requests are of a group: ``all``, and those of each class by its label, as far as there are any.

    Args:
        workload: What was sent.
        counts: Which of them count; all by default.
    """
    every = np.ones(len(workload), np.bool_) if counts is None else counts
    found = {"all": every, **{each.label: every & (workload.priority == each) for each in Priority}}
    return {name: mask for name, mask in found.items() if mask.any()}


def observed_groups(
    workload: Workload, result: Result, counts: npt.NDArray[np.bool_] | None = None
) -> dict[str, Group]:
    """The groups of a workload that a real server was given; see `masks`."""
    in_time = result.in_time(workload)
    found = {}
    for name, mask in masks(workload, counts).items():
        latencies = result.latency_s[mask & (result.status == 200)]
        p50, p99 = np.quantile(latencies, (0.5, 0.99)).tolist() if len(latencies) else (None, None)
        found[name] = Group(int(mask.sum()), int(in_time[mask].sum()), p50, p99)
    return found


def simulated_groups(result: Simulated) -> dict[str, Group]:
    """The groups of a simulated workload: ``all``, and each class by its label."""
    return {"all": _group(result.total), **{name: _group(tally) for name, tally in result.classes.items()}}


def _group(tally: Tally) -> Group:
    return Group(tally.offered, tally.in_time, tally.p50_s, tally.p99_s)
