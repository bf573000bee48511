"""Pictures of the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.peers.cases import (
    BENTOML,
    FASTAPI,
    LITSERVE,
    MLSERVER,
    OURS,
    OURS_PROXY,
    RAW,
    STOCK,
    SYNC,
    TRITON,
)
from benchmarks.peers.results import CaseResult, median_rates
from benchmarks.publishing import picture_style, save_svg

_COLOURS = {
    OURS: "#1f6f8b",
    OURS_PROXY: "#7fb7c9",
    TRITON: "#6a994e",
    FASTAPI: "#8e6c8a",
    SYNC: "#555555",
    LITSERVE: "#e09f3e",
    BENTOML: "#bc6c25",
    MLSERVER: "#9a8c98",
    STOCK: "#c8553d",
    RAW: "#222222",
}


def draw(cases: Sequence[CaseResult], folder: Path) -> list[tuple[str, str]]:
    """Draw what there is, as SVG.

    Returns:
        Title and file name of every picture made.
    """
    made = []
    with picture_style():
        for title, name, figure in (
            ("Throughput over connections", "performance_throughput", _throughput(cases)),
            ("Latency at fixed rates", "performance_latency", _latency(cases)),
            ("Share of ONNX Runtime alone", "performance_efficiency", _efficiency(cases)),
        ):
            if figure is None:
                continue
            save_svg(figure, folder / f"{name}.svg")
            made.append((title, f"{name}.svg"))
    return made


def _throughput(cases: Sequence[CaseResult]) -> Figure | None:
    several = [case for case in cases if len({run.connections for run in case.runs}) > 1]
    if not several:
        return None
    figure = Figure(figsize=(4.6 * len(several), 3.8), layout="constrained")
    for axes, case in zip(np.atleast_1d(figure.subplots(1, len(several))), several, strict=True):
        rates = median_rates(case.runs)
        systems = [system for system in dict.fromkeys(system for system, _ in rates) if system != RAW]
        for system in systems:
            points = sorted((connections, rate) for (name, connections), rate in rates.items() if name == system)
            axes.plot(*zip(*points, strict=True), marker="o", color=_COLOURS[system], label=system)
        connections = sorted({run.connections for run in case.runs})
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(connections, [str(each) for each in connections])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set(title=case.name, xlabel="connections", ylabel="good answers per second")
        axes.legend(fontsize=7)
    return figure


def _latency(cases: Sequence[CaseResult]) -> Figure | None:
    panels = [(case, share) for case in cases for share in sorted({run.share for run in case.paced})]
    if not panels:
        return None
    figure = Figure(figsize=(3.6 * len(panels), 3.4), layout="constrained")
    for axes, (case, share) in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        runs = [run for run in case.paced if run.share == share]
        systems = list(dict.fromkeys(run.system for run in runs))
        for place, system in enumerate(systems):
            own = [run for run in runs if run.system == system]
            heights = [median(getattr(run, name) for run in own) for name in ("p50_ms", "p90_ms", "p99_ms")]
            width = 0.8 / len(systems)
            axes.bar(np.arange(3) + place * width, heights, width, color=_COLOURS[system], label=system)
        axes.set_xticks(np.arange(3) + 0.4 - 0.4 / len(systems), ["p50", "p90", "p99"])
        axes.set(title=f"{case.name} at {runs[0].rate:,.0f} requests/s", ylabel="milliseconds", yscale="log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.legend(fontsize=7)
    return figure


def _efficiency(cases: Sequence[CaseResult]) -> Figure | None:
    bars: list[tuple[str, str, float]] = []
    for case in cases:
        rates = median_rates(case.runs)
        for (system, connections), rate in rates.items():
            alone = rates.get((RAW, connections))
            if case.name != "tiny" and system != RAW and alone:
                bars.append((f"{case.name}, {connections}", system, rate / alone))
    if not bars:
        return None
    groups = list(dict.fromkeys(group for group, _, _ in bars))
    figure = Figure(figsize=(1.2 + 1.7 * len(groups), 3.4), layout="constrained")
    axes = figure.subplots()
    systems = list(dict.fromkeys(system for _, system, _ in bars))
    width = 0.8 / len(systems)
    for place, system in enumerate(systems):
        own = [(groups.index(group), share) for group, name, share in bars if name == system]
        axes.bar(
            [x + place * width for x, _ in own],
            [share for _, share in own],
            width,
            color=_COLOURS[system],
            label=system,
        )
    axes.axhline(1.0, color=_COLOURS[RAW], linewidth=1)
    axes.set_xticks([number + 0.4 - width / 2 for number in range(len(groups))], groups)
    axes.set(ylabel="answers per second over\nrows per second alone", xlabel="case, connections")
    axes.legend(fontsize=7)
    return figure
