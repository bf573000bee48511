"""The report of the comparison as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.peers.cases import PATIENCE_S, RAW, Case
from benchmarks.peers.results import CaseResult, Paced, Report, Run, alone_name, failures_of_ours, median_rates
from benchmarks.publishing import measured_on, table
from benchmarks.report import milliseconds

_HEAD = """\
# serve_app beside other servers

Written by `make bench`; the figures behind it are in `performance.json`. Every ratio is one of answers per second in
the same repetition; what stands here is the median of {repetitions}, with the least and the most."""

_METHOD = """\
## How it was measured

- **Everything shares the cores**: the load generator and every process of the server. Every server of a case is up
  while one of them is under load, in turns and in reversed order every other repetition, so that a slower spell of the
  machine meets all. Servers that are idle took {others:.2f} cores at most.
- Runs are {seconds:g} s, after {warm_up_s:g} s of the same load that are not counted.
- All run the same ONNX files in the same version of ONNX Runtime on the CPU. Each gets its requests in the form that it
  speaks; where a server does not speak the form of the case, it gets the closest one. Each answer of the first and the
  last hundreds was compared with ONNX Runtime's; a system that answers wrongly is left out.
- **serve_app** goes straight to the router; **serve_app (HAProxy)** is the same server through Serve's proxy.
- **{raw}** has no server: a loop in a process of its own, in the best of several settings, with all requests known
  beforehand.
- Throughput is that of `wrk`, a closed loop: a connection sends its next request when it has its answer. It used up to
  {generator:.2f} cores. Answers later than the client waits are failures, and their latencies are not among the
  percentiles.
- Latencies at fixed rates are from an open loop: requests leave at random times fixed beforehand, and count from when
  they were due. Rates are shares of what the slowest of these systems can do.
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
    parts += ["## Machine", measured_on(report.date, report.machine, versions)]
    return "\n\n".join(parts) + "\n"


def _findings(report: Report) -> str:
    rows = [
        [
            f"`{each.case}`, {each.connections} connections",
            f"{each.system} / {each.against}",
            f"**{each.median:.2f}**",
            f"{min(each.ratios):.2f} to {max(each.ratios):.2f}",
            f"{each.at_least:g}",
            "yes" if each.median >= each.at_least else "**no**",
        ]
        for each in report.findings
    ]
    return table(["case", "ratio", "median", "range", "aim", "reached"], rows)


def _case(case: Case, result: CaseResult) -> list[str]:
    parts = [f"## `{case.name}`: {case.title}"]
    if result.runs:
        parts.append(_throughput(result.runs))
    if result.timeout_s < PATIENCE_S:
        parts.append(f"An answer after {result.timeout_s:g} s is a failure, since nobody waits for it any more.")
    if result.searched:
        best, rate = result.searched[0]
        parts.append(
            f"{alone_name(best)} ({rate:,.0f} rows/s when it was looked for), the best of {len(result.searched)}."
        )
    if result.single_ms is not None:
        parts.append(f"One run of one row on one thread takes {result.single_ms:.3g} ms without a server.")
    if result.paced:
        parts += ["Latency at fixed rates, milliseconds:", _latency(result.paced)]
    settings = [[name, result.wires[name], says] for name, says in result.settings.items()]
    parts.append(table(["system", "requests", "settings"], settings))
    sizes = ", ".join(f"{size:,} bytes in {wire}" for wire, size in result.body_bytes.items())
    parts.append(f"Bodies: {sizes} on average.")
    return parts


def _throughput(runs: Sequence[Run]) -> str:
    rows = []
    for (system, connections), rate in median_rates(runs).items():
        own = [run for run in runs if (run.system, run.connections) == (system, connections)]
        cores = median(sum(run.cores.values()) for run in own)
        rows.append(
            [
                str(connections),
                system,
                f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}",
                " / ".join(
                    milliseconds(median(getattr(run.load, name) for run in own)) for name in ("p50_ms", "p99_ms")
                ),
                f"{cores:.2f}",
                f"{sum(run.load.failures for run in own):,}",
            ]
        )
    rows.sort(key=lambda row: int(row[0]))
    return table(["connections", "system", "answers/s", "p50 / p99, ms", "cores", "failures"], rows)


def _latency(runs: Sequence[Paced]) -> str:
    rows = []
    for share, system in dict.fromkeys((run.share, run.system) for run in runs):
        own = [run for run in runs if (run.share, run.system) == (share, system)]
        percentiles = (median(getattr(run, name) for run in own) for name in ("p50_ms", "p90_ms", "p99_ms"))
        rows.append(
            [
                f"{own[0].rate:,.0f} ({share:.0%})",
                system,
                *map(milliseconds, percentiles),
                f"{sum(run.failures for run in own):,}",
                milliseconds(max(run.late_p99_ms for run in own)),
            ]
        )
    return table(["requests/s", "system", "p50", "p90", "p99", "failures", "generator late, p99"], rows)


def _one_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if len(lines) < 2 else f"{lines[0]} ... {lines[-1]}").replace("|", "/")[:300]
