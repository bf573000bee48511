"""Plots of simulations: one colour per system everywhere, bands and bars are 95% confidence intervals over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from serve_app.domain.priority import Priority
from serve_app_simulator.report import CaseResults, Estimate, Row, estimate, summarise
from serve_app_simulator.results import Result

OURS = {"serve-app": "#1f6f8b"}
"""The colour that nobody else gets."""
_SPARE_COLOURS = ("#8d6e63", "#00897b", "#ef8354", "#5c6b73", "#9a031e", "#4f772d", "#845ec2", "#2c7da0")
_MARKERS = "osD^vP*X<>"
_STEPS_SHOWN = 60
_AXES = {
    "load": "load (rate / capacity within the latency target)",
    "memory": "memory of each host, bytes",
    "rate": "requests per second",
    "streams": "video streams",
    "slo_scale": "deadline / time of one request alone",
    "noise": "spread of execution times",
}


def colours(systems: Sequence[str], known: Mapping[str, str] = OURS) -> dict[str, str]:
    """The colour of each system: its own where it is known, also with options behind its name, else one not taken."""
    found: dict[str, str] = {}
    spare = iter(_SPARE_COLOURS * (1 + len(systems) // len(_SPARE_COLOURS)))
    for system in systems:
        own = known.get(system) or known.get(system.split(" ")[0])
        found[system] = own if own is not None and own not in found.values() else next(spare)
    return found


def over_sweep(cases: Sequence[CaseResults], sweep: str) -> Figure:
    """Plot attainment and goodput over the swept number. The cases ascend, each with the same systems."""
    summaries = [{row.system: row for row in summarise(case)} for case in cases]
    values = [0.0 if case.value is None else case.value for case in cases]
    with _style():
        figure = Figure(figsize=(9.0, 3.8), layout="constrained")
        attainment, goodput = figure.subplots(1, 2)
        for number, (system, colour) in enumerate(colours(list(cases[0].results)).items()):
            rows = [summary[system] for summary in summaries]
            marker = _MARKERS[number % len(_MARKERS)]
            _line(attainment, values, [row.attainment for row in rows], colour, marker, system, scale=100)
            _line(goodput, values, [row.goodput for row in rows], colour, marker, system)
        attainment.set(title="In time", ylabel="% of the requests offered", xlabel=_AXES.get(sweep, sweep))
        goodput.set(title="Goodput", ylabel="answers in time per second", xlabel=_AXES.get(sweep, sweep))
        attainment.set_ylim(0, 103)
        goodput.set_ylim(bottom=0)
        _legend_below(figure, goodput)
    return figure


def over_time(case: CaseResults, known: Mapping[str, str] = OURS) -> Figure:
    """Plot attainment of each class and rows queued over virtual time, surges shaded."""
    labels = _labels(case)
    with _style():
        figure, panels = _panels_over_time(len(labels) + 1)
        for system, colour in colours(list(case.results), known).items():
            results = case.results[system]
            for axes, label in zip(panels, labels, strict=False):
                times, estimates = _attainment_over_time(results, label)
                _line(axes, times, estimates, colour, "", system, scale=100)
            times, queued = _queue_over_time(results)
            _line(panels[-1], times, queued, colour, "", system)
        for axes, label in zip(panels, labels, strict=False):
            axes.set(title=f"Class {label}" if len(labels) > 1 else "In time", ylabel="in time, %", ylim=(-3, 103))
        panels[-1].set(title="Rows queued", ylabel="rows")
        panels[-1].set_ylim(bottom=0)
        _finish_over_time(figure, panels, case)
    return figure


def latency_bars(case: CaseResults) -> Figure:
    """Plot the median and the 99th percentile of each system's latency."""
    rows = [row for row in summarise(case) if row.p50_ms is not None and row.p99_ms is not None]
    with _style():
        figure = Figure(figsize=(9.0, 3.4), layout="constrained")
        axes = figure.subplots()
        palette = colours(list(case.results))
        for offset, hatch, name in ((-0.2, "", "p50"), (0.2, "//", "p99")):
            shown = [row.p50_ms if name == "p50" else row.p99_ms for row in rows]
            _bars(axes, [place + offset for place in range(len(rows))], shown, rows, palette, 0.38, hatch, _plain)
        axes.set(title="Latency of answers: p50 (plain) and p99 (hatched)", ylabel="milliseconds")
        _name_bars(axes, rows)
    return figure


