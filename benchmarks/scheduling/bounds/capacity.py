"""A bound in closed form: what replicas can execute when they never wait and every batch is the best one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from benchmarks.scheduling.bounds.linear import LinearBound, ModelReplicas


def capacity_bound(
    arrivals: ArrayLike,
    deadlines: ArrayLike,
    models: ArrayLike,
    classes: ArrayLike,
    rows: ArrayLike,
    replicas: Sequence[ModelReplicas],
    weights: Sequence[float],
) -> LinearBound:
    """Bound by capacity: per model, ``replicas * max_b(b / L(b))`` rows per second from first arrival to last deadline.

    Looser than `benchmarks.scheduling.bounds.linear.linear_bound`; without slots, without a solver, for a sanity check.
    Takes the same columns; the rows that fit go to the requests that are worth most per row, the last one in part.
    """
    released, due = np.asarray(arrivals, dtype=np.float64), np.asarray(deadlines, dtype=np.float64)
    model, group = np.asarray(models, dtype=np.int64), np.asarray(classes, dtype=np.int64)
    size, worth = np.asarray(rows, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    everything = np.ones(len(released), dtype=np.bool_)

    def best(chosen: np.typing.NDArray[np.bool_], value: np.typing.NDArray[np.float64]) -> float:
        total = 0.0
        for place, served in enumerate(replicas):
            mine = np.flatnonzero(chosen & (model == place))
            if not len(mine):
                continue
            fastest = max(count / served.latency(count) for count in range(1, served.max_rows + 1))
            room = served.replicas * fastest * float(due[mine].max() - released[mine].min())
            mine = mine[np.argsort(-value[mine] / size[mine], kind="stable")]
            before = np.cumsum(size[mine]) - size[mine]
            total += float((value[mine] * np.clip((room - before) / size[mine], 0.0, 1.0)).sum())
        return total

    one = np.ones(len(released))
    per_class = tuple(best(group == place, one) for place in range(len(worth)))
    return LinearBound(best(everything, worth[group]), best(everything, one), per_class)
