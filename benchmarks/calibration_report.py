"""The report of a calibration: Markdown and a plot."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.calibration_results import AIM_POINTS, ALL, Compared, Report, mean
from benchmarks.publishing import measured_on, picture_style, save_svg, table

_COLOURS = ("#1f6f8b", "#c8553d", "#6a8d3a", "#8a5fa8", "#b8860b", "#4a4a4a", "#2a9d8f")
_MARKERS = {ALL: "o", "high": "^", "normal": "s", "low": "v"}

_INTRODUCTION = """\
# Calibration of the simulator

Written by `make bench-calibration`. What the simulator was told, spreads, contention of the cores and what became of
late requests are in `calibration.json`. The simulator runs the scheduler and the gate that serve, in virtual time. Here
it meets the arrivals that the real server met, with real ONNX models. The aim is a difference of attainment (answered
in time / offered) of at most {aim:g} points.

{verdict}"""

_READING = """\
Means over the repetitions: percent in time, real/simulated, and the difference in points; (!) marks a miss."""

_METHOD = """\
What is simulated can be trusted within {aim:g} points for a whole workload; look twice at `low` in a flash crowd. The
simulator has no stalls, no processes that share a core, and no bundles that take longer the larger they are.

- The cost of a batch, the ways of a request and the pause after a batch were measured before every repetition. One
  thing is told of the run itself: how much slower its executions were than the profile's. So this shows how well the
  simulator knows the scheduler, and not how well it knows the machine's speed.
- Replicas are tied to one core; router, proxy, Ray and the open-loop generator share the other. {repetitions} x
  {seconds:g} s per workload; the generator was late by at most {late:.1f} ms (99th percentile of the worst run).
- Requests are V2 with binary tensors, {rows}.
  Workloads that name their routers use the routers' own port, others Serve's proxy. Arrivals of repetition n have
  seed n in both."""


def render(report: Report, plot: str) -> str:
    """The report as Markdown.

    Args:
        report: What was measured.
        plot: Path of the picture, relative to the report.
    """
    compared = report.compared()
    parts = [
        _INTRODUCTION.format(aim=AIM_POINTS, verdict=_verdict(compared)),
        _comparison(compared),
        _READING,
        f"![Real and simulated]({plot})",
        _METHOD.format(
            aim=AIM_POINTS,
            repetitions=report.repetitions,
            seconds=report.seconds,
            late=1000 * max(run.observed.late_p99_s for run in report.runs),
            rows=" and ".join(
                dict.fromkeys(f"{each.load.rows} rows each to `{each.load.model}`" for each in report.measured)
            ),
        ),
        measured_on(report.date, report.machine),
    ]
    return "\n\n".join(parts) + "\n"


def draw(report: Report, path: Path) -> None:
    """Draw simulated over real attainment and latency as SVG, the same bytes for the same figures."""
    compared = report.compared()
    colours = dict(zip(report.by_case(), cycle(_COLOURS)))
    with picture_style():
        figure = Figure(figsize=(10.0, 4.6), layout="constrained")
        attainment, latency = figure.subplots(1, 2)
        band = [0.0, 100.0]
        attainment.fill_between(
            band, [-AIM_POINTS, 100 - AIM_POINTS], [AIM_POINTS, 100 + AIM_POINTS], color="#dddddd", linewidth=0
        )
        attainment.plot(band, band, color="#888888", linewidth=0.8)
        for each in compared:
            style = {"marker": _MARKERS[each.group], "color": colours[each.case], "linestyle": "none"}
            label = each.case if each.group == ALL else None
            real, simulated = [100 * x for x in each.real], [100 * x for x in each.simulated]
            attainment.plot(real, simulated, label=label, alpha=0.8, markersize=5, **style)
        lows = [100 * min(*each.real, *each.simulated) for each in compared]
        attainment.set(xlim=(max(0, min(lows) - 8), 101), ylim=(max(0, min(lows) - 8), 101))
        attainment.set(title="In time, per run, % (band: the aim)", xlabel="real", ylabel="simulated")
        attainment.legend(fontsize="small", loc="lower right")
        ends: list[float] = []
        for each in compared:
            for filled, (real_ms, simulated_ms) in ((True, each.p50_ms), (False, each.p99_ms)):
                if real_ms is not None and simulated_ms is not None:
                    ends += [real_ms, simulated_ms]
                    face = colours[each.case] if filled else "none"
                    latency.plot(
                        [real_ms], [simulated_ms], _MARKERS[each.group], color=colours[each.case], markerfacecolor=face
                    )
        if ends:
            latency.plot([min(ends), max(ends)], [min(ends), max(ends)], color="#888888", linewidth=0.8)
        latency.set(xscale="log", yscale="log", xlabel="real", ylabel="simulated")
        latency.set(title="Latency of answers, ms (filled: p50, open: p99)")
        figure.text(
            0.5, -0.04, "circles: all requests; triangles up, squares, triangles down: high, normal, low", ha="center"
        )
        save_svg(figure, path, bbox_inches="tight")


def _verdict(compared: list[Compared]) -> str:
    whole = [each for each in compared if each.group == ALL]
    worst = max(compared, key=lambda each: abs(each.difference))
    fitting, classes = sum(each.fits for each in whole), sum(each.fits for each in compared)
    return (
        f"**{fitting} of {len(whole)} workloads are within {AIM_POINTS:g} points;** with the classes of the mixed ones,"
        f" {classes} of {len(compared)} figures are.\nThe largest difference is {worst.difference:+.1f} points"
        f" ({worst.case}, {worst.group})."
    )


def _comparison(compared: list[Compared]) -> str:
    groups = list(dict.fromkeys(each.group for each in compared))
    by_case: dict[str, dict[str, Compared]] = {}
    for each in compared:
        by_case.setdefault(each.case, {})[each.group] = each
    rows = []
    for case, found in by_case.items():
        tails = found[ALL].p50_ms, found[ALL].p99_ms
        cells = (_in_time(found[group]) if group in found else "" for group in groups)
        rows.append([case, *cells, *(f"{_ms(real)}/{_ms(simulated)}" for real, simulated in tails)])
    return table(["workload", *groups, "p50 of all, ms", "p99"], rows)


def _in_time(each: Compared) -> str:
    mark = "" if each.fits else " (!)"
    return f"{100 * _mean(each.real):.1f}/{100 * _mean(each.simulated):.1f}: {each.difference:+.1f}{mark}"


def _mean(values: tuple[float, ...]) -> float:
    return mean(values) or 0.0


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"
