"""Plots that the simulator's own do not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from matplotlib.figure import Figure

from benchmarks.publishing import picture_style
from serve_app_simulator.plots import OURS, colours
from serve_app_simulator.report import Estimate

COLOURS = {
    **OURS,
    "ray-serve": "#c8553d",
    "triton": "#6a994e",
    "clipper": "#b8860b",
    "clockwork": "#7b5ea7",
    "nexus": "#d16ba5",
    "symphony": "#3d5a80",
    "modelmesh": "#6a994e",
    "ray-multiplexed": "#c8553d",
    "llama-swap": "#b8860b",
    "all resident": "#7b5ea7",
}
_PERCENT = 100.0
_MARKERS = "osD^vP*X<>"

Curve = Sequence[tuple[float, Estimate]]
Panel = tuple[str, str, float, Mapping[str, Curve]]
"""Title, label of the y axis, what values are multiplied by, and a curve per system."""


def lines(panels: Sequence[Panel], xlabel: str, *, log: bool = False, bottom: float | None = None) -> Figure:
    """Curves with 95% bands, one panel beside the other; a system has one colour everywhere."""
    names = list(dict.fromkeys(name for *_, curves in panels for name in curves))
    palette = colours(names, COLOURS)
    with picture_style():
        figure = Figure(figsize=(4.5 * max(2, len(panels)), 3.9), layout="constrained")
        handles = {}
        for axes, (title, ylabel, scale, curves) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            for name, curve in curves.items():
                at = [place for place, _ in curve]
                style: dict[str, Any] = (
                    {"linewidth": 2.2, "zorder": 3} if name == "serve-app" else {"linewidth": 1.3, "zorder": 2}
                )
                if name == "bound":
                    style |= {"linestyle": "--"}
                marker = _MARKERS[names.index(name) % len(_MARKERS)]
                (handles[name],) = axes.plot(
                    at,
                    [scale * value.mean for _, value in curve],
                    color=palette[name],
                    marker=marker,
                    markersize=4,
                    **style,
                )
                # A part of something lies between 0 and 100%, whatever the interval says.
                ends = (0.0, 100.0) if scale == _PERCENT else (-inf, inf)
                low = [max(ends[0], scale * value.low) for _, value in curve]
                high = [min(ends[1], scale * value.high) for _, value in curve]
                axes.fill_between(at, low, high, color=palette[name], alpha=0.18, linewidth=0)
            axes.set(title=title, ylabel=ylabel, xlabel=xlabel)
            if log:
                axes.set_xscale("log")
            if bottom is not None:
                axes.set_ylim(bottom=bottom)
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=min(7, len(handles)))
    return figure


def bars(title: str, xlabel: str, values: Mapping[str, Estimate], *, scale: float = 1.0, colour: str = "") -> Figure:
    """Horizontal bars with 95% intervals, the first on top."""
    names = list(values)
    palette = colours(names, COLOURS)
    with picture_style():
        figure = Figure(figsize=(9.0, 0.7 + 0.3 * len(names)), layout="constrained")
        axes = figure.subplots()
        places = range(len(names), 0, -1)
        for place, (name, value) in zip(places, values.items(), strict=True):
            axes.barh(
                place,
                scale * value.mean,
                0.7,
                xerr=scale * value.half_width,
                color=colour or palette[name],
                error_kw={"capsize": 2, "linewidth": 1},
            )
        axes.set_yticks(list(places), names)
        axes.grid(visible=False, axis="y")
        axes.set_ylim(0.4, len(names) + 0.6)
        axes.set(title=title, xlabel=xlabel)
    return figure
