"""What the benchmarks found, as plain values; the JSON files hold exactly these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.machine import Machine
from benchmarks.wrk import Load


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the load generator against one system.

    Attributes:
        system: Name of the system.
        connections: Connections that were kept busy.
        repetition: From 0.
        load: What the load generator saw.
        generator_cpu: How much of one core the load generator used, 0 to 1.
    """

    system: str
    connections: int
    repetition: int
    load: Load
    generator_cpu: float


@dataclass(frozen=True, slots=True)
class Summary:
    """All runs against one system at one number of connections.

    Attributes:
        system: Name of the system.
        connections: Connections.
        per_second: Good answers per second, median of the runs.
        slowest: The least of them.
        fastest: The most of them.
        p50_ms: Median over the runs of their median latencies.
        p90_ms: The same of their 90th percentiles.
        p99_ms: The same of their 99th percentiles.
        requests: Answers of all runs together.
        failures: What was not a good answer, of all runs together.
    """

    system: str
    connections: int
    per_second: float
    slowest: float
    fastest: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    requests: int
    failures: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two systems under the same load.

    Attributes:
        ours: Name of the system that is compared.
        stock: Name of the one it is compared with.
        model: Name of the model.
        seconds: Length of each run.
        warm_up_s: Load before each run that is not counted, seconds.
        repetitions: Runs per system and number of connections.
        bodies: Different requests that were sent in turn.
        body_bytes: Size of one, bytes, on average.
        checked: Answers per system that were compared with ONNX Runtime's.
        settings: Of the stock system.
        session_per_second: Rows per second of a bare session in a loop, by rows per run.
        runs: Every run, in order.
        summaries: The same, by system and connections.
        ratios: Our answers per second over the stock system's, by connections.
    """

    ours: str
    stock: str
    model: str
    seconds: float
    warm_up_s: float
    repetitions: int
    bodies: int
    body_bytes: int
    checked: int
    settings: Mapping[str, Any]
    session_per_second: Mapping[int, float]
    runs: tuple[Run, ...]
    summaries: tuple[Summary, ...]
    ratios: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a server.

    Attributes:
        first_answer_s: From the command to the first correct answer of any model, seconds.
        answers_s: The same of every model.
    """

    first_answer_s: float
    answers_s: Mapping[str, float]

    @property
    def all_answer_s(self) -> float:
        """From the command until every model has answered correctly, seconds."""
        return max(self.answers_s.values())


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Starts of a server that was not running, and its memory.

    Attributes:
        config: Path of the configuration in the repository.
        starts: Every start.
        served: Requests that were answered while memory was looked at, over all starts.
        memory: Proportional set size by role at the moment when their sum was highest, bytes.
    """

    config: str
    starts: tuple[Start, ...]
    served: int
    memory: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was measured in one go.

    Attributes:
        date: Of the measurement, ISO 8601.
        machine: What it was measured on.
        cold_start: Starts, unless they were left out.
        comparison: Throughput and latency, unless they were left out.
    """

    date: str
    machine: Machine
    cold_start: ColdStart | None
    comparison: Comparison | None


def summarise(runs: Iterable[Run]) -> tuple[Summary, ...]:
    """Put runs of the same system and connections together, in the order of their first one."""
    groups: dict[tuple[str, int], list[Load]] = {}
    for run in runs:
        groups.setdefault((run.system, run.connections), []).append(run.load)
    return tuple(
        Summary(
            system=system,
            connections=connections,
            per_second=median(load.per_second for load in loads),
            slowest=min(load.per_second for load in loads),
            fastest=max(load.per_second for load in loads),
            p50_ms=median(load.p50_ms for load in loads),
            p90_ms=median(load.p90_ms for load in loads),
            p99_ms=median(load.p99_ms for load in loads),
            requests=sum(load.requests for load in loads),
            failures=sum(load.failures for load in loads),
        )
        for (system, connections), loads in groups.items()
    )


def by_connections(summaries: Iterable[Summary], system: str) -> dict[int, Summary]:
    """The summaries of one system, from few connections to many."""
    own = (summary for summary in summaries if summary.system == system)
    return {summary.connections: summary for summary in sorted(own, key=lambda summary: summary.connections)}


def ratios(summaries: Iterable[Summary], ours: str, stock: str) -> dict[int, float]:
    """Answers per second of one system over those of another, by connections that both were measured at."""
    summaries = tuple(summaries)
    theirs = by_connections(summaries, stock)
    return {
        connections: own.per_second / theirs[connections].per_second
        for connections, own in by_connections(summaries, ours).items()
        if connections in theirs and theirs[connections].per_second > 0
    }
