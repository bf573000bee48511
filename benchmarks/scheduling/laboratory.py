"""Runs cases: tunes, simulates and bounds, over seeds and processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.scheduling.ablations import taken_away
from benchmarks.scheduling.baselines.tuning import tuned
from benchmarks.scheduling.bounds.choice import Bound, bound_for
from benchmarks.scheduling.contenders import Case, Contender
from benchmarks.scheduling.memory import remembered
from serve_app_simulator.report import CaseResults, Estimate, estimate
from serve_app_simulator.results import Result
from serve_app_simulator.run import MakeSystem, simulate
from serve_app_simulator.scenario import Scenario
from serve_app_simulator.workloads import generate


@dataclass(frozen=True, slots=True)
class Measured:
    """What came out of a case.

    Attributes:
        case: The case.
        results: By contender, one per seed; the tuned baselines follow the case's own contenders.
        bounds: By seed; empty where none was wanted.
        settings: By tuned baseline, what tuning found.
    """

    case: Case
    results: dict[str, list[Result]]
    bounds: dict[int, Bound]
    settings: dict[str, str]

    def over(self, system: str, value: Callable[[Result], float]) -> Estimate:
        """A number of one system, over seeds."""
        return estimate([value(result) for result in self.results[system]])

    def of_bound(self, system: str, *, weighted: bool = False) -> Estimate:
        """Goodput over the bound's, over seeds."""

        def share(result: Result) -> float:
            bound = self.bounds[result.seed]
            most = bound.weighted if weighted else bound.count
            got = result.weighted_goodput if weighted else result.goodput
            return got * result.duration_s / most if most else 1.0

        return self.over(system, share)

    def ratio(self, system: str, other: str, value: Callable[[Result], float]) -> Estimate:
        """One system's number over another's under the same seeds."""
        pairs = zip(self.results[system], self.results[other], strict=True)
        return estimate([value(one) / max(1e-12, value(two)) for one, two in pairs])

    def gain(self, system: str, other: str, value: Callable[[Result], float]) -> Estimate:
        """One system's number less another's under the same seeds."""
        pairs = zip(self.results[system], self.results[other], strict=True)
        return estimate([value(one) - value(two) for one, two in pairs])

    def as_case(self, surges: Sequence[tuple[float, float]] = ()) -> CaseResults:
        """For the simulator's reports and plots."""
        return CaseResults(self.results, self.case.value, surges)


@dataclass
class Laboratory(AbstractContextManager["Laboratory"]):
    """Where cases are run.

    Args:
        seeds: Of every case.
        tuning_seeds: Of tuning.
        scale: Lengths of workloads are multiplied by this.
        processes: Simulations at once.
        trace: The recorded hour, where there is one.
        on_step: Told ``(done, total, what)``.
    """

    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...] = (1001, 1002)
    scale: float = 1.0
    processes: int = 2
    trace: Path | None = None
    on_step: Callable[[int, int, str], None] = lambda *_: None
    _pool: ProcessPoolExecutor | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        if self.processes > 1:
            self._pool = ProcessPoolExecutor(self.processes, get_context("spawn"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def seconds(self, seconds: float) -> float:
        """Length of a workload of so many seconds here."""
        return self.scale * seconds

    def run(self, cases: Sequence[Case]) -> list[Measured]:
        """Run cases; every contender and every bound of a case meets the same arrivals."""
        tasks = [(tune, (case, baseline, self.tuning_seeds)) for case in cases for baseline in case.tuned]
        found = iter(self._all(tasks, "tuning"))
        everybody: list[dict[str, Contender]] = []
        settings: list[dict[str, str]] = []
        for case in cases:
            best = {baseline: next(found) for baseline in case.tuned}
            settings.append({baseline: name for baseline, (name, _) in best.items()})
            made = {baseline: Contender(make_system, tuned=True) for baseline, (_, make_system) in best.items()}
            everybody.append({**case.contenders, **made})
        runs: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        for case, contenders in zip(cases, everybody, strict=True):
            for seed in self.seeds:
                runs += [(contend, (case, name, contender, seed)) for name, contender in contenders.items()]
                if case.bound:
                    runs.append((bound, (case.scenario, seed, case.slot_s, case.window_s)))
        done = iter(self._all(runs, "simulating"))
        measured = []
        for case, contenders, chosen in zip(cases, everybody, settings, strict=True):
            results: dict[str, list[Result]] = {name: [] for name in contenders}
            bounds: dict[int, Bound] = {}
            for seed in self.seeds:
                for name in contenders:
                    results[name].append(next(done))
                if case.bound:
                    bounds[seed] = next(done)
            measured.append(Measured(case, results, bounds, chosen))
        return measured

    def call(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], what: str) -> list[Any]:
        """Call a function with each of the arguments, in the laboratory's processes. Results in their order."""
        return self._all([(function, each) for each in arguments], what)

    def _all(self, tasks: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]], what: str) -> list[Any]:
        results: list[Any] = [None] * len(tasks)
        if self._pool is None:
            for place, (function, arguments) in enumerate(tasks):
                results[place] = function(*arguments)
                self.on_step(place + 1, len(tasks), what)
            return results
        places: dict[Future[Any], int] = {
            self._pool.submit(function, *arguments): place for place, (function, arguments) in enumerate(tasks)
        }
        for number, future in enumerate(as_completed(places), 1):
            results[places[future]] = future.result()
            self.on_step(number, len(tasks), what)
        return results


def contend(case: Case, name: str, contender: Contender, seed: int) -> Result:
    """Simulate one contender."""

    def run() -> Result:
        with taken_away(contender.without):
            return simulate(contender.on(case.scenario), contender.make_system, seed, name=name, step_s=case.step_s)

    if not contender.tuned:
        return run()
    found = remembered((name, contender.make_system, seed, case.step_s), _for_baselines(case.scenario), run)
    return replace(found, scenario=case.scenario.name)


def tune(case: Case, baseline: str, seeds: tuple[int, ...]) -> tuple[str, MakeSystem]:
    """The best settings of a baseline for a case, and what makes it with them."""

    def search() -> tuple[str, MakeSystem]:
        best = tuned(baseline, case.tuning_scenario(), seeds)
        return best.name, best.make_system

    return remembered((baseline, seeds), _for_baselines(case.tuning_scenario()), search)


def bound(scenario: Scenario, seed: int, slot_s: float | None, window_s: float | None) -> Bound:
    """The bound under one seed."""

    def calculate() -> Bound:
        return bound_for(scenario, generate(scenario, seed), slot_s=slot_s, window_s=window_s)

    return remembered(("bound", seed, slot_s, window_s), _for_baselines(scenario), calculate)


def _for_baselines(scenario: Scenario) -> Scenario:
    """What a baseline or a bound sees of it: they have one process, whatever routers serve_app has."""
    return replace(scenario, name="", routers=1)
