"""The report: Markdown, JSON and plots of all experiments."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from benchmarks.publishing import picture_style, save_svg, table
from benchmarks.scheduling.contenders import IN_PROCESS
from benchmarks.scheduling.experiment import Experiment

_INTRODUCTION = (
    "Written by `make bench-scheduling`; `python -m benchmarks.scheduling --only NAME` repeats one experiment. All "
    "loads, systems and settings are in `scheduling.json`. The server's scheduler and gate run on a virtual clock."
)
_GAINS = (
    "Weighted goodput less that of the tuned baseline, in points: the worst and the best workload, and how many of all "
    "are lost by more than the noise. `In process` is this scheduler without the way to a replica."
)
_WEIGHED = (
    "Recorded lengths are what this scheduler gains at. Early drop in the server's process (`sliding`) is better for "
    "models of a few milliseconds, deadlines of 2 x L(1), stalls, and where classes, tenants or four replicas share "
    "one queue. Triton's settings are better at 2 x L(1), with four replicas, for a flooding tenant's sum, and "
    "for [video](#video-streams-at-30-frames-per-second)."
)
_DECISIONS = {
    "poisson": "Steady load decides nothing: all are close to the bound until deadlines are short.",
    "gamma": "Bursts with deadlines of 2 x L(1) lose to an in-process batcher; longer ones gain over Triton.",
    "mmpp": "Between a burst and the next all but Triton keep close to the bound.",
    "azure": "Lengths that differ as in production are the best reason for this scheduler.",
    "timers": "A load of 1.3 in recorded bursts is the only workload that early drop is better at, by under a point.",
    "ratio": "The gain over Triton stays whatever part of a batch is fixed cost.",
    "curves": "A model of a few milliseconds needs deadlines of 20 x L(1), or an in-process batcher.",
    "classes": "A third of a sliding window's gain is the guaranteed share of `low`. Routers cost nothing.",
    "replicas": "A second router costs nothing; of steady arrivals, four replicas lose to one shared queue.",
    "overload": "Goodput holds up to three times the capacity, as a sliding window's does.",
    "noise": "Nothing needs to be set for noise: stalls and drift cost all systems alike.",
    "models": "All systems answer all in time: each model is a server of its own.",
    "mixed": "Overload gains most. A guarantee for each size (`size_fairness`) costs goodput in overload.",
    "tenants": "The calm tenant is kept apart from the flood, for a little of the sum.",
    "flash_crowd": "Without autoscaling `high` misses its aim; plan capacity for the crowd, or scale.",
    "streams": "The aim is missed everywhere: with 33 ms Triton's policy carries as many streams or more.",
    "shares": "Keep the guarantee: `low` is served however much `high` asks for.",
    "fairness": "Give a tenant whose deadline is below 5 x L(1), or who comes in bursts, a class of its own.",
    "sizes": "Without a guarantee, large requests run where that is free.",
    "caps": "A larger quantile helps `normal` and `low` at the cost of `high`.",
    "backlog": "Raise `high_slowdown` only where the backlog counts more than the tail of `high`.",
    "frontier": "Keep the default: to refuse at arrival is earlier, and loses answers.",
    "faults": "Leave ties and the circuit breaker on.",
    "pools_remote": "Beside ModelMesh's LRU the gain is small, and a load slows down resident members of the host.",
}
"""What to decide by an experiment, by its name."""
_MARKS = {True: "(met)", False: "(**missed**)", None: ""}


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
    """Write every figure."""
    for each in experiments:
        for end, figure in each.figures.items():
            with picture_style():
                save_svg(figure, folder / f"scheduling_{each.name}{end}.svg")


_MOST_ROWS, _LOAD = 16, "0.9"
_FLOODS = "loads, deadlines in L(1), gaps"
_COLUMNS = {
    "shares": ("load of high", "low's share", "without guarantee", "triton", "high in time", "high, triton"),
    "caps": ("workload", "quantile", "high", "normal", "low", "weighted"),
}
"""By experiment, the columns that the page has; all where it is not named."""
_NO_TABLE = {"models"}
"""Experiments whose systems do not differ."""
_SIDE_BY_SIDE = {
    "flash_crowd": ("crowd", "system", ("high", "normal", "low")),
    "fairness": (_FLOODS, _FLOODS, ("polite", "difference", "to unfair", "strict priority")),
    "sizes": ("load", "", ("1x512", "4x2048", "8x8192", "all in time")),
    "streams": ("streams", "system", ("most streams at 99% in time",)),
    "backlog": ("a batch", "`high_slowdown`", ("p99, times", "part")),
    "frontier": ("workload", "told", ("in time", "median of a no, part of the budget")),
    "faults": ("what happens", "with", ("high in time",)),
    "pools_remote": ("requests/s", "system", ("in time", "high")),
}
"""By experiment: what has a line each, what has a column each, and the figures in each cell."""
_AIM = re.compile(r"(?:serve-app (in process) )?loses to tuned `(\w+)` nowhere")
_MEASURED = re.compile(r"from (\S+ \S+) \(.*?\) to (\S+ \S+) \(.*?\); (\d+ of \d+) workloads lost")


def render(document: Mapping[str, Any]) -> str:
    """The report as Markdown, of what `to_json` wrote."""
    notes, experiments = document["notes"], document["experiments"]
    usual = Counter(map(_source, experiments.values())).most_common(1)
    source = usual[0][0] if usual else ""
    parts = ["# The scheduler in the simulator", _INTRODUCTION, "\n".join(f"- {note}" for note in [*notes, source])]
    gains = {name: _gains(each["findings"]) for name, each in experiments.items()}
    columns = list(dict.fromkeys(column for row in gains.values() for column in row))
    if columns:
        rows = [[name, *(row.get(column, "") for column in columns)] for name, row in gains.items() if row]
        parts += ["## Beside tuned baselines", _GAINS, _table(["experiment", *columns], rows), _WEIGHED]
    for name, each in experiments.items():
        parts += [f"## {each['title']}", each["text"] if _source(each) == source else f"{each['text']} {_source(each)}"]
        if name not in _NO_TABLE and each["tables"] and each["tables"][0]["rows"]:
            first = each["tables"][0]
            parts.append(_table(*_shown(name, first["header"], first["rows"])))
        parts += [f"![{name}](scheduling_{name}{end}.svg)" for end in each["figures"]]
        if aims := _aims([finding for finding in each["findings"] if not _is_gain(finding)]):
            parts.append(aims)
        if name in _DECISIONS:
            parts.append(_DECISIONS[name])
    return "\n\n".join(parts) + "\n"


def _is_gain(finding: Mapping[str, Any]) -> bool:
    return bool(_AIM.match(finding["aim"]) and _MEASURED.fullmatch(finding["measured"]))


def _gains(findings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The gains of an experiment, by what is compared."""
    found = {}
    for finding in findings:
        aim, measured = _AIM.match(finding["aim"]), _MEASURED.fullmatch(finding["measured"])
        if aim and measured:
            cell = f"{measured[1]} to {measured[2]} ({measured[3].replace(' of ', '/')})"
            found[f"{aim[1] or 'serve-app'} less `{aim[2]}`"] = cell if finding["met"] else f"**{cell}**"
    return found


