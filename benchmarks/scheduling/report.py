"""The report: Markdown, JSON and plots of all experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from benchmarks.scheduling.experiment import Experiment
from serve_app_simulator.plots import save
from serve_app_simulator.report import markdown_table

_INTRODUCTION = (
    "Written by `make bench-scheduling`; the figures behind it are in `scheduling.json`. The simulator runs the "
    "scheduler and the gate of the server on a virtual clock, so all of it is reproducible by seed."
)
_MARKS = {True: "yes", False: "**no**", None: ""}


def to_json(
    experiments: Sequence[Experiment], notes: Sequence[str], seeds: Sequence[int], *, quick: bool, commit: str = ""
) -> bytes:
    """All experiments but their figures.

    Args:
        experiments: Those that ran.
        notes: What holds for all of them.
        seeds: That they ran with.
        quick: Whether their workloads were short.
        commit: Of what was measured; see `benchmarks.machine.revision`.
    """
    values = {
        "notes": list(notes),
        "experiments": {
            each.name: {
                "title": each.title,
                "text": each.text,
                "seeds": list(seeds),
                "quick": quick,
                "commit": commit,
                "findings": [asdict(finding) for finding in each.findings],
                "tables": [
                    {"header": list(table.header), "rows": [list(row) for row in table.rows]} for table in each.tables
                ],
                "figures": sorted(each.figures),
                "data": dict(each.data),
            }
            for each in experiments
        },
    }
    return orjson.dumps(values, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS) + b"\n"


def save_figures(experiments: Sequence[Experiment], folder: Path) -> None:
    """Write every figure as SVG and PNG."""
    for each in experiments:
        for end, figure in each.figures.items():
            save(figure, folder / f"scheduling_{each.name}{end}")


_MOST_TABLES, _MOST_ROWS, _LOAD = 2, 16, "0.9"
_NOT_SHOWN = frozenset({"busy", "rows", "settings"})


def render(document: Mapping[str, Any]) -> str:
    """The report as Markdown, of what `to_json` wrote."""
    notes, experiments = document["notes"], document["experiments"]
    findings = [finding for each in experiments.values() for finding in each["findings"]]
    summary = [
        [finding["experiment"], finding["aim"], finding["measured"], _MARKS[finding["met"]]] for finding in findings
    ]
    parts = [
        "# The scheduler in the simulator",
        _INTRODUCTION,
        "\n".join(f"- {note}" for note in notes),
        _table(["experiment", "aim", "measured", "met"], summary),
    ]
    for name, each in experiments.items():
        parts += [f"## {each['title']}", each["text"], _seeds(each)]
        parts += [
            _table(*_shown(table["header"], table["rows"])) for table in each["tables"][:_MOST_TABLES] if table["rows"]
        ]
        parts += [f"![{each['title']}](scheduling_{name}{end}.svg)" for end in each["figures"]]
    return "\n\n".join(parts) + "\n"


def _shown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """A table as the page has it: a comparison of many workloads at one load, without how systems were set.

    The JSON has all of it.
    """
    if header[0] == "workload" and len(rows) > _MOST_ROWS:
        loads = {row[0].rpartition("/")[2] for row in rows}
        load = _LOAD if _LOAD in loads else min(loads)
        rows = [row for row in rows if row[0].rpartition("/")[2] == load] or rows
    kept = [at for at, name in enumerate(header) if name not in _NOT_SHOWN]
    return [header[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _seeds(experiment: Mapping[str, Any]) -> str:
    seeds = f"Seeds: {', '.join(map(str, experiment['seeds']))}."
    if experiment.get("commit"):
        seeds += f" Commit {experiment['commit']}."
    return f"{seeds} **A quick run of short workloads, for trying.**" if experiment["quick"] else seeds


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_table(header, rows)
