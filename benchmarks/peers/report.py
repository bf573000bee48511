"""The report of the comparison as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.peers.cases import PATIENCE_S, RAW, Case
from benchmarks.peers.results import CaseResult, Paced, Report, Run, failures_of_ours, median_rates
from benchmarks.publishing import measured_on, table
from benchmarks.report import milliseconds

_HEAD = """\
# serve_app beside other servers

Written by `make bench`; cores, settings, body sizes and every run are in `performance.json`. Ratios are of answers per
second in the same repetition: the median of {repetitions}, with the least and the most."""

_DECIDED = """\
By its own port serve_app is level with or ahead of all other servers where many clients ask. Through Serve's proxy, for
a single client of a tiny model and beside ONNX Runtime's bare loop it is not."""

_METHOD = """\
## How it was measured

- Load generator and servers share the cores. All servers of a case are up, and one of them is under load, in turns;
  idle ones took {others:.2f} cores at most. Runs are {seconds:g} s, after {warm_up_s:g} s that are not counted.
- All run the same ONNX files in the same version of ONNX Runtime on the CPU. Each gets the form of request that it
  speaks, or the closest. Answers were compared with ONNX Runtime's; a system that answers wrongly is left out.
- **serve_app** goes straight to the router; **serve_app (HAProxy)** is the same server through Serve's proxy.
  **{raw}** has no server: a loop in a process of its own, in the best of several settings.
- Throughput is that of `wrk`, a closed loop, which used up to {generator:.2f} cores. An answer later than the client
  waits is a failure, and not among the percentiles.
- At fixed rates requests leave at random times and count from when they were due. Rates are shares of what the slowest
  of these systems can do.
- {ours_failures:,} requests to serve_app failed."""


def render(report: Report, cases: Sequence[Case], plots: Sequence[tuple[str, str]]) -> str:
    """The report.

    Args:
        report: What was measured.
        cases: What was planned, of the same names.
        plots: Title and path, relative to the report, of every picture.
    """
    planned = {case.name: case for case in cases}
    parts = [_HEAD.format(repetitions=report.repetitions)]
    if report.findings:
        parts += ["## Ratios", _findings(report)]
    parts += [f"![{title}]({path})" for title, path in plots]
    parts.append(_DECIDED)
    for result in report.cases:
        parts += _case(planned[result.name], result)
    if report.left_out:
        rows = [[each.case, each.system, _one_line(each.reason)] for each in report.left_out]
        parts += ["## Left out", table(["case", "system", "why"], rows)]
    runs = [run for result in report.cases for run in result.runs]
    parts.append(
        _METHOD.format(
            others=max((run.others_cores for run in runs), default=0.0),
            seconds=report.seconds,
            warm_up_s=report.warm_up_s,
            raw=RAW,
            generator=max((run.generator_cores for run in runs), default=0.0),
            ours_failures=failures_of_ours(report.cases),
        )
    )
    versions = [f"{name} {version}" for name, version in report.versions.items()]
    parts.append(measured_on(report.date, report.machine, versions))
    return "\n\n".join(parts) + "\n"


def _findings(report: Report) -> str:
    systems = list(dict.fromkeys(each.system for each in report.findings))
    lines: dict[tuple[str, int, str, float], dict[str, str]] = {}
    for each in report.findings:
        cell = f"{each.median:.2f} ({min(each.ratios):.2f} to {max(each.ratios):.2f})"
        reached = cell if each.median >= each.at_least else f"**{cell}**"
        lines.setdefault((each.case, each.connections, each.against, each.at_least), {})[each.system] = reached
    rows = [
        [f"`{case}`, {connections}", against, f"{aim:g}", *(found.get(system, "") for system in systems)]
        for (case, connections, against, aim), found in lines.items()
    ]
    text = table(["case, connections", "to", "aim", *systems], rows)
    return f"{text}\n\nIn bold: the aim is missed."


def _case(case: Case, result: CaseResult) -> list[str]:
    parts = [f"## `{case.name}`: {case.title}"]
    if result.runs:
        parts.append(_throughput(result.runs))
    if result.timeout_s < PATIENCE_S:
        parts.append(f"An answer after {result.timeout_s:g} s is a failure.")
    if result.paced:
        parts.append(_latency(result.paced))
    return parts


def _throughput(runs: Sequence[Run]) -> str:
    found: dict[str, dict[int, str]] = {}
    for (system, connections), rate in median_rates(runs).items():
        own = [run for run in runs if (run.system, run.connections) == (system, connections)]
        tails = (milliseconds(median(getattr(run.load, name) for run in own)) for name in ("p50_ms", "p99_ms"))
        failures = sum(run.load.failures for run in own)
        cell = f"{_rate(rate)} ({'/'.join(tails)})"
        found.setdefault(system, {})[connections] = f"{cell}, {failures:,} failed" if failures else cell
    numbers = sorted({connections for of in found.values() for connections in of})
    rows = [[system, *(of.get(number, "") for number in numbers)] for system, of in found.items()]
    return table(["answers/s (p50/p99, ms)", *(_connections(number) for number in numbers)], rows)


def _latency(runs: Sequence[Paced]) -> str:
    found: dict[str, dict[float, str]] = {}
    rates: dict[float, str] = {}
    for share, system in dict.fromkeys((run.share, run.system) for run in runs):
        own = [run for run in runs if (run.share, run.system) == (share, system)]
        rates[share] = f"{own[0].rate:,.0f}/s ({share:.0%})"
        tails = (milliseconds(median(getattr(run, name) for run in own)) for name in ("p50_ms", "p99_ms"))
        failures = sum(run.failures for run in own)
        cell = f"{'/'.join(tails)} ({milliseconds(max(run.late_p99_ms for run in own))})"
        found.setdefault(system, {})[share] = f"{cell}, {failures:,} failed" if failures else cell
    rows = [[system, *(of.get(share, "") for share in rates)] for system, of in found.items()]
    return table(["p50/p99 (generator late, p99), ms", *rates.values()], rows)


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.1f}"


def _connections(number: int) -> str:
    return f"{number} connection{'' if number == 1 else 's'}"


def _one_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if len(lines) < 2 else f"{lines[0]} ... {lines[-1]}").replace("|", "/")[:300]
