"""Chooses the numbers of rows that batches on a GPU are filled up to, by measuring the loaded model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Final, TypeAlias

import numpy as np

from serve_app.backends.backend import Backend, SessionLost
from serve_app.config.model import ModelConfig
from serve_app.domain.row_sizes import row_sizes
from serve_app.errors import ServeAppError
from serve_app.payloads import Tensors
from serve_app.replica.warm_up import ReplicaWarmUp
from serve_app.scheduling.batching.latency import LatencyModel

_log = logging.getLogger(__name__)

MOST: Final = 16
"""Most sizes: each has a session and a copy of the weights."""
_ATTEMPTS: Final = 4
"""Each has half as many sizes as the one before, up to half as many rows, and so takes less than half the memory."""
_SLOWER: Final = 2.0
"""Sizes are chosen where a change of rows makes a run so many times slower."""
_REPEATS: Final = 3


Load: TypeAlias = Callable[[ModelConfig], None]
"""Replaces a model's backends by those of another configuration. Raises `ConfigError` if one cannot be loaded."""
Warm: TypeAlias = Callable[[], ReplicaWarmUp]


def choose_row_sizes(
    model: ModelConfig, backends: Mapping[str, Backend], warm_up: ReplicaWarmUp, load: Load, warm: Warm
) -> tuple[ModelConfig, ReplicaWarmUp]:
    """Choose row sizes where they pay, load all builds with them, and warm these up again.

    Args:
        backends: By variant, loaded without row sizes.
        warm_up: Of these backends.

    Raises:
        SessionLost: The session has ended.
    """
    try:
        pays = bool(warm_up.executions) and prepares_each_shape(backends[""], warm_up.examples[""])
    except SessionLost:
        raise
    except ServeAppError as error:
        _log.warning("%s: no row sizes are chosen: %s", model.name, error)
        pays = False
    return fill_up(model, backends, warm_up, load, warm) if pays else (model, warm_up)


def fill_up(
    model: ModelConfig, backends: Mapping[str, Backend], warm_up: ReplicaWarmUp, load: Load, warm: Warm
) -> tuple[ModelConfig, ReplicaWarmUp]:
    """Load all builds with row sizes by the measured costs, as many as fit into memory; as `choose_row_sizes`."""
    latency = LatencyModel()
    latency.seed([(each.rows, each.bucket, each.seconds) for each in warm_up.executions if not each.variant])
    costs = [partial(latency.predict, bucket=bucket) for bucket in latency.buckets]
    rows = model.batching.configured_rows
    for attempt in range(_ATTEMPTS):
        sizes = row_sizes(costs, max(1, rows >> attempt), MOST >> attempt)
        sized = model.model_copy(update={"resources": model.resources.model_copy(update={"row_sizes": sizes})})
        try:
            load(sized)
            for variant, example in warm_up.examples.items():
                for size in sizes:
                    backends[variant].run(repeated(example, size))
            again = warm()
        except SessionLost:
            raise
        except ServeAppError as error:
            _log.info("%s: row sizes %s do not fit: %s", model.name, sizes, error)
            continue
        if again.reason is None:
            return sized, again
    _log.warning(
        "%s: runs are slow on this GPU where batches differ in their rows, and sessions for a few numbers of rows do"
        " not fit: raise resources.gpu_memory, or lower batching.max_rows",
        model.name,
    )
    load(model)
    return model, warm_up


def prepares_each_shape(backend: Backend, example: Tensors, clock: Callable[[], float] = perf_counter) -> bool:
    """Whether a run takes much longer after one of other rows than after one of as many, as a convolution of CUDA does.

    Args:
        example: Of one row.
    """

    def seconds(rows: int) -> float:
        inputs = repeated(example, rows)
        began = clock()
        backend.run(inputs)
        return clock() - began

    for rows in (2, 4):
        seconds(rows)
    changed = min(seconds(2) + seconds(4) for _ in range(_REPEATS))
    again = min(seconds(4) for _ in range(_REPEATS))
    seconds(2)
    again += min(seconds(2) for _ in range(_REPEATS))
    return changed > _SLOWER * again


def repeated(example: Tensors, rows: int) -> Tensors:
    """So many copies of the example's first row."""
    return {name: np.repeat(array[:1], rows, axis=0) for name, array in example.items()}
