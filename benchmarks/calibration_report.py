"""The report of a calibration: Markdown and a plot."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.calibration_measure import Observed, Predicted
from benchmarks.calibration_results import AIM_POINTS, ALL, Compared, Report, Run, mean
from benchmarks.calibration_server import is_model
from benchmarks.publishing import measured_on, picture_style, save_svg, table

_COLOURS = ("#1f6f8b", "#c8553d", "#6a8d3a", "#8a5fa8", "#b8860b", "#4a4a4a", "#2a9d8f")
_MARKERS = {ALL: "o", "high": "^", "normal": "s", "low": "v"}

_INTRODUCTION = """\
The simulator runs the scheduler and the gate that serve, in virtual time. Here it meets the arrivals that the real
server met, with real ONNX models, and what it says is compared with what happened. The aim is a difference of
attainment (answered in time / offered) of at most {aim:g} points.

{verdict}"""

_READING = """\
Means over the repetitions; in brackets the least and the most. The last column says what became, on the real server, of
requests that were not in time."""

_MEASURED = """\
## What the simulator was told

Measured anew before every repetition (means here): the cost of a batch by `serve-app profile` on the model's core
without a server; the ways of single requests through the idle server; and, with more requests than the model can do,
the pause after a full batch. The pause after a smaller one is taken to be smaller in proportion.

One thing is told of the run itself: *slower* below, the time of its executions as a multiple of the profile's. The
machine's speed changes by more from minute to minute than what is compared here. So this shows how well the simulator
knows what the scheduler makes of a model of known speed, and not how well it knows the speed."""

_METHOD = """\
### How it was measured

- **Two cores.** The replicas of the models are tied to one of them. The router, HAProxy, Ray's own processes and the
  load generator share the other, so latency holds their waiting for each other. Ray's workers run with niceness 0
  (their default is 15). Where root runs this, the server and the generator get the processor before other programs
  (ten times their weight), and *others* used what was left over.
- One model is asked at a time; both are loaded. `benchmarks/calibration.yaml` is what was served, behind Serve's proxy
  with one router, or on the routers' own port where a workload names their number. There the kernel picks a router for
  every connection; servers with one and with two routers take turns.
- The generator is open-loop (`benchmarks/open_loop.py`), {repetitions} x {seconds:g} s per workload: arrivals are drawn
  beforehand, sends wait for no answer, latency counts from when a request was due. It was late by at most {late:.1f} ms
  (99th percentile of the worst run) and used at most {generator:.0%} of its core.
- Requests are V2 with binary tensors, {rows}.
  Deadlines travel as time left, so the router counts them from when a request reaches it; the simulator's allowance for
  the network ({network:g} ms, as configured) is smaller by that way.
- Arrivals of repetition n have seed n in both. The simulator's noise is lognormal with the profile's scatter; it has no
  stalls."""

_EXPLANATION = """\
## What does not fit, and why

