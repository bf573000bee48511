"""How many replicas a model should have."""

from __future__ import annotations

from math import ceil

_TOLERANCE = 0.1


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
    on_target = current * target_rows
    wanted = current if abs(load_rows - on_target) <= _TOLERANCE * on_target else ceil(load_rows / target_rows)
    return max(minimum, min(maximum, wanted))
