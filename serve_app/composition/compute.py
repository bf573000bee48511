"""Chooses a replica's threads and instances, by measuring its loaded model (`serve_app.replica.compute`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import psutil

from serve_app.backends.backend import Backend, SessionLost
from serve_app.composition.locate import ModelLocation
from serve_app.composition.model import memory_of
from serve_app.config.model import ModelConfig
from serve_app.errors import ServeAppError
from serve_app.payloads import Compute, Execution, Tensors
from serve_app.replica.compute import MOST_INSTANCES, Measured, decide, run_s, threaded, together
from serve_app.replica.cores import available_cores
from serve_app.replica.process_memory import RunMemory, own_memory
from serve_app.scheduling.batching.latency import LatencyModel

_PART = 0.03
"""Largest fraction of the warm-up's time for each of three measurements, or two runs."""


def of_one(model: ModelConfig, why: str) -> Compute:
    """The compute settings of a model that runs one batch at a time."""
    return Compute(model.resources.session_threads, 1, f"one batch at a time: {why}")


def with_threads(model: ModelConfig, threads: int) -> ModelConfig:
    """The model with so many threads for each run."""
    return model.model_copy(update={"resources": model.resources.model_copy(update={"threads": threads})})


def choose_compute(
    model: ModelConfig,
    locations: Mapping[str, ModelLocation],
    backend: Backend,
    inputs: Tensors | None,
    make: Callable[[ModelConfig], Backend],
    loaded_s: float,
) -> Compute:
    """Decide a replica's threads and instances, and measure what that requires.

    Args:
        backend: Its exact model, loaded with the configured threads, or one.
        inputs: To measure with; ``None``: there are none that run.
        make: Makes the exact model's backend of another configuration.
        loaded_s: Time to load all builds.

    Raises:
        SessionLost: The session has ended.
    """
    if not all(location.kind.concurrent for location in locations.values()) or backend.device != "cpu":
        return of_one(model, "so its backend or device wants it")
    resources, cores, found = model.resources, min(available_cores(), MOST_INSTANCES), Measured()
    threads = None if resources.threads == "auto" else resources.threads
    instances = None if resources.instances == "auto" else resources.instances
    budget_s = _PART * model.health.warm_up_s
    try:
        while isinstance(step := decide(threads, instances, cores, found), str):
            if inputs is None:
                return of_one(model, "it runs on no known input that could be measured")
            if step == "run_s":
                value = run_s(backend, inputs, budget_s)
            elif step == "together":
                value = together(backend, inputs, found.run_s or 0.0, cores, budget_s)
            elif 2 * loaded_s > model.health.warm_up_s or not _has_memory(model, locations):
                value = 0.0
            else:
                other = make(with_threads(model, cores))
                try:
                    other.load()
                    value = threaded(backend, other, inputs, budget_s)
                finally:
                    other.close()
            found = found._replace(**{step: value})
    except SessionLost:
        raise
    except ServeAppError as error:
        return of_one(model, f"it failed while that was measured: {error.message}")
    return step


def choose_rows(model: ModelConfig, executions: Sequence[Execution], memory: RunMemory) -> int:
    """Most rows of a batch: 32, or more if the warm-up shows that twice as many pay and they fit into memory.

    Args:
        model: Its rows are to be chosen.
        executions: Measured by the warm-up.
        memory: Of its runs.
    """
    latency, rows = LatencyModel(), model.batching.configured_rows
    latency.seed([(each.rows, each.bucket, each.seconds) for each in executions if not each.variant])
    longest = 0
    if latency.known:
        longest = latency.buckets[-1]
        rows = max(rows, latency.enough(longest, model.most_rows))
    while rows > 1 and not memory.fits(rows, longest):
        rows //= 2
    return rows


def _has_memory(model: ModelConfig, locations: Mapping[str, ModelLocation]) -> bool:
    """Whether the exact model may be loaded once more, for a moment."""
    needed, limit = memory_of({"": locations[""]}), model.resources.memory_limit
    return 2 * needed < psutil.virtual_memory().available and (limit is None or own_memory() + needed < limit)