What the simulator leaves out: processes that share a core and wait for each other, bundles that take the longer to
travel the larger they are, and whatever else the machine did (*others*). The table shows how much of it there was;
the columns of CPU are parts of one core, and *stalls* are how long the router let a question wait that costs nothing.
*Again* is how many runs were thrown away and made again, since the generator was late by over a fifth of the tightest
deadline or, where the server does not come first, something else used over a tenth of a core."""


def render(report: Report, plot: str) -> str:
    """The report as Markdown.

    Args:
        report: What was measured.
        plot: Path of the picture, relative to the report.
    """
    compared = report.compared()
    parts = [
        "# Calibration of the simulator",
        "Written by `make bench-calibration`; the figures behind it are in `calibration.json`.",
        _INTRODUCTION.format(aim=AIM_POINTS, verdict=_verdict(compared)),
        _comparison(report, compared),
        f"![Real and simulated]({plot})",
        _MEASURED,
        _measured(report),
        _EXPLANATION,
        _contention(report),
        _METHOD.format(
            repetitions=report.repetitions,
            seconds=report.seconds,
            late=1000 * max(run.observed.late_p99_s for run in report.runs),
            network=1000 * report.network_s,
            generator=max(run.observed.generator_cpu for run in report.runs),
            rows=" and ".join(
                dict.fromkeys(f"{each.load.rows} rows each to `{each.load.model}`" for each in report.measured)
            ),
        ),
        "## Machine\n\n" + measured_on(report.date, report.machine),
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


def _comparison(report: Report, compared: list[Compared]) -> str:
    header = ["workload", "class", "in time, real", "simulated", "difference, points"]
    header += ["p50, ms: real / simulated", "p99, ms", "rows per batch", "refused / expired / late / other"]
    by_case = report.by_case()
    rows = []
    for each in compared:
        runs = by_case[each.case]
        whole = each.group == ALL
        mark = "" if each.fits else " (!)"
        rows.append(
            [
                each.case if whole else "",
                each.group,
                _percent(each.real),
                _percent(each.simulated),
                f"{each.difference:+.1f}{mark}",
                f"{_ms(each.p50_ms[0])} / {_ms(each.p50_ms[1])}",
                f"{_ms(each.p99_ms[0])} / {_ms(each.p99_ms[1])}",
                " / ".join(f"{_mean([each.batch_rows for each in sides]):.1f}" for sides in _sides(runs))
                if whole
                else "",
                " / ".join(f"{part:.1%}" for part in each.missed),
            ]
        )
    return f"{table(header, rows)}\n\n{_READING}"


def _measured(report: Report) -> str:
    header = ["model, routers", "1 row, ms", "request, ms", "full batch, ms", "scatter"]
    header += ["way there, ms", "to the replica, ms", "back, ms", "pause, ms"]
    rows = []
    for name in dict.fromkeys(each.server for each in report.measured):
        found = [each for each in report.measured if each.server == name]
        load = found[0].load
        costs = [1000 * _mean([each.batch_s[rows] for each in found]) for rows in (1, load.rows, load.max_rows)]
        ways = [each.around.overheads for each in found]
        rows.append(
            [
                name,
                f"{costs[0]:.2f}",
                f"{costs[1]:.2f} ({load.rows} rows)",
                f"{costs[2]:.1f} ({load.max_rows} rows)",
                f"{_mean([each.scatter for each in found]):.0%}",
                f"{1000 * _mean([way.request_s for way in ways]):.1f}",
                f"{1000 * _mean([way.send_s for way in ways]):.1f}",
                f"{1000 * _mean([way.answer_s for way in ways]):.1f}",
                f"{1000 * _mean([each.around.between_s for each in found]):.1f}",
            ]
        )
    return table(header, rows)


def _contention(report: Report) -> str:
    def cpu(run: Run) -> tuple[float, ...]:
        by_role = run.observed.cpu
        models = sum(spent for role, spent in by_role.items() if is_model(role))
        router = by_role.get("replica of router", 0.0)
        foreign = run.observed.foreign
        others = (sum(by_role.values()) - models - router, run.observed.generator_cpu)
        return models, foreign["model"], router, *others, foreign["rest"]

    header = ["workload", "session busy: real / simulated", "slower", "model's core: replica", "others"]
    header += [
        "other core: router",
        "proxy and Ray",
        "generator",
        "others",
        "generator late, p99 ms",
        "stalls, p99 ms",
        "again",
    ]
    rows = [
        [
            title,
            " / ".join(f"{_mean([each.utilisation for each in sides]):.0%}" for sides in _sides(runs)),
            f"{_mean([run.observed.slowdown for run in runs]):.2f}",
            *(f"{_mean(parts):.0%}" for parts in zip(*(cpu(run) for run in runs), strict=True)),
            f"{1000 * max(run.observed.late_p99_s for run in runs):.1f}",
            f"{1000 * _mean([run.observed.stall_p99_s for run in runs]):.1f}",
            f"{sum(run.disturbed for run in runs)}",
        ]
        for title, runs in report.by_case().items()
    ]
    return table(header, rows)


def _sides(runs: list[Run]) -> tuple[list[Observed], list[Predicted]]:
    return [run.observed for run in runs], [run.predicted for run in runs]


def _percent(values: tuple[float, ...]) -> str:
    return f"{_mean(values):.1%} ({min(values):.1%} - {max(values):.1%})"


def _mean(values: list[float] | tuple[float, ...]) -> float:
    return mean(values) or 0.0


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"
