"""What a decision costs: microseconds of the scheduler per entry, by what is queued: ``make bench-scheduler``.

Only the scheduler runs, on a virtual clock: arrivals, decisions, answers, and the question when to decide again, which
the dispatcher asks after every decision. Replicas run the bundles that are there in common batches, as a gate does.
The least of several repetitions is shown, in time of the processor, since everything else that runs on a machine can
only add to it. Writes nothing.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from operator import itemgetter
from random import Random
from time import thread_time
from typing import Annotated, Literal, NamedTuple

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from serve_app.domain.priority import Priority
from serve_app.payloads import NO_ATTRIBUTES
from serve_app.pools.policy.device import PoolDevice
from serve_app.pools.policy.messages import HostsListed, MemberLoaded
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.decisions import Dispatch
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.health.breaker import BundleOutcome
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import BreakerSettings, ClassSettings, ModelScheduling, ProcessLimits

_MODEL = "model"
_POOL = "pool"
_VARIANT = "light"
_MAX_ROWS = 32
_ALPHA_S, _BETA_S = 1e-4, 1e-5
_SECONDS_PER_ROW = (_ALPHA_S + _BETA_S * _MAX_ROWS) / _MAX_ROWS
_BETWEEN_S = 1e-6
"""Between the arrivals of what is queued at the start."""
_WARM_UP = 2_000
_HORIZONS = 1.5
"""Longest budget in overload, in times of what the queue takes."""
_PROFILED_FUNCTIONS = 25
_WIDTH = 110

Policy = Literal["auto", "eager"]


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured.

    Attributes:
        title: What the table calls it.
        policy: The batch policy.
        priorities: Classes of the entries, in turns.
        variants: Variants of the entries, in turns.
        replicas: Replicas of the model.
        load: What arrives for every row that is executed.
        at_once: Entries that arrive between two decisions.
        tight: Whether deadlines are near enough that entries expire.
        models: Models that are configured; only the first has any work.
        pool: Whether they are members of a pool that has memory for an eighth of them.
    """

    title: str
    policy: Policy = "auto"
    priorities: tuple[Priority, ...] = (Priority.NORMAL,)
    variants: tuple[str, ...] = ("",)
    replicas: int = 1
    load: float = 1.0
    at_once: int = _MAX_ROWS
    tight: bool = False
    models: int = 1
    pool: bool = False


_CASES = (
    Case("bundles, auto"),
    Case("bundles, eager", policy="eager"),
    Case("bundles, auto, 16 replicas", replicas=16),
    Case("three classes, auto", priorities=tuple(Priority)),
    Case("three classes, eager", policy="eager", priorities=tuple(Priority)),
    Case("two variants, auto", variants=("", _VARIANT)),
    Case("one decision per arrival", at_once=1),
    Case("one decision per arrival, three classes", at_once=1, priorities=tuple(Priority)),
    Case("overload x3, auto", load=3.0, tight=True),
    Case("overload x3, three classes", load=3.0, tight=True, priorities=tuple(Priority)),
    *(Case(f"light load, 1 of {models:,} models", at_once=1, load=0.5, models=models) for models in (1, 50, 200, 1000)),
    *(
        Case(f"light load, 1 of {models:,} members", at_once=1, load=0.5, models=models, pool=True)
        for models in (1, 100, 1000)
    ),
)


