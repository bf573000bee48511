"""The judge's report: a summary by model and load, a picture, and the cells in which a rival is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median

from matplotlib.figure import Figure

from benchmarks.publishing import picture_style, save_svg, table
from benchmarks.scaling.judge import BOUND, OURS, QUEUE, RATE, RAY, RIVALS, TUNING_SEED, Score, as_good

_COLOURS = {RAY: "#d95f02", QUEUE: "#7570b3", RATE: "#66a61e", BOUND: "#888888"}

Cells = Mapping[str, Sequence[Score]]
"""Scores by cell, the server's policy first."""


def share_of_bound(scores: Sequence[Score]) -> float:
    """Replica-seconds of the policy that sees the future, as a part of the server's at equal attainment."""
    by_name = {score.contender: score for score in scores}
    return by_name[BOUND].replica_s / by_name[OURS].replica_s


def beaten_by(scores: Sequence[Score]) -> list[Score]:
    """Rivals that are in time for as many and cost less."""
    ours = scores[0]
    return [
        each
        for each in scores[1:]
        if each.contender != BOUND and as_good(ours, each) and each.replica_s < ours.replica_s
    ]


def text(cells: Cells, seeds: Sequence[int]) -> str:
    """The report as Markdown.

    Args:
        seeds: Of the draws over which scores are means.
    """
    shares = [share_of_bound(scores) for scores in cells.values()]
    beaten = {name: rivals for name, scores in cells.items() if (rivals := beaten_by(scores))}
    says = (
        "Simulated over the server's own scheduler. Rivals have the settings that suit them best in that cell: the"
        " target of a replica (requests queued and running, or requests per second), and how long they wait before they"
        f" scale down. They were chosen with arrivals of seed {TUNING_SEED}; what counts are those of"
        f" {' and '.join(map(str, seeds))}. The bound is the cheapest plan, in slots of 10 s, that knows the arrivals"
        " and is in time for as many as the server's policy; shorter slots would save a little more. A start costs"
        " nothing here.\n\n"
        "`python -m benchmarks.scaling judge --trace FILE`; all cells are in scaling.json."
    )
    found = (
        f"{len(cells)} cells. Median share of the bound (its replica-seconds by"
        f" the server's): {median(shares):.2f}, least {min(shares):.2f}. Cells in which a rival is in time for as many"
        f" and costs less: {len(beaten)}."
    )
    groups: dict[str, list[Sequence[Score]]] = {}
    for name, scores in cells.items():
        groups.setdefault(", ".join(name.split(", ")[:2]), []).append(scores)
    rows = [_row(name, group) for name, group in groups.items()]
    header = ("model, load", OURS, *RIVALS, "share of the bound", "least", "beaten")
    means = "In time % / replica-seconds, means of the cells: deadlines 0.1, 1 and 5 s, starts 10 and 30 s."
    lines = ["# Replicas that follow the demand", says, found, "![Beside the server's policy](scaling.svg)", means]
    lines.append(table(header, rows))
    if beaten:
        worse = [(name, _shown(cells[name][0]), "; ".join(map(_named, rivals))) for name, rivals in beaten.items()]
        lines += [
            "Where a rival is better (in brackets: changes, turns; target, wait before fewer):",
            table(("cell", OURS, "rivals"), worse),
        ]
    return "\n\n".join(lines) + "\n"


def line(scores: Sequence[Score]) -> str:
    """A cell in a line."""
    return "; ".join(map(_named, scores))


def draw(cells: Cells, path: Path) -> None:
    """Draw cost and attainment of each rival beside the server's policy in each cell as SVG."""
    with picture_style():
        picture = Figure(figsize=(6.4, 4.4), layout="constrained")
        axes = picture.subplots()
        axes.axvline(1.0, color="#444444", linewidth=0.8)
        axes.axhline(0.0, color="#444444", linewidth=0.8)
        for contender, colour in _COLOURS.items():
            pairs = [(scores[0], each) for scores in cells.values() for each in scores if each.contender == contender]
            axes.scatter(
                [each.replica_s / ours.replica_s for ours, each in pairs],
                [100 * (each.in_time - ours.in_time) for ours, each in pairs],
                s=14,
                color=colour,
                label=contender,
                alpha=0.8,
            )
        axes.set(
            title="Beside the server's policy at (1, 0); better is up and left",
            xlabel="replica-seconds by the server's",
            ylabel="in time, difference in points",
        )
        axes.set_xscale("log")
        axes.set_xticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
        axes.minorticks_off()
        axes.legend()
        save_svg(picture, path)


def _row(name: str, group: Sequence[Sequence[Score]]) -> tuple[str, ...]:
    means = [
        _mean([score for scores in group for score in scores if score.contender == contender])
        for contender in (OURS, *RIVALS)
    ]
    shares = [share_of_bound(scores) for scores in group]
    beaten = sum(1 for scores in group if beaten_by(scores))
    return (name, *means, f"{median(shares):.2f}", f"{min(shares):.2f}", f"{beaten} of {len(group)}")


def _mean(scores: Sequence[Score]) -> str:
    in_time, replica_s = mean([score.in_time for score in scores]), mean([score.replica_s for score in scores])
    return f"{100 * in_time:.1f} / {replica_s:,.0f}"


def _named(score: Score) -> str:
    return f"{score.contender} {_shown(score)}"


def _shown(score: Score) -> str:
    settings = f"; {score.settings}" if score.settings else ""
    return f"{100 * score.in_time:.1f} / {score.replica_s:,.0f} ({score.changes:.0f}, {score.turns:.0f}{settings})"
