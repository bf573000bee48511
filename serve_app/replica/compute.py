"""What a replica computes with: how many threads for each run, and how many runs at once.

Measured on the loaded model, since nothing else tells: a small model leaves the cores to the router; most others do
more rows in runs beside each other than in one run of several threads, which wait for each other in every layer; and
where memory is what limits, more cores do not help at all. What neighbours on the same cores take meanwhile must not
count: runs of one thread are measured in CPU time, and of those of several threads the quickest counts.
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
    """What is known so far; ``None``: not measured.

    Attributes:
        run_s: What a run of middle size takes alone in one thread, seconds.
        together: How many times the rows per second of one run at a time as many runs at once do as there are cores.
        threaded: How many times faster a run is with a thread for each core; 0.0: that could not be tried.
    """

    run_s: float | None = None
    together: float | None = None
    threaded: float | None = None


def decide(threads: int | None, instances: int | None, cores: int, found: Measured) -> Compute | str:
    """What to compute with, or which attribute of `Measured` is needed first.

    Args:
        threads: As configured; ``None``: to be decided.
        instances: Likewise.
        cores: That the replica may use.
        found: What was measured.
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
    """See `Measured`."""
    return median(_times(backend, inputs, budget_s, thread_time))


def together(backend: Backend, inputs: Tensors, alone_s: float, count: int, budget_s: float) -> float:
    """See `Measured`; in so many threads, those of sessions. Raises what a run raises."""
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
    """Runs a backend so many times at once, and takes as long as the last of them: what a run costs beside others.

    Args:
        backend: Several threads may run it.
        count: How many.
    """

    def __init__(self, backend: Backend, count: int) -> None:
        self.device = backend.device
        self._backend = backend
        self._count = count

    def run(self, inputs: Tensors) -> Tensors:
        """Run all, and return the outputs of one. Raises what that raises."""
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
    """How many times faster the other backend is, which has more threads."""
    alone_s, threaded_s = (min(_times(each, inputs, budget_s / 2, perf_counter)) for each in (backend, other))
    return alone_s / threaded_s


def _times(backend: Backend, inputs: Tensors, budget_s: float, clock: Callable[[], float]) -> list[float]:
    """Of a few runs, after one that does not count."""
    until = perf_counter() + budget_s
    times: list[float] = []
    backend.run(inputs)
    while not times or (len(times) < _RUNS and perf_counter() < until):
        began = clock()
        backend.run(inputs)
        times.append(max(1e-9, clock() - began))
    return times
