"""Chooses a replica's threads and instances, by measuring its loaded model (`serve_app.replica.compute`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import psutil

from serve_app.backends.backend import Backend, SessionLost
from serve_app.backends.description import Description
from serve_app.composition.backend import load_builds, make_backend
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
    builds: Mapping[str, Description],
    backends: dict[str, Backend],
    inputs: Tensors | None,
    loaded_s: float,
    tell: Callable[[str], None],
    *,
    gpu_available: bool,
) -> tuple[ModelConfig, Compute]:
    """Decide a replica's threads and instances, and load its builds again where that changes the threads.

    Args:
        backends: Loaded with the configured threads, or one.
        inputs: To measure with; ``None``: there are none that run.
        loaded_s: Time to load all builds.
        tell: Called with notes for operators.

    Returns:
        The model with the threads that it was loaded with last, and what was decided.

    Raises:
        SessionLost: The session has ended.
    """
    make = partial(make_backend, location=locations[""], build=builds[""], gpu_available=gpu_available)
    compute = _decide(model, locations, backends[""], inputs, make, loaded_s)
    if compute.threads != model.resources.session_threads:
        model = with_threads(model, compute.threads)
        load_builds(model, locations, builds, backends, tell, gpu_available=gpu_available)
    return model, compute


def _decide(
    model: ModelConfig,
    locations: Mapping[str, ModelLocation],
    backend: Backend,
    inputs: Tensors | None,
    make: Callable[[ModelConfig], Backend],
    loaded_s: float,
) -> Compute:
    """Measure what the decision requires; ``make`` makes the exact model's backend of another configuration."""
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
