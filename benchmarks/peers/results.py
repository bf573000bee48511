"""What the comparison found, as plain values; the JSON file holds exactly these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.machine import Machine
from benchmarks.peers.cases import OURS, OURS_PROXY, PATIENCE_S, Case
from benchmarks.wrk import Load


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the load generator against one system, or of the loop without a server.

    Attributes:
        case: Name of the case.
        system: Name of the system, or of one of the ways into it.
        connections: Connections that were kept busy.
        repetition: From 0.
        load: What the load generator saw.
        generator_cores: Cores that the load generator kept busy.
        cores: Cores that the system's processes kept busy, by role.
        others_cores: Cores that the servers kept busy that were not under load.
    """

    case: str
    system: str
    connections: int
    repetition: int
    load: Load
    generator_cores: float
    cores: Mapping[str, float]
    others_cores: float


@dataclass(frozen=True, slots=True)
class Paced:
    """One run of the open loop: requests at fixed times on average, whatever the server does.

    Attributes:
        case: Name of the case.
        system: Name of the system, or of one of the ways into it.
        share: The rate over the capacity of the slowest of the compared systems.
        rate: Requests per second.
        repetition: From 0.
        p50_ms: Median latency from when requests were due.
        p90_ms: 90th percentile.
        p99_ms: 99th percentile.
        requests: Requests sent.
        failures: Those that were not answered well.
        late_p99_ms: 99th percentile of how late the generator itself was.
    """

    case: str
    system: str
    share: float
    rate: float
    repetition: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    requests: int
    failures: int
    late_p99_ms: float


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A system that could not be measured.

    Attributes:
        case: Name of the case.
        system: Name of the system.
        reason: Why.
    """

    case: str
    system: str
    reason: str


@dataclass(frozen=True, slots=True)
class Alone:
    """How the model was run without a server.

    Attributes:
        sessions: Sessions at once, each with a thread of its own that calls it.
        threads: Threads of each session.
        rows: Rows per run.
    """

    sessions: int
    threads: int
    rows: int


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case.

    Attributes:
        name: Of the case.
        body_bytes: Size of a request's body, by the form of it, bytes on average.
        wires: The form of requests of every system, by system.
        settings: How every system was set, by system.
        searched: Rows per second of the loop without a server, in every way that was tried.
        single_ms: Median time of one run of one row with one thread, without a server; ``None`` if it was not measured.
        timeout_s: How long a client waits.
        runs: Every run, in order.
        paced: Every run of the open loop, in order.
    """

    name: str
    body_bytes: Mapping[str, int]
    wires: Mapping[str, str]
    settings: Mapping[str, str]
    searched: Sequence[tuple[Alone, float]]
    single_ms: float | None
    timeout_s: float
    runs: Sequence[Run]
    paced: Sequence[Paced]


@dataclass(frozen=True, slots=True)
class Finding:
    """A ratio that was aimed at.

    Attributes:
        case: Name of the case.
        system: Which way into serve_app.
        against: The other system.
        connections: Connections.
        ratios: Answers per second of the one over the other, by repetition.
        at_least: The aim.
    """

    case: str
    system: str
    against: str
    connections: int
    ratios: tuple[float, ...]
    at_least: float

    @property
    def median(self) -> float:
        """Of the repetitions."""
        return median(self.ratios)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was measured in one go.

    Attributes:
        date: Of the measurement, ISO 8601.
        machine: What it was measured on.
        versions: Of what is compared, by system.
        seconds: Length of each run.
        warm_up_s: Load before each run that is not counted, seconds.
        repetitions: Runs per system and number of connections.
        findings: The ratios that were aimed at.
        cases: What was measured.
        left_out: What was not.
    """

    date: str
    machine: Machine
    versions: Mapping[str, str]
    seconds: float
    warm_up_s: float
    repetitions: int
    findings: Sequence[Finding]
    cases: Sequence[CaseResult]
    left_out: Sequence[LeftOut]


def findings(case: Case, runs: Iterable[Run]) -> list[Finding]:
    """The ratios that a case aims at, for every way into serve_app; those that could not be measured are missing."""
    rates = {(run.system, run.connections, run.repetition): run.load.per_second for run in runs}
    repetitions = sorted({repetition for _, _, repetition in rates})
    found = []
    for aim in case.aims:
        for ours in (OURS, OURS_PROXY):
            pairs = [
                (rates.get((ours, aim.connections, number)), rates.get((aim.against, aim.connections, number)))
                for number in repetitions
            ]
            ratios = tuple(own / other for own, other in pairs if own is not None and other)
            if ratios:
                found.append(Finding(case.name, ours, aim.against, aim.connections, ratios, aim.at_least))
    return found


def failures_of_ours(cases: Iterable[CaseResult]) -> int:
    """Requests to serve_app that failed, over all runs.

    A right answer that is later than an impatient client would wait is counted where it is measured, and is no fault:
    with enough connections the last in line waits as long as the machine takes for all.
    """
    ours = {OURS, OURS_PROXY}
    failed = 0
    for case in cases:
        impatient = case.timeout_s < PATIENCE_S
        for run in case.runs:
            if run.system in ours:
                failed += run.load.failures - (run.load.timeouts if impatient else 0)
        if not impatient:
            failed += sum(run.failures for run in case.paced if run.system in ours)
    return failed


def median_rates(runs: Iterable[Run]) -> dict[tuple[str, int], float]:
    """Median answers per second by system and connections, in the order of their first run."""
    groups: dict[tuple[str, int], list[float]] = {}
    for run in runs:
        groups.setdefault((run.system, run.connections), []).append(run.load.per_second)
    return {key: median(rates) for key, rates in groups.items()}