def bars(case: CaseResults) -> Figure:
    """Plot goodput, attainment per class, wasted work and rows per batch of each system."""
    rows = summarise(case)
    palette = colours(list(case.results))
    labels = _labels(case)
    with _style():
        figure = Figure(figsize=(9.0, 6.4), layout="constrained")
        goodput, classes, wasted, batches = figure.subplots(2, 2).flat
        places = [float(place) for place in range(len(rows))]
        _bars(goodput, places, [row.goodput for row in rows], rows, palette, 0.7, "", _plain)
        goodput.set(title="Goodput", ylabel="answers in time per second")
        width = 0.8 / max(1, len(labels))
        for number, label in enumerate(labels):
            shifted = [place - 0.4 + width * (number + 0.5) for place in places]
            shown = [_percent(row.classes.get(label)) for row in rows]
            _bars(classes, shifted, shown, rows, palette, 0.95 * width, ("", "//", "..")[number % 3], _plain)
        hatches = ("plain", "hatched", "dotted")
        named = ", ".join(f"{label} ({hatches[number % 3]})" for number, label in enumerate(labels))
        classes.set(title=f"In time: {named}" if len(labels) > 1 else "In time", ylabel="% of the requests offered")
        _bars(wasted, places, [_percent(row.wasted) for row in rows], rows, palette, 0.7, "", _plain)
        wasted.set(title="Work for answers that were not in time", ylabel="% of server time")
        _bars(batches, places, [row.batch_rows for row in rows], rows, palette, 0.7, "", _plain)
        batches.set(title="Batch size", ylabel="mean rows per batch")
        for axes in (goodput, classes, wasted, batches):
            _name_bars(axes, rows)
    return figure


def write_plots(cases: Sequence[CaseResults], folder: Path, sweep: str = "") -> dict[str, str]:
    """Draw the plots that fit the cases, as SVG and PNG.

    Args:
        cases: One, or one per value of the sweep.
        folder: An existing folder.
        sweep: Name of the swept number.

    Returns:
        File names of the SVGs by title.
    """
    figures: dict[str, tuple[str, Callable[[], Figure]]] = {}
    if len(cases) > 1:
        figures["Attainment and goodput"] = ("sweep", lambda: over_sweep(cases, sweep))
    else:
        case = cases[0]
        figures["Systems compared"] = ("systems", lambda: bars(case))
        figures["Latency"] = ("latency", lambda: latency_bars(case))
        if case.surges:
            figures["Over time"] = ("time", lambda: over_time(case))
    written: dict[str, str] = {}
    for title, (name, draw) in figures.items():
        save(draw(), folder / name)
        written[title] = f"{name}.svg"
    return written


def save(figure: Figure, path: Path) -> None:
    """Write ``path`` with the endings ``.svg`` and ``.png``. Equal figures give equal bytes."""
    with _style():
        figure.savefig(path.with_name(f"{path.name}.svg"), format="svg", metadata={"Date": None})
        figure.savefig(path.with_name(f"{path.name}.png"), format="png", dpi=120, metadata={"Software": None})


@contextmanager
def _style() -> Iterator[None]:
    with mpl.rc_context(
        {"svg.hashsalt": "serve-app", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "hatch.linewidth": 0.6}
    ):
        yield


