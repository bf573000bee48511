"""Chooses a replica's compute: threads per run, and concurrent runs.

Measured on the loaded model, since nothing else tells: a small model leaves the cores to the router; most others do
more rows in concurrent runs than in one run of several threads, which synchronize in every layer; and if memory is the
limit, more cores do not help. Neighbours on the same cores must not count: runs of one thread are measured in CPU time,
and of those of several threads the fastest counts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from statistics import median
from time import perf_counter, thread_time
from typing import Final, NamedTuple

from serve_app.backends.backend import Backend
from serve_app.payloads import Compute, Tensors
from serve_app.threads import in_thread

MOST_INSTANCES: Final = 8
"""That are chosen by measuring."""

_SMALL_S = 0.002
_INSTANCES_GAIN = 1.3
_THREADS_GAIN = 1.2
_RUNS = 20


class Measured(NamedTuple):
    """Results so far; ``None``: not measured.

    Attributes:
        run_s: A run of middle size in one thread, seconds.
        together: Throughput in rows of concurrent runs, one per core, relative to one run at a time.
        threaded: Speedup of a run by one thread per core; 0.0: could not be tried.
    """

    run_s: float | None = None
    together: float | None = None
    threaded: float | None = None


def decide(threads: int | None, instances: int | None, cores: int, found: Measured) -> Compute | str:
    """Choose the compute, or name the attribute of `Measured` to measure first.

    Args:
        threads: As configured; ``None``: to be chosen.
        instances: Likewise.
        cores: Available to the replica.
    """
    if (threads or 1) > 1 or (instances or 1) > 1 or (threads and instances):
        return Compute(threads or 1, instances or 1, "as configured")
    if cores == 1:
        return Compute(1, 1, "there is one core")
    if found.run_s is None:
        return "run_s"
    if found.run_s < _SMALL_S:
        return Compute(1, 1, f"a run takes {1e3 * found.run_s:.2g} ms: the cores are for the router")
    tried = []
    if instances is None:
        if found.together is None:
            return "together"
        tried.append(f"{cores} runs at once do {found.together:.2f} times the rows of one at a time")
        if found.together >= _INSTANCES_GAIN:
            return Compute(1, cores, tried[0])
    if threads is None:
        if found.threaded is None:
            return "threaded"
        if found.threaded:
            tried.append(f"a run of {cores} threads is {found.threaded:.2f} times as fast")
        if found.threaded >= _THREADS_GAIN:
            return Compute(cores, 1, tried[-1])
    return Compute(1, 1, "; ".join(tried) or "there was no time or memory to try more threads")


def run_s(backend: Backend, inputs: Tensors, budget_s: float) -> float:
    """Measure `Measured.run_s`."""
    return median(_times(backend, inputs, budget_s, thread_time))


def together(backend: Backend, inputs: Tensors, alone_s: float, count: int, budget_s: float) -> float:
    """Measure `Measured.together`, in this many threads. Raises what a run raises."""
    times: list[float] = []
    faults: list[Exception] = []

    def work() -> None:
        try:
            times.extend(_times(backend, inputs, budget_s, thread_time))
        except Exception as fault:  # its caller is another thread
            faults.append(fault)

    for task in [in_thread("session", work) for _ in range(count)]:
        task.ended.wait()
    if faults:
        del faults[1:]
        raise faults.pop()
    return count * alone_s / median(times)


class AtOnce:
    """Runs a backend several times at once, for the time of the last: the cost of a run beside others.

    Args:
        backend: Must allow several threads.
    """

    def __init__(self, backend: Backend, count: int) -> None:
        self.device = backend.device
        self._backend = backend
        self._count = count

    def run(self, inputs: Tensors) -> Tensors:
        """Run all, and return the outputs of one. Raises its error."""
        tasks = [in_thread("session", partial(self._run_beside, inputs)) for _ in range(self._count - 1)]
        try:
            return self._backend.run(inputs)
        finally:
            for task in tasks:
                task.ended.wait()

    def _run_beside(self, inputs: Tensors) -> None:
        with suppress(Exception):  # the caller's own run fails as well
            self._backend.run(inputs)


def threaded(backend: Backend, other: Backend, inputs: Tensors, budget_s: float) -> float:
    """Measure the speedup of the other backend, which has more threads."""
    alone_s, threaded_s = (min(_times(each, inputs, budget_s / 2, perf_counter)) for each in (backend, other))
    return alone_s / threaded_s


def _times(backend: Backend, inputs: Tensors, budget_s: float, clock: Callable[[], float]) -> list[float]:
    """Times of a few runs, after one that does not count."""
    until = perf_counter() + budget_s
    times: list[float] = []
    backend.run(inputs)
    while not times or (len(times) < _RUNS and perf_counter() < until):
        began = clock()
        backend.run(inputs)
        times.append(max(1e-9, clock() - began))
    return times