def _aims(findings: Sequence[Mapping[str, Any]]) -> str:
    """A line for each aim, with what was measured wherever it was."""
    several = len({finding["experiment"] for finding in findings}) > 1
    lines: dict[str, list[str]] = {}
    for finding in findings:
        name = finding["experiment"] if several else ""
        measured = finding["measured"].partition(" (")[0]
        found = f"{name} {measured} {_MARKS[finding['met']]}".strip()
        lines.setdefault(finding["aim"], []).append(found)
    return "\n".join(f"- {aim}: {'; '.join(found)}" for aim, found in lines.items()).replace(" ±", "±")


def _shown(
    name: str, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """A table as the page has it: many workloads at one load, and systems side by side. The JSON has all of it."""
    if header[0] == "workload" and len(rows) > _MOST_ROWS:
        tried = {row[0].rpartition("/")[2] for row in rows}
        load = max((each for each in tried if each <= _LOAD), default=min(tried))
        rows = [row for row in rows if row[0].rpartition("/")[2] == load] or rows
    if "per class or tenant" in header:
        figure, parts = header.index("weighted"), header.index("per class or tenant")
        names = " / ".join(part.rpartition(" ")[0] for part in rows[0][parts].split(", ")) if rows[0][parts] else ""
        first = f"weighted goodput ({names})" if names else "weighted goodput"
        shown = [row for row in rows if row[1] != IN_PROCESS]
        return _side_by_side(first, [(row[0], row[1], _with_parts(row[figure], row[parts])) for row in shown])
    if name in _SIDE_BY_SIDE:
        first, second, figures = _SIDE_BY_SIDE[name]
        cells = []
        for row in rows:
            found = dict(zip(header, row, strict=True))
            line, column = found[first], found[second]
            if name == "fairness":  # three things in one cell: a column for each pair of deadlines
                load, column, gaps = line.split(", ")
                line = f"{load}, {gaps}"
            cells.append((line, column, "; ".join(found[figure] for figure in figures)))
        return _side_by_side(f"{first} ({'; '.join(figures)})", cells)
    kept = [at for at, column in enumerate(header) if column in _COLUMNS.get(name, header)]
    return [header[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _with_parts(figure: str, parts: str) -> str:
    return f"{figure} ({'/'.join(part.rpartition(' ')[2] for part in parts.split(', '))})" if parts else figure


def _side_by_side(first: str, cells: Iterable[tuple[str, str, str]]) -> tuple[list[str], list[list[str]]]:
    """A line for each first cell, and a column for each second one."""
    found: dict[str, dict[str, str]] = {}
    for name, system, figure in cells:
        found.setdefault(name, {})[system] = figure
    systems = list(dict.fromkeys(system for row in found.values() for system in row))
    return [first, *systems], [[name, *(row.get(system, "") for system in systems)] for name, row in found.items()]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return table(header, [[cell.replace(" ±", "±") for cell in row] for row in rows])


def _source(experiment: Mapping[str, Any]) -> str:
    seeds = f"{len(experiment['seeds'])} seeds."
    if experiment.get("commit"):
        seeds += f" Commit {experiment['commit']}."
    return f"{seeds} **A quick run of short workloads, for trying.**" if experiment["quick"] else seeds