def _line(
    axes: Axes,
    values: Sequence[float],
    estimates: Sequence[Estimate],
    colour: str,
    marker: str,
    label: str,
    scale: float = 1.0,
) -> None:
    axes.plot(
        values,
        [scale * each.mean for each in estimates],
        color=colour,
        marker=marker or None,
        markersize=4,
        linewidth=2.2 if label == "serve-app" else 1.4,
        zorder=3 if label == "serve-app" else 2,
        label=label,
    )
    low, high = ([scale * end for end in ends] for ends in zip(*((e.low, e.high) for e in estimates), strict=True))
    axes.fill_between(values, low, high, color=colour, alpha=0.18, linewidth=0)


def _bars(
    axes: Axes,
    places: Sequence[float],
    shown: Sequence[Estimate | None],
    rows: Sequence[Row],
    palette: Mapping[str, str],
    width: float,
    hatch: str,
    write: Callable[[float], str],
) -> None:
    for place, value, row in zip(places, shown, rows, strict=True):
        if value is None:
            continue
        error = min(value.half_width, value.mean)
        style: dict[str, Any] = {"hatch": hatch, "edgecolor": "white"} if hatch else {}
        axes.bar(place, value.mean, width, color=palette[row.system], alpha=0.9, **style)
        axes.errorbar(place, value.mean, yerr=[[error], [value.half_width]], color="#333333", capsize=2, linewidth=1)
        axes.annotate(
            write(value.mean),
            (place, value.high),
            textcoords="offset points",
            xytext=(0, 2),
            ha="center",
            fontsize=7 if len(rows) < 8 else 6,
        )


def _name_bars(axes: Axes, rows: Sequence[Row]) -> None:
    long = max((len(row.system) for row in rows), default=0) * len(rows) > 36
    axes.set_xticks(range(len(rows)), [row.system for row in rows], rotation=30 if long else 0)
    if long:
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
    axes.grid(visible=False, axis="x")
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)


def _legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(list(unique.values()), list(unique), loc="outside lower center", ncols=min(len(unique), 6))


def _panels_over_time(count: int) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(9.0, 1.9 * count + 0.7), layout="constrained")
    return figure, list(figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0])


def _finish_over_time(figure: Figure, panels: Sequence[Axes], case: CaseResults) -> None:
    panels[-1].set_xlabel("virtual time, seconds")
    for axes in panels:
        for start, end in case.surges:
            axes.axvspan(start, end, color="#f2c14e", alpha=0.25, linewidth=0, label="surge")
        axes.margins(x=0.01)
    _legend_below(figure, panels[-1])


def _labels(case: CaseResults) -> list[str]:
    """The classes that all results have, the most urgent first."""
    results = [result for each in case.results.values() for result in each]
    return [priority.label for priority in Priority if all(priority.label in result.classes for result in results)]


def _attainment_over_time(results: Sequence[Result], label: str) -> tuple[list[float], list[Estimate]]:
    """Middles of about 60 intervals in which every seed had requests of the class, and the attainment in each."""
    series = [result.series for result in results]
    steps = min(len(each.offered[label]) for each in series)
    size = max(1, ceil(steps / _STEPS_SHOWN))
    times: list[float] = []
    found: list[Estimate] = []
    for start in range(0, steps, size):
        part = slice(start, min(start + size, steps))
        offered = [sum(each.offered[label][part]) for each in series]
        if all(offered):
            met = [sum(each.in_time[label][part]) for each in series]
            found.append(estimate([kept / sent for kept, sent in zip(met, offered, strict=True)]))
            times.append((part.start + part.stop) / 2 * series[0].step_s)
    return times, found


def _queue_over_time(results: Sequence[Result]) -> tuple[list[float], list[Estimate]]:
    return _each_step([result.series.queued_rows for result in results], results[0].series.step_s)


def _each_step(seeds: Sequence[Sequence[int]], step_s: float) -> tuple[list[float], list[Estimate]]:
    """When each step begins, and its mean over the seeds."""
    found = [estimate([float(value) for value in values]) for values in zip(*seeds, strict=False)]
    return [step * step_s for step in range(len(found))], found


def _percent(value: Estimate | None) -> Estimate | None:
    return None if value is None else Estimate(100 * value.mean, 100 * value.half_width, value.seeds)


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"
