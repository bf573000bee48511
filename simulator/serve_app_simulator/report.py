"""The report of simulations: means over seeds with their confidence intervals, as tables, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import NormalDist, fmean, stdev
from typing import Any

from serve_app.config.values import size
from serve_app.domain.priority import Priority
from serve_app_simulator.results import Result
from serve_app_simulator.scenario import Scenario

# Student's t at 97.5%, by degrees of freedom from 1.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_QUIET_S = 10.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds with its 95% confidence interval (Student's t; none of one seed).

    Attributes:
        mean: The mean.
        half_width: The interval is ``mean`` plus and minus this.
        seeds: How many values there were.
    """

    mean: float
    half_width: float
    seeds: int

    @property
    def low(self) -> float:
        """Lower end."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end."""
        return self.mean + self.half_width


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent values, at least one, with its interval."""
    if not values:
        raise ValueError("needs at least one value")
    if len(values) == 1:
        return Estimate(float(values[0]), 0.0, 1)
    freedom = len(values) - 1
    return Estimate(fmean(values), _student_t(freedom) * stdev(values) / sqrt(len(values)), len(values))


def _student_t(freedom: int) -> float:
    """Student's t at 97.5%; beyond the table by the Cornish-Fisher expansion, which is exact to three digits there."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


@dataclass(frozen=True, slots=True)
class CaseResults:
    """What the systems did in one scenario.

    Attributes:
        results: By system, one per seed; every system has the same seeds.
        value: Value of the number that is swept; ``None`` without a sweep.
        surges: Surges of flash crowds, from when to when, virtual seconds.
    """

    results: Mapping[str, Sequence[Result]]
    value: float | None = None
    surges: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One system in one scenario, over its seeds.

    Attributes:
        system: Its name.
        goodput: Answers in time per second.
        weighted_goodput: The same, each worth the weight of its class.
        attainment: In time / offered.
        classes: The same per class's label, the most urgent first.
        p50_ms: Median latency of answers; ``None`` when a seed had none. ``p99_ms`` likewise.
        p99_ms: See ``p50_ms``.
        wasted: Part of the server time spent on requests that were not answered in time.
        smallest_share: Part of the server time that the class with the smallest part got.
        recovery_s: From the last surge's end until the queue was as short as before it; ``None`` without a surge or
            when no seed recovered.
        unrecovered: Seeds in which the queue did not recover.
        batch_rows: Mean rows of a batch.
        utilisation: Part of the replicas' time in which they executed.
        surge_goodput: ``goodput`` of what arrived from the first surge's start to the last one's end; ``None`` without.
        hits: Fraction of the requests for members of pools whose member was loaded when they came; ``None`` without.
        loads: Loads of members per second; ``None`` without pools.
    """

    system: str
    goodput: Estimate
    weighted_goodput: Estimate
    attainment: Estimate
    classes: dict[str, Estimate]
    p50_ms: Estimate | None
    p99_ms: Estimate | None
    wasted: Estimate
    smallest_share: Estimate
    recovery_s: Estimate | None
    unrecovered: int
    batch_rows: Estimate
    utilisation: Estimate
    surge_goodput: Estimate | None
    hits: Estimate | None = None
    loads: Estimate | None = None


def surges(scenario: Scenario) -> list[tuple[float, float]]:
    """From when to when flash crowds surge, virtual seconds, as far as the scenario reaches."""
    found: list[tuple[float, float]] = []
    for stream in scenario.workload:
        if stream.kind == "flash_crowd":
            end_s = min(stream.surge_at_s + stream.surge_s, stream.end_s or scenario.duration_s, scenario.duration_s)
            found.append((stream.surge_at_s, end_s))
    return sorted(set(found))


def summarise(case: CaseResults) -> list[Row]:
    """One row per system, in the order given."""
    return [_row(system, results, case) for system, results in case.results.items()]


def _row(system: str, results: Sequence[Result], case: CaseResults) -> Row:
    def over(value: Callable[[Result], float]) -> Estimate:
        return estimate([value(result) for result in results])

    labels = [priority.label for priority in Priority if all(priority.label in each.classes for each in results)]
    recoveries = _recoveries(results, case.surges)
    recovered = [seconds for seconds in recoveries if seconds is not None]
    return Row(
        system=system,
        goodput=over(lambda result: result.goodput),
        weighted_goodput=over(lambda result: result.weighted_goodput),
        attainment=over(lambda result: result.attainment),
        classes={label: _attainment(label, results) for label in labels},
        p50_ms=_milliseconds([result.total.p50_s for result in results]),
        p99_ms=_milliseconds([result.total.p99_s for result in results]),
        wasted=over(lambda result: result.wasted),
        smallest_share=over(lambda result: min(result.server_share.values(), default=0.0)),
        recovery_s=estimate(recovered) if recovered else None,
        unrecovered=len(recoveries) - len(recovered),
        batch_rows=over(lambda result: result.batch_rows),
        utilisation=over(lambda result: result.utilisation),
        surge_goodput=over(lambda result: _surge_goodput(result, case.surges)) if case.surges else None,
        hits=over(_hits) if results[0].pools else None,
        loads=over(_loads) if results[0].pools else None,
    )


def _hits(result: Result) -> float:
    hits = sum(usage.hits for usage in result.pools.values())
    return hits / max(1, hits + sum(usage.misses for usage in result.pools.values()))


def _loads(result: Result) -> float:
    return sum(usage.loads for usage in result.pools.values()) / result.duration_s


def _surge_goodput(result: Result, surges: Sequence[tuple[float, float]]) -> float:
    return result.series.goodput(min(start for start, _ in surges), max(end for _, end in surges))


def _recoveries(results: Sequence[Result], surges: Sequence[tuple[float, float]]) -> list[float | None]:
    if not surges:
        return []
    before_s = min(_QUIET_S, *(start for start, _ in surges))
    return [result.recovery_s(max(end for _, end in surges), before_s=before_s) for result in results]


def _attainment(label: str, results: Sequence[Result]) -> Estimate:
    return estimate([result.classes[label].attainment for result in results])


def _milliseconds(values: Sequence[float | None]) -> Estimate | None:
    seconds = [value for value in values if value is not None]
    return estimate([1000 * value for value in seconds]) if len(seconds) == len(values) else None


def table(case: CaseResults) -> tuple[list[str], list[list[str]]]:
    """The table of one scenario: header and one line per system. Columns without any value are left out."""
    rows = summarise(case)
    labels = list(dict.fromkeys(label for row in rows for label in row.classes))
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("system", lambda row: row.system),
        ("goodput /s", lambda row: number(row.goodput)),
        ("in time", lambda row: percent(row.attainment)),
    ]
    if len(labels) > 1:
        columns += [
            ("weighted /s", lambda row: number(row.weighted_goodput)),
            *((f"{label} in time", _class_column(label)) for label in labels),
        ]
    columns += [
        ("p50 ms", lambda row: number(row.p50_ms)),
        ("p99 ms", lambda row: number(row.p99_ms)),
        ("wasted", lambda row: percent(row.wasted)),
    ]
    if len(labels) > 1:
        columns.append(("smallest class's share", lambda row: percent(row.smallest_share)))
    if case.surges:
        columns.append(("surge goodput /s", lambda row: number(row.surge_goodput)))
        columns.append(("recovery s", _recovery))
    columns.append(("found loaded", lambda row: percent(row.hits)))
    columns.append(("loads /s", lambda row: number(row.loads)))
    columns.append(("rows per batch", lambda row: number(row.batch_rows)))
    written = [(name, [write(row) for row in rows]) for name, write in columns]
    kept = [(name, cells) for name, cells in written if any(cells)]
    return [name for name, _ in kept], [list(line) for line in zip(*(cells for _, cells in kept), strict=True)]


def _class_column(label: str) -> Callable[[Row], str]:
    return lambda row: percent(row.classes.get(label))


def _recovery(row: Row) -> str:
    if not row.unrecovered:
        return number(row.recovery_s)
    never = f"never in {row.unrecovered}"
    return never if row.recovery_s is None else f"{number(row.recovery_s)}, {never}"


def swept(sweep: str, value: float | None, between: str = " ") -> str:
    """The swept number and its value as text; empty without."""
    if value is None:
        return ""
    return f"{sweep}{between}{size(int(value)) if sweep == 'memory' else f'{value:g}'}"


def number(value: Estimate | None) -> str:
    """A mean with its interval; empty for nothing."""
    if value is None:
        return ""
    digits = 0 if abs(value.mean) >= 1000 else 1 if abs(value.mean) >= 10 else 2
    return _with_interval(f"{value.mean:,.{digits}f}", f"{value.half_width:,.{digits}f}", value)


def percent(value: Estimate | None) -> str:
    """The same, in percent."""
    if value is None:
        return ""
    return _with_interval(f"{100 * value.mean:.2f}%", f"{100 * value.half_width:.2f}", value)


def _with_interval(mean: str, half_width: str, value: Estimate) -> str:
    return mean if value.seeds == 1 else f"{mean} ±{half_width}"


def markdown(
    name: str,
    description: str,
    cases: Sequence[CaseResults],
    *,
    sweep: str = "",
    notes: Sequence[str] = (),
    plots: Mapping[str, str] | None = None,
) -> str:
    """The report as Markdown. ``plots`` are paths of pictures, relative to the report, by title."""
    parts = [f"# {name}"]
    if description:
        parts.append(description.strip())
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    for case in cases:
        if case.value is not None:
            parts.append(f"## {swept(sweep, case.value, ': ')}")
        parts.append(markdown_table(*table(case)))
    parts.append(legend(cases))
    parts += [f"![{title}]({path})" for title, path in (plots or {}).items()]
    return "\n\n".join(parts) + "\n"


def legend(cases: Sequence[CaseResults]) -> str:
    """Explains the columns in a few sentences."""
    seeds = len(next(iter(cases[0].results.values())))
    sentences = [
        f"Means over {seeds} seeds ± 95% confidence intervals." if seeds > 1 else "One seed, so no intervals.",
        "In time: answers that met their deadline / requests offered; a rejection is a miss.",
        "Wasted: server time spent on requests that were not answered in time.",
    ]
    if any(case.surges for case in cases):
        sentences.append("Surge goodput: of what arrived while it lasted.")
        sentences.append("Recovery: from the surge's end until the queue was as short as before it.")
    return " ".join(sentences)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, the first column to the left and the others to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def to_json(name: str, cases: Sequence[CaseResults], *, sweep: str = "") -> dict[str, Any]:
    """Everything as plain values: per scenario the rows over seeds and every single result."""
    return {
        "name": name,
        "sweep": sweep or None,
        "cases": [
            {
                "value": case.value,
                "rows": [asdict(row) for row in summarise(case)],
                "results": {system: [each.to_dict() for each in results] for system, results in case.results.items()},
            }
            for case in cases
        ],
    }
