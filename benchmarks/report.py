"""The report: Markdown and two plots of one measurement."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.publishing import measured_on, picture_style, save_svg, table
from benchmarks.results import ColdStart, Comparison, Report, by_connections

_COLOURS = ("#1f6f8b", "#c8553d")
_MIB = 1024**2

_COMPARISON = """\
## The model `{model}`: {ours} beside {stock}

One row of 64 FP32 in, one of 10 out, as JSON of the Open Inference Protocol. The model costs next to nothing, so this
shows what the server itself costs. Medians of {repetitions} runs of {seconds:g} s:"""

_METHOD = """\
{requests:,} requests, {failures:,} failures. Bare ONNX Runtime, one thread in a loop without a server, does {sessions}.

Load generator, proxies and replicas share the cores; the ratio is what to look at. Both servers are up, and one at a
time is under load, run by run in turns. **{ours}** is `configs/bench.yaml` with `{model}` alone. **{stock}** is
`benchmarks/stock.py`: a `@serve.batch` deployment behind an ingress, Serve's own defaults except {settings}.
{checked:,} answers of each server were compared with ONNX Runtime's."""

_COLD_START = """\
## Cold start of `{config}`

From the command `serve-app run` to the first correct answer over HTTP: {first:.1f} s, the median of {starts} starts,
and until every model answers: {every}.
Proportional set size of all processes, Ray's own included, at its highest: {total:,.0f} MiB ({memory})."""


def render(report: Report, plot: str) -> str:
    """The report as Markdown.

    Args:
        report: What was measured.
        plot: Path of the picture, relative to the report.
    """
    parts = ["# Smoke benchmark", "Written by `make bench-smoke`."]
    if report.comparison is not None:
        parts += _comparison(report.comparison, plot)
    if report.cold_start is not None:
        parts.append(_cold_start(report.cold_start))
    parts.append(measured_on(report.date, report.machine))
    return "\n\n".join(parts) + "\n"


def draw(comparison: Comparison, path: Path) -> None:
    """Draw throughput and latency over connections as SVG, the same bytes for the same figures."""
    with picture_style():
        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        rate, latency = figure.subplots(1, 2)
        for system, colour in zip((comparison.ours, comparison.stock), _COLOURS, strict=True):
            found = by_connections(comparison.summaries, system)
            connections = list(found)
            rates = [each.per_second for each in found.values()]
            spread = (
                [each.per_second - each.slowest for each in found.values()],
                [each.fastest - each.per_second for each in found.values()],
            )
            rate.errorbar(connections, rates, yerr=spread, marker="o", capsize=3, color=colour, label=system)
            for x, y in zip(connections, rates, strict=True):
                rate.annotate(f"{y:,.0f}", (x, y), textcoords="offset points", xytext=(0, 7), ha="center", fontsize=8)
            p50 = [each.p50_ms for each in found.values()]
            p99 = [each.p99_ms for each in found.values()]
            latency.plot(connections, p50, marker="o", color=colour, label=f"{system}, p50")
            latency.plot(connections, p99, marker="^", linestyle="--", color=colour, label=f"{system}, p99")
        rate.set(title="Throughput (median; bars: slowest and fastest run)", ylabel="answers per second")
        latency.set(title="Latency", ylabel="milliseconds")
        for axes in (rate, latency):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(list(comparison.ratios), [str(each) for each in comparison.ratios])
            axes.set_xlabel("connections")
            axes.margins(x=0.12, y=0.15)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.legend()
        save_svg(figure, path)


def _comparison(found: Comparison, plot: str) -> list[str]:
    ours, stock = by_connections(found.summaries, found.ours), by_connections(found.summaries, found.stock)
    header = ["connections", f"{found.ours}: answers/s", "p50 / p99, ms", f"{found.stock}: answers/s", "p50 / p99, ms"]
    rows = [
        [
            str(connections),
            f"{ours[connections].per_second:,.0f}",
            f"{milliseconds(ours[connections].p50_ms)} / {milliseconds(ours[connections].p99_ms)}",
            f"{stock[connections].per_second:,.0f}",
            f"{milliseconds(stock[connections].p50_ms)} / {milliseconds(stock[connections].p99_ms)}",
            f"**{ratio:.1f}**",
        ]
        for connections, ratio in found.ratios.items()
    ]
    return [
        _COMPARISON.format(
            model=found.model,
            ours=found.ours,
            stock=found.stock,
            repetitions=found.repetitions,
            seconds=found.seconds,
        ),
        table([*header, "ratio"], rows),
        f"![Throughput and latency over connections]({plot})",
        _METHOD.format(
            model=found.model,
            ours=found.ours,
            stock=found.stock,
            requests=sum(summary.requests for summary in found.summaries),
            failures=sum(summary.failures for summary in found.summaries),
            sessions=" and ".join(
                f"{rate:,.0f} rows/s in runs of {rows}" for rows, rate in found.session_per_second.items()
            ),
            checked=found.checked,
            settings=", ".join(f"`{name}={value}`" for name, value in found.settings.items()),
        ),
    ]


def _cold_start(found: ColdStart) -> str:
    models = list(found.starts[0].answers_s)
    every = {model: median(start.answers_s[model] for start in found.starts) for model in models}
    sizes = sorted(found.memory.items(), key=lambda item: -item[1])
    return _COLD_START.format(
        config=found.config,
        first=median(start.first_answer_s for start in found.starts),
        starts=len(found.starts),
        every=", ".join(f"`{model}` {seconds:.1f}" for model, seconds in every.items()),
        total=sum(found.memory.values()) / _MIB,
        memory=", ".join(f"{role} {size / _MIB:,.0f}" for role, size in sizes),
    )


def milliseconds(value: float) -> str:
    """A latency for people."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
