"""The report: a table of faults, the aims in detail, and a picture of every scenario over time."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.chaos.clients import GRACE_S
from benchmarks.chaos.questions import TOLERANCE
from benchmarks.chaos.stage import Played
from benchmarks.machine import Machine
from benchmarks.publishing import measured_on, picture_style, save_svg, table, write_report

_NAME = "reliability"
_COLOURS = {"high": "#c0392b", "normal": "#2471a3", "low": "#7f8c8d", "failed": "black"}


def line(played: Played) -> str:
    """One scenario in one line."""
    found = played.summary
    return (
        f"{'met   ' if played.met else 'MISSED'} {played.name}: {found.requests:,} requests, {found.right:,} right,"
        f" {found.wrong} wrong, {found.cut} cut, {found.unreachable} unreachable, {found.hung} hung,"
        f" refused {found.refused or 'none'}, high in time {found.high_in_time:.2%}"
    )


def write(folder: Path, found: Sequence[Played], order: Sequence[str], machine: Machine, *, quick: bool) -> None:
    """Write the report. Scenarios that were not played this time keep what the report there says of them.

    Args:
        folder: Where to.
        found: What was played.
        order: Names of all scenarios as they stand in the report. Others are left out of it.
        machine: What was measured on.
        quick: Whether the run was a short one.
    """
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    known = {**_before(folder), **{each.name: {**_plain(each), "date": date, "quick": quick} for each in found}}
    scenarios = {name: known[name] for name in order if name in known}
    write_report(folder, _NAME, {"machine": machine, "scenarios": scenarios}, render(scenarios, machine, date))
    draw(scenarios, folder / f"{_NAME}.svg")


def render(scenarios: dict[str, Any], machine: Machine, date: str) -> str:
    """The report as Markdown.

    Args:
        scenarios: By name: a `Played` as plain values, and its date.
        machine: What was measured on.
        date: When, ISO 8601.
    """
    header = ("scenario", "fault", "requests", "not right", "`high` in time", "suffered, s", "replaced, s")
    missed = [
        f"- **missed**: {name}: {aim['says']}: {_line(aim['found'])}"
        for name, each in scenarios.items()
        for aim in each["aims"]
        if not aim["met"]
    ]
    lines = [
        "# Faults and what they cost",
        "",
        "Written by `make chaos`; aims, notes, failures by client, memory and dates are in `reliability.json`. The",
        "server is the real one, and every answer is compared with that of ONNX Runtime (largest difference allowed:",
        f"{TOLERANCE:g}). A request *hangs* if it has no end {GRACE_S:g} s after its deadline. Server, Ray and the",
        "load generator share the cores; rates are parts of what the machine answers flat out. What is promised is in",
        "[reliability.md](../reliability.md).",
        "",
        table(header, [_row(name, each) for name, each in scenarios.items()]),
        "",
        "*Suffered*: from a fault until the last request ended that failed or was late because of it, median and most.",
        "*Replaced*: until what was broken was there again.",
        "",
        "![Right answers per second by class, and failures](reliability.svg)",
        "",
        *(missed or ["Every aim is met: in no scenario an answer is wrong or a request hangs."]),
        "",
        "With two replicas and two routers a dead process costs no answer but the connections that it cuts. HAProxy is",
        "there once: clients that cannot wait until it is back should ask the routers' own port.",
        "",
        measured_on(date, machine),
        "",
    ]
    return "\n".join(lines)


def draw(scenarios: dict[str, Any], path: Path) -> None:
    """Draw right answers per second by class over time, with the faults, for every scenario."""
    columns = 3
    rows = max(1, ceil(len(scenarios) / columns))
    with picture_style(7):
        figure = Figure(figsize=(12, 2.3 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.ravel()[len(scenarios) :]:
            axes.set_axis_off()
        for axes, (name, each) in zip(grid.ravel(), scenarios.items(), strict=False):
            _draw_one(axes, name, each)
        grid[0, 0].legend(fontsize=6, loc="lower right")
        save_svg(figure, path)


def _draw_one(axes: Axes, name: str, played: dict[str, Any]) -> None:
    for series, colour in _COLOURS.items():
        values = played["timeline"][series]
        times = np.arange(len(values)) * played["bin_s"]
        if series == "failed":
            shown = np.flatnonzero(values)
            axes.plot(times[shown], np.asarray(values)[shown], "x", color=colour, markersize=4, label="failed")
        else:
            axes.plot(times, values, color=colour, linewidth=0.9, label=series)
    for mark in played["marks"]:
        axes.axvline(mark["at_s"], color="orange", linewidth=0.8, zorder=0)
    axes.set_title(name)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("s")
    axes.set_ylabel("answers/s")


def _line(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def _row(name: str, each: dict[str, Any]) -> list[str]:
    found = each["summary"]
    ends = {end: found[end] for end in ("wrong", "hung", "cut", "unreachable") if found[end]} | found["refused"]
    mended = [mark["mended_s"] for mark in each["marks"] if mark["mended_s"] is not None]
    return [
        name,
        f"{each['says']} (x {len(each['marks'])}{', a short run' if each['quick'] else ''})",
        f"{found['requests']:,}",
        ", ".join(f"{end}: {count:,}" for end, count in ends.items()) or "none",
        f"{found['high_in_time']:.2%}",
        _median_and_most([mark["recovery_s"] for mark in each["marks"]]),
        _median_and_most(mended),
    ]


def _median_and_most(values: Sequence[float]) -> str:
    if not any(values):
        return "0" if values else "-"
    return f"{np.median(values):.2f}; {max(values):.2f}"


def _plain(played: Played) -> dict[str, Any]:
    found: dict[str, Any] = asdict(played)
    return found


def _before(folder: Path) -> dict[str, Any]:
    try:
        before: dict[str, Any] = orjson.loads((folder / f"{_NAME}.json").read_bytes())["scenarios"]
    except (OSError, ValueError, LookupError):
        return {}
    return before
