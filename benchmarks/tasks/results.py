"""What was measured, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from statistics import median

from benchmarks.machine import Machine
from benchmarks.tasks.load import Seen
from benchmarks.tasks.systems import OURS

CLOSED, PACED, OVERLOAD = "closed", "paced", "overload"
"""Kinds of load: a closed loop, a rate that all systems can do, and one that none can do."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the load generator.

    Attributes:
        contender: A way into a system.
        task: What was asked.
        kind: Of the load.
        round: From 0; -1 where settings were tried.
        setting: Of the system.
        rate: Requests per second of an open loop; 0 of a closed one.
        seen: What came back, by task: several where they ran at once.
        cores: Cores that the server kept busy.
    """

    contender: str
    task: str
    kind: str
    round: int
    setting: str
    rate: float
    seen: Mapping[str, Seen]
    cores: float

    @property
    def score(self) -> float:
        """Good answers per second; where several tasks ran at once, the geometric mean."""
        return geometric_mean(each.per_second for each in self.seen.values())


@dataclass(frozen=True, slots=True)
class Tried:
    """What is read of an earlier report.

    Attributes:
        tried: Runs in which settings were compared.
    """

    tried: list[Run]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was measured in one go.

    Attributes:
        date: When.
        machine: On what.
        versions: Of the rivals.
        seconds: Length of each run.
        warm_up_s: Load before each that is not counted.
        rounds: Runs per contender and task in the closed loop.
        open_rounds: The same at given rates.
        tried: Runs in which settings were compared.
        runs: All others, in order.
        left_out: Systems that could not be measured, and why.
        medians: Answers per second in the closed loop, by task and contender.
        ratios: Of the best of serve_app's contenders and of each of them, to the best rival, by task.
    """

    date: str
    machine: Machine
    versions: Mapping[str, str]
    seconds: float
    warm_up_s: float
    rounds: int
    open_rounds: int
    tried: list[Run]
    runs: list[Run]
    left_out: Mapping[str, str]
    medians: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    ratios: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def geometric_mean(values: Iterable[float]) -> float:
    """0 where one of them is."""
    every = tuple(values)
    return float(prod(every) ** (1 / len(every))) if every else 0.0


def best_settings(tried: Iterable[Run]) -> dict[tuple[str, str], str]:
    """The setting with the most answers per second, by contender and task."""
    best: dict[tuple[str, str], Run] = {}
    for run in tried:
        before = best.get((run.contender, run.task))
        if before is None or run.score > before.score:
            best[run.contender, run.task] = run
    return {key: run.setting for key, run in best.items()}


def medians(runs: Iterable[Run]) -> dict[str, dict[str, float]]:
    """Median answers per second in the closed loop, by task and contender."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        if run.kind == CLOSED:
            found.setdefault(run.task, {}).setdefault(run.contender, []).append(run.score)
    return {task: {name: median(rates) for name, rates in by_name.items()} for task, by_name in found.items()}


def is_ours(contender: str) -> bool:
    """Whether it is a way into serve_app."""
    return contender.startswith(OURS)


def best_rival(rates: Mapping[str, float]) -> tuple[str, float] | None:
    """The rival with the most answers per second; ``None`` without rivals."""
    rivals = {name: rate for name, rate in rates.items() if not is_ours(name)}
    return max(rivals.items(), key=lambda each: each[1]) if rivals else None


def ratios(by_task: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Answers per second of each way into serve_app over those of the best rival, by task."""
    found = {}
    for task, rates in by_task.items():
        rival = best_rival(rates)
        if rival is not None and rival[1] > 0:
            found[task] = {name: rate / rival[1] for name, rate in rates.items() if is_ours(name)}
    return found
