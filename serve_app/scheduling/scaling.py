"""How many replicas a model should have."""

from __future__ import annotations

from collections.abc import Collection
from math import ceil

_TOLERANCE = 0.1
_BUSY = 0.8
_IDLE_CORES = 0.25


def desired_replicas(load_rows: int, target_rows: float, current: int, minimum: int, maximum: int) -> int:
    """Replicas so that each has about ``target_rows`` rows queued or running.

    A load within a tenth of what the current replicas should have keeps them, so that the number does not flap
    (the rule and the tolerance are those of the Kubernetes horizontal pod autoscaler).

    Args:
        load_rows: Rows queued in all routers plus rows running.
        target_rows: Rows per replica to aim at, above 0.
        current: Replicas there are.
        minimum: Fewest replicas; 0 lets an idle model go to sleep.
        maximum: Most replicas.

    Returns:
        A number from ``minimum`` to ``maximum``.

    Raises:
        ValueError: ``target_rows`` is not positive, or the limits contradict each other.
    """
    if not target_rows > 0:
        raise ValueError(f"target_rows must be above 0, got {target_rows}")
    if not 0 <= minimum <= maximum:
        raise ValueError(f"replica limits must satisfy 0 <= minimum <= maximum, got {minimum} and {maximum}")
    return max(minimum, min(maximum, _wanted(load_rows, target_rows, current)))


def busy_replicas(busy: Collection[float], idle_cores: float, current: int) -> int:
    """Replicas so that each computes for about 0.8 of the time; at most one more than there are.

    No more than there are if their nodes have no core left, since another would share the used ones, or while some have
    not reported yet: they are being started.

    Args:
        busy: For each replica, the fraction of time for which it computes, on all its cores.
        idle_cores: On the node of a replica that has most of them.
        current: Present replicas.
    """
    wanted = _wanted(sum(busy), _BUSY, current)
    return min(wanted, current + (idle_cores >= _IDLE_CORES and len(busy) >= current))


def routers_on(cores: int, most: int) -> int:
    """Most router processes of nodes with so many cores: half of the cores are left to replicas."""
    return max(1, min(most, cores // 2))


def _wanted(load: float, target: float, current: int) -> int:
    on_target = current * target
    return current if abs(load - on_target) <= _TOLERANCE * on_target else ceil(load / target)
