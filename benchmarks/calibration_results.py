"""What calibration finds out, as plain values, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from benchmarks.calibration_cases import Case, Load
from benchmarks.calibration_measure import Around, Observed, Predicted
from benchmarks.machine import Machine
from serve_app.config.profile import Profile

AIM_POINTS = 5.0
"""How far attainment may differ between the server and the simulator, percentage points."""
_LATE_LIMIT = 0.2
"""What the load generator may take of the tightest deadline: 99th percentile of a run. Latency counts from when a
request was due, so what it is late shows in the real server's figures and not in the simulator's."""
_FOREIGN_LIMIT = 0.1
"""Of each core, where others have as good a right to it. Elsewhere they only get what is left over; that executions are
slower beside them, since caches and memory are shared, is told to the simulator."""
ALL = "all"


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a model at the beginning of a repetition.

    Attributes:
        load: How the model is asked.
        repetition: Counted from 0.
        batch_s: By rows, what a batch takes in the mean.
        scatter: Sigma of the lognormal scatter around that.
        around: Everything else.
        routers: How many served it meanwhile; 0: one, behind Serve's proxy.
    """

    load: Load
    repetition: int
    batch_s: dict[int, float]
    scatter: float
    around: Around
    routers: int = 0

    @classmethod
    def of(cls, load: Load, repetition: int, profile: Profile, around: Around, routers: int = 0) -> Measured:
        """Keep what a report needs."""
        shapes = (shape for shape in profile.shapes if shape.bucket == load.bucket and not shape.variant)
        return cls(load, repetition, {s.rows: s.mean_s for s in shapes}, profile.spread(), around, routers)

    @property
    def server(self) -> str:
        """The model and how it was asked, for people."""
        port = f", {self.routers} on the routers' port" if self.routers else ""
        return f"{self.load.model}{port}"

    def line(self) -> str:
        """For people."""
        ways, most = self.around.overheads, max(self.batch_s)
        return (
            f"{self.server}: {most} rows take {1000 * self.batch_s[most]:.1f} ms +-{self.scatter:.0%};"
            f" request {1000 * ways.request_s:.1f} ms, send {1000 * ways.send_s:.1f} ms,"
            f" answer {1000 * ways.answer_s:.1f} ms; after a full batch {1000 * self.around.between_s:.1f} ms"
        )


@dataclass(frozen=True, slots=True)
class Run:
    """One workload, served and simulated.

    Attributes:
        case: The workload.
        repetition: Counted from 0.
        observed: What became of it on the server.
        predicted: What became of it in the simulator.
        disturbed: How often it was served before, and something disturbed it.
    """

    case: Case
    repetition: int
    observed: Observed
    predicted: Predicted
    disturbed: int = 0

    def line(self) -> str:
        """For people."""
        real, simulated = self.observed.groups[ALL], self.predicted.groups[ALL]
        return (
            f"{self.case.title:>24}: in time {real.attainment:7.2%} real, {simulated.attainment:7.2%} simulated;"
            f" p99 {_ms(real.p99_s)} and {_ms(simulated.p99_s)} ms; rows {self.observed.batch_rows:.1f}"
            f" and {self.predicted.batch_rows:.1f}; busy {self.observed.utilisation:.0%} and"
            f" {self.predicted.utilisation:.0%}; slower by {self.observed.slowdown:.2f};"
            f" generator late {_ms(self.observed.late_p99_s)} ms; others used {self.observed.foreign['model']:.0%}"
            f" and {self.observed.foreign['rest']:.0%}"
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """One class of one workload over all repetitions.

    Attributes:
        case: Title of the workload.
        group: The class's label, or ``all``.
        real: Attainment on the server per repetition, 0 to 1.
        simulated: The same in the simulator.
        p50_ms: Median latency, real and simulated; means over the repetitions. ``None`` without answers.
        p99_ms: 99th percentile likewise.
    """

    case: str
    group: str
    real: tuple[float, ...]
    simulated: tuple[float, ...]
    p50_ms: tuple[float | None, float | None]
    p99_ms: tuple[float | None, float | None]

    @property
    def difference(self) -> float:
        """Mean of simulated less real, percentage points."""
        return 100 * (fmean(self.simulated) - fmean(self.real))

    @property
    def fits(self) -> bool:
        """Whether the difference is within the aim."""
        return abs(self.difference) <= AIM_POINTS


@dataclass(frozen=True, slots=True)
class Report:
    """Everything.

    Attributes:
        date: ISO 8601.
        machine: Where.
        seconds: Length of a workload.
        repetitions: Of each.
        network_s: The server's allowance for everything around an execution.
        measured: Of every model in every repetition.
        runs: In the order they were made.
    """

    date: str
    machine: Machine
    seconds: float
    repetitions: int
    network_s: float
    measured: tuple[Measured, ...]
    runs: tuple[Run, ...]

    def by_case(self) -> dict[str, list[Run]]:
        """The runs of every workload, in the order of repetitions."""
        found: dict[str, list[Run]] = {}
        for run in self.runs:
            found.setdefault(run.case.title, []).append(run)
        return found

    def compared(self) -> list[Compared]:
        """Every class of every workload; all classes together come first."""
        return [
            _compare(title, group, runs)
            for title, runs in self.by_case().items()
            for group in runs[0].observed.groups
            if group == ALL or len(runs[0].observed.groups) > 2
        ]

    def unsound(self) -> str:
        """Why the figures are worth nothing; empty when they are sound."""
        lost = sum(run.observed.statuses[ALL].get("0", 0) for run in self.runs)
        offered = sum(run.observed.groups[ALL].offered for run in self.runs)
        reasons = list(dict.fromkeys(found for run in self.runs if (found := disturbed(run.observed, run.case))))
        if lost > offered / 1000:
            reasons.append(f"{lost} of {offered} requests got no answer at all")
        return "; ".join(reasons)


def disturbed(observed: Observed, case: Case) -> str:
    """What else than the server and the simulator a run's figures would be of; empty where it was quiet."""
    foreign, late = max(observed.foreign.values()), observed.late_p99_s / case.tightest_s
    if foreign > _FOREIGN_LIMIT and not observed.first:
        return f"something else used {foreign:.0%} of a core; run this on a quiet machine"
    if late > _LATE_LIMIT:
        return f"the load generator was late by {late:.0%} of the tightest deadline (99th percentile)"
    return ""


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of those that are known."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _compare(title: str, group: str, runs: list[Run]) -> Compared:
    real = [run.observed.groups[group] for run in runs]
    simulated = [run.predicted.groups[group] for run in runs]

    def ms(values: Iterable[float | None]) -> float | None:
        found = mean(values)
        return None if found is None else 1000 * found

    return Compared(
        title,
        group,
        tuple(each.attainment for each in real),
        tuple(each.attainment for each in simulated),
        (ms(each.p50_s for each in real), ms(each.p50_s for each in simulated)),
        (ms(each.p99_s for each in real), ms(each.p99_s for each in simulated)),
    )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.0f}"