class _Replica:
    """Executes what is there in batches of whole bundles.

    Attributes:
        name: Its name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._waiting: deque[tuple[float, Dispatch]] = deque()
        self._running: list[tuple[float, Dispatch]] = []
        self._begun = self._end = 0.0

    def take(self, dispatch: Dispatch, now: float) -> None:
        """A bundle has come."""
        self._waiting.append((now, dispatch))
        if not self._running:
            self._begin(now)

    def answers(self, now: float) -> Iterator[_Answer]:
        """What has been answered since it was last asked."""
        while self._running and self._end <= now:
            rows = sum(dispatch.rows for _, dispatch in self._running)
            for sent, dispatch in self._running:
                execution = (rows, 0, self._end - self._begun, dispatch.variant)
                yield _Answer(self._end, dispatch, [execution], self._begun - sent)
            self._begin(self._end)

    def _begin(self, now: float) -> None:
        self._running = []
        rows = 0
        while self._waiting and (not rows or rows + self._waiting[0][1].rows <= _MAX_ROWS):
            self._running.append(self._waiting.popleft())
            rows += self._running[-1][1].rows
        self._begun, self._end = now, now + _ALPHA_S + _BETA_S * rows


class _Answer(NamedTuple):
    end: float
    dispatch: Dispatch
    executions: list[tuple[int, int, float, str]]
    waited_s: float


class Load:
    """A scheduler with so many entries queued, and what keeps it busy.

    Args:
        case: What is measured.
        queued: Entries queued at the start; as many stay queued. None where less arrives than is executed.
    """

    def __init__(self, case: Case, queued: int) -> None:
        self._case = case
        classes = {priority: ClassSettings(1 << 30, 1 << 60, 60.0) for priority in Priority}
        names = (_MODEL, *(f"idle-{at}" for at in range(1, case.models)))
        self._scheduler = Scheduler(
            [
                ModelScheduling(
                    name, _MAX_ROWS, slo_s=0.1, policy=case.policy, breaker=BreakerSettings(), resident_bytes=1
                )
                for name in names
            ],
            classes,
            ProcessLimits(1 << 60),
            [PoolDevice(Pool(_POOL, names, memory_bytes=1 + len(names) // 8), classes)] if case.pool else [],
        )
        profile = [(rows, 0, _ALPHA_S + _BETA_S * rows) for rows in (1, 2, 4, 8, 16, 32)]
        self._replicas = {name: _Replica(name) for name in (f"replica-{at}" for at in range(case.replicas))}
        for model in self._scheduler.breakers():
            self._scheduler.seed(model, [(*point, variant) for point in profile for variant in ("", _VARIANT)])
            if not case.pool:
                self._scheduler.on_replicas(model, list(self._replicas), 0.0)
        if case.pool:
            self._scheduler.on_device_event(_POOL, HostsListed(list(self._replicas)), 0.0)
        self._random = Random(1)
        self._ids = count(1)
        self._kinds = cycle([(priority, variant) for priority in case.priorities for variant in case.variants])
        self._now = 0.0
        # The work that is queued takes this long; with tight deadlines about so many entries can be in time.
        self._horizon_s = queued * _SECONDS_PER_ROW / case.replicas
        for _ in range(queued if case.load >= 1.0 else 0):
            self._now += _BETWEEN_S
            self._scheduler.on_arrival(self._entry(), self._now)
        self.refused = 0
        self.given_up = 0

    @property
    def queued(self) -> int:
        """Entries queued."""
        return sum(length.entries for length in self._scheduler.queue_lengths(_MODEL).values())

    def run(self, entries: int) -> float:
        """Let so many entries arrive while bundles are dispatched and answered. Returns the seconds that it took.

        Only the processor's time counts, and of it the scheduler's part, not the making of entries.
        """
        case, scheduler = self._case, self._scheduler
        step_s = case.at_once * _SECONDS_PER_ROW / case.replicas / case.load
        spent = 0.0
        for _ in range(entries // case.at_once):
            self._now += step_s
            now = self._now
            arriving = [self._entry() for _ in range(case.at_once)]
            answers = self._answers()
            begin = thread_time()
            for end, dispatch, executions, waited_s in answers:
                scheduler.on_outcome(dispatch.bundle_id, dispatch.variant, BundleOutcome.ANSWERED, end)
                scheduler.on_done(dispatch.bundle_id, executions, end, waited_s)
            for entry in arriving:
                if scheduler.on_arrival(entry, now) is not None:
                    self.refused += 1
            decisions = scheduler.decide(now)
            _ = scheduler.wake_at
            spent += thread_time() - begin
            self.given_up += len(decisions.given_up) + len(decisions.expired)
            for dispatch in decisions.dispatches:
                self._replicas[str(dispatch.replica)].take(dispatch, now)
            for order in decisions.orders:
                scheduler.on_device_event(_POOL, MemberLoaded(order.model, order.host, _ALPHA_S, 1), now)
        return spent

    def _answers(self) -> list[_Answer]:
        answers = [answer for replica in self._replicas.values() for answer in replica.answers(self._now)]
        answers.sort(key=itemgetter(0))
        return answers

    def _entry(self) -> Entry:
        priority, variant = next(self._kinds)
        budget = (
            self._horizon_s * self._random.uniform(0.5, _HORIZONS) if self._case.tight else self._random.uniform(20, 40)
        )
        return Entry(
            next(self._ids), _MODEL, priority, self._now, self._now + budget, variant=variant, attributes=NO_ATTRIBUTES
        )


def measure(case: Case, queued: int, entries: int, repetitions: int) -> tuple[float, Load]:
    """Measure one case, in a steady state.

    Returns:
        Seconds per entry, the least of the repetitions, and the load.
    """
    load = _steady(case, queued)
    best = float("inf")
    gc.collect()
    gc.disable()
    try:
        for _ in range(repetitions):
            load.refused = load.given_up = 0
            best = min(best, load.run(entries) / entries)
    finally:
        gc.enable()
    return best, load


def _steady(case: Case, queued: int) -> Load:
    """A load that has run for a while: in overload, until as much expires as does not go."""
    load = Load(case, queued)
    load.run(max(_WARM_UP, int(_HORIZONS * case.load * queued) if case.tight else 0))
    return load


def profile(case: Case, queued: int, entries: int) -> None:
    """Print where the time of one case goes."""
    load = _steady(case, queued)
    profiler = cProfile.Profile()
    profiler.runcall(partial(load.run, entries))
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(_PROFILED_FUNCTIONS)


def main(
    queued: Annotated[
        list[int] | None, typer.Option(min=100, help="Entries queued; may be given several times.")
    ] = None,
    entries: Annotated[int, typer.Option(min=1000, help="Entries per repetition.")] = 20_000,
    repetitions: Annotated[int, typer.Option(min=1, help="Repetitions of each case.")] = 5,
    only: Annotated[str, typer.Option(help="Only the cases whose title contains this.")] = "",
    profiled: Annotated[bool, typer.Option("--profile", help="Print where the time goes, too.")] = False,
) -> None:
    """Microseconds of the scheduler per entry."""
    sizes = queued or [1_000, 10_000, 100_000]
    cases = [case for case in _CASES if only in case.title]
    if not cases:
        raise typer.BadParameter(f"no case is called {only!r}; there are: {'; '.join(case.title for case in _CASES)}")
    console = Console(width=_WIDTH)
    table = Table(title="Microseconds per entry by entries queued; of the last: refused, too late and still queued")
    table.add_column("case", no_wrap=True)
    for size in sizes:
        table.add_column(f"{size:,}", justify="right", no_wrap=True)
    table.add_column("refused", justify="right")
    table.add_column("too late", justify="right")
    table.add_column("left", justify="right")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("")
        for case in cases:
            cells = []
            ended: list[str] = []
            for size in sizes:
                progress.update(task, description=f"{case.title}, {size:,} queued")
                seconds, load = measure(case, size, entries, repetitions)
                cells.append(f"{seconds * 1e6:.1f}")
                ended = [f"{load.refused / entries:.0%}", f"{load.given_up / entries:.0%}", f"{load.queued:,}"]
            table.add_row(case.title, *cells, *ended)
    console.print(table)
    if profiled:
        for case in cases:
            console.print(f"\n{case.title}, {sizes[-1]:,} queued")
            profile(case, sizes[-1], entries)


if __name__ == "__main__":
    typer.run(main)
