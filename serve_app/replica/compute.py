"""What a replica computes with: how many threads for each run, and how many runs at once.

Measured on the loaded model, since nothing else tells: a small model leaves the cores to the router; most others do
more rows in runs beside each other than in one run of several threads, which wait for each other in every layer; and
where memory is what limits, more cores do not help at all.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from math import ceil
from statistics import median
from time import perf_counter
from typing import Final, NamedTuple

from serve_app.backends.backend import Backend
from serve_app.payloads import Compute, Tensors
from serve_app.threads import in_thread

MOST_INSTANCES: Final = 8
"""That are chosen by measuring."""

_SMALL_S = 0.002
_INSTANCES_GAIN = 1.3
_THREADS_GAIN = 1.2
_ROUNDS = 7
_ROUND_S = 0.01
"""A round has as many runs as take about so long: to wake threads costs some of it."""


class Need(Enum):
    """What is to be measured before it can be decided."""

    RUN = "run"
    TOGETHER = "together"
    THREADED = "threaded"


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


def decide(threads: int | None, instances: int | None, cores: int, found: Measured) -> Compute | Need:
    """What to compute with, or what to measure first.

    Args:
        threads: As configured; ``None``: to be decided.
        instances: Likewise.
        cores: That the replica may use; 1 also where the backend runs one batch at a time and has no threads to choose.
        found: What was measured.
    """
    if (threads or 1) > 1 or (instances or 1) > 1 or (threads and instances):
        return Compute(threads or 1, instances or 1, "as configured")
    if cores == 1:
        return Compute(1, 1, "there is one core")
    if found.run_s is None:
        return Need.RUN
    if found.run_s < _SMALL_S:
        return Compute(1, 1, f"a run takes {1e3 * found.run_s:.2g} ms: the cores are for the router")
    tried = []
    if instances is None:
        if found.together is None:
            return Need.TOGETHER
        told = f"{cores} runs at once do {found.together:.2f} times the rows of one at a time"
        if found.together >= _INSTANCES_GAIN:
            return Compute(1, cores, told)
        tried.append(told)
    if threads is None:
        if found.threaded is None:
            return Need.THREADED
        told = f"a run with {cores} threads is {found.threaded:.2f} times as fast"
        if found.threaded >= _THREADS_GAIN:
            return Compute(cores, 1, told)
        tried.append(told if found.threaded else f"there was no time or memory to try {cores} threads")
    return Compute(1, 1, "; ".join(tried))


def run_s(backend: Backend, inputs: Tensors, budget_s: float) -> float:
    """What a run takes, seconds: the median of a few, after one that does not count."""
    until = perf_counter() + budget_s
    times: list[float] = []
    backend.run(inputs)
    while not times or (len(times) < _ROUNDS and perf_counter() < until):
        began = perf_counter()
        backend.run(inputs)
        times.append(perf_counter() - began)
    return median(times)


def together(backend: Backend, inputs: Tensors, alone_s: float, count: int, budget_s: float) -> float:
    """How many times the rows per second so many runs at once do; see `Measured`."""
    work = _repeated(backend, inputs, alone_s)
    return count * _ratio(work, partial(_at_once, work, count), budget_s)


def threaded(backend: Backend, other: Backend, inputs: Tensors, alone_s: float, budget_s: float) -> float:
    """How many times faster the other backend is, which has more threads."""
    return _ratio(_repeated(backend, inputs, alone_s), _repeated(other, inputs, alone_s), budget_s)


def _repeated(backend: Backend, inputs: Tensors, alone_s: float) -> Callable[[], None]:
    def work() -> None:
        for _ in range(ceil(_ROUND_S / max(alone_s, 1e-5))):
            backend.run(inputs)

    return work


def _ratio(one: Callable[[], None], other: Callable[[], None], budget_s: float) -> float:
    """How many times as long one takes as the other: the median of pairs, so that what comes and goes counts little."""
    until = perf_counter() + budget_s
    ratios: list[float] = []
    other()  # memory is claimed in the first
    while not ratios or (len(ratios) < _ROUNDS and perf_counter() < until):
        began = perf_counter()
        one()
        between = perf_counter()
        other()
        ratios.append((between - began) / (perf_counter() - between))
    return median(ratios)


def _at_once(work: Callable[[], None], count: int) -> None:
    """Do it in so many threads, those of sessions. Raises what one of them raises."""
    faults: list[BaseException] = []

    def attempt() -> None:
        try:
            work()
        except BaseException as fault:  # its caller is another thread
            faults.append(fault)

    for task in [in_thread("session", attempt) for _ in range(count)]:
        task.ended.wait()
    if faults:
        raise faults[0]
