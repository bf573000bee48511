"""The report on swaps: a table of what was measured, and memory over swaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.machine import Machine
from benchmarks.publishing import measured_on, picture_style, save_svg, table
from benchmarks.reload.swapping import Swaps
from benchmarks.reload.systems import LABELS, PEERS, model_memory

_MOST_PART, _MOST_GROWTH = 2.0, 0.1
"""Aims: the p99 during swaps over that without, and sizes of the model per 100 swaps."""
_SETTLED = 100
"""Swaps before memory is looked at: the first ones fill caches of the C library and of what runs the model."""


def memory_of(name: str, by_role: Iterable[Mapping[str, int]]) -> list[int]:
    """Memory of the processes that hold the model, bytes; of another server, of all of its."""
    if name in PEERS:
        return [sum(each.values()) for each in by_role]
    return [model_memory(each) for each in by_role]


def slope(memory: Sequence[int], model_bytes: int) -> float:
    """Growth of memory per 100 swaps, in sizes of the model, once it has settled: that of the least-squares line."""
    settled = memory[min(_SETTLED, len(memory) // 2) :]
    if len(settled) < 2:  # a line needs two points
        return 0.0
    return float(np.polyfit(np.arange(len(settled)), settled, 1)[0]) * 100 / model_bytes


def figures(name: str, found: Swaps, measured: str, version: str = "") -> dict[str, Any]:
    """What is kept of a measurement, and all that the report needs: plain values.

    Args:
        name: Of the system.
        found: What was measured.
        measured: When, at which commit, and what a reader must know of it.
        version: Of another server.
    """
    load, memory = found.load, memory_of(name, [each.proportional for each in found.memory])
    own = memory_of(name, [each.own for each in found.memory])
    return {
        "measured": measured,
        "version": version,
        "swaps": len(found.swap_s),
        "swap_s": found.swap_s,
        "model_bytes": found.model_bytes,
        "memory": memory,
        "memory_by_role": found.memory[-1].proportional if found.memory else {},
        "slope": slope(memory, found.model_bytes),
        "own_memory": own,
        "own_slope": slope(own, found.model_bytes),
        "requests": load.requests,
        "failed": load.failed,
        "faults": load.faults,
        "wrong": load.wrong,
        "during_ms": _percentiles(load.during),
        "between_ms": _percentiles(load.between),
    }


def render(
    systems: Mapping[str, Mapping[str, Any]],
    missing: Mapping[str, str],
    how: Mapping[str, str],
    connections: int,
    machine: Machine,
    date: str,
) -> str:
    """The report as Markdown.

    Args:
        systems: `figures` of each.
        missing: Why others were not measured.
        how: How each was set.
        connections: That asked meanwhile.
        machine: What the last ones were measured on.
        date: When these were.
    """
    header = ["", "swaps", "requests", "failed, wrong", "p50/p99 during swaps, ms", "without", "p99, part"]
    header += ["a swap, p50/longest, s", "memory, first to last, MiB", "growth"]
    lines = [
        "# Loading a model under load",
        "",
        f"What do {connections} connections that ask without a pause notice of a model of 4 MiB that is loaded over",
        "and over? `make bench-reload` measures it; [what a load does](../reload.md). Every answer tells which files",
        "it is of, and is checked. Latencies without a swap are of pauses between the first swaps.",
        "",
        "Aims: no failed and no wrong answer; a p99 during swaps of at most twice that without; memory that grows by",
        "at most 0.1 sizes of the model per 100 swaps: the line through what comes after the first 100, or half, of",
        "the proportional set size of the processes that hold the model; of other servers, of all processes.",
        "",
        table(header, [_row(name, found) for name, found in systems.items()]),
        "",
        "![Memory over swaps](reload.svg)",
        "",
        "In bold: the aim is missed. Models may be replaced under load; a Python class in its own process doubles the",
        "p99 meanwhile. Settings, commits and pages that no other process shares are in `reload.json`.",
        "",
        *(f"- {LABELS[name]}: {how[name]} ({found['measured']})" for name, found in systems.items() if name in PEERS),
        "",
    ]
    if missing:
        lines += [table(["not measured", "why"], [[LABELS[name], reason] for name, reason in missing.items()]), ""]
    others = [f"{LABELS[name]} {found['version']}" for name, found in systems.items() if found["version"]]
    return "\n".join([*lines, measured_on(date, machine, others), ""])


def draw(systems: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw memory over swaps."""
    with picture_style():
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        axes = figure.subplots()
        for name, found in systems.items():
            axes.plot([nbytes / 2**20 for nbytes in found["memory"]], label=LABELS[name], linewidth=1)
        axes.set_xlabel("swaps")
        axes.set_ylabel("MiB")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
        save_svg(figure, path)


def _row(name: str, found: Mapping[str, Any]) -> list[str]:
    during, between, memory = found["during_ms"], found["between_ms"], found["memory"]
    part = during[1] / between[1] if during and between else None
    return [
        LABELS[name],
        f"{found['swaps']:,}",
        f"{found['requests']:,}",
        _judged(f"{found['failed']}, {found['wrong']}", met=not (found["failed"] or found["wrong"])),
        "/".join(f"{each:.1f}" for each in during),
        "/".join(f"{each:.1f}" for each in between),
        "" if part is None else _judged(f"{part:.2f}", met=part <= _MOST_PART),
        f"{np.median(found['swap_s']):.2f}/{max(found['swap_s']):.2f}",
        f"{memory[0] / 2**20:.0f} to {memory[-1] / 2**20:.0f}",
        _judged(f"{found['slope']:.3f}", met=found["slope"] <= _MOST_GROWTH),
    ]


def _judged(text: str, *, met: bool) -> str:
    return text if met else f"**{text}**"


def _percentiles(seconds: Sequence[float]) -> list[float]:
    """The median and the 99th percentile, milliseconds; empty without any."""
    return [float(each) * 1000 for each in np.percentile(seconds, [50, 99])] if seconds else []
