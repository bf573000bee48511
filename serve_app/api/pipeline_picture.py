"""Draws a pipeline: inputs left, outputs right, each step right of its inputs.

A layered drawing (Sugiyama, Tagawa and Toda 1981): assigns nodes to columns, gives lines a place in columns that they
cross, and orders each column by the sources of its lines. SVG without scripts and fonts of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Final
from xml.sax.saxutils import escape

from serve_app.domain.pipeline import (
    ConcatStep,
    EqualStep,
    JoinStep,
    ModelStep,
    Pipeline,
    Reference,
    Step,
    SwitchStep,
    all_needs,
)

_CHARACTER: Final = 7.3
"""Width of one, about, pixels."""
_LINE: Final = 17
_PADDING: Final = 12
_BETWEEN_COLUMNS: Final = 78
_BETWEEN_ROWS: Final = 18
_MARGIN: Final = 16
_PASSING: Final = 8
"""Height of the place of a line that passes a column."""
_MOST_CHARACTERS: Final = 28
_SWEEPS: Final = 4
_FONT: Final = 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="12"'
_ARROW: Final = (
    '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#5f6368"/></marker></defs>'
)
_FILLS: Final = {"input": "#e8f0fe", "model": "#e6f4ea", "choice": "#fef7e0", "join": "#f1f3f4", "output": "#fce8e6"}


@dataclass(slots=True)
class _Node:
    """A box, or the place where a line crosses a column.

    Attributes:
        lines: Its text; empty for a line's place.
        kind: Selects its colour.
        column: From 0 at the left.
    """

    lines: tuple[str, ...]
    kind: str
    column: int
    before: list[_Node] = field(default_factory=list)
    after: list[_Node] = field(default_factory=list)
    place: float = 0.0
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        return max((len(line) for line in self.lines), default=0) * _CHARACTER + 2 * _PADDING if self.lines else 0.0

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + _PADDING if self.lines else float(_PASSING)


@dataclass(slots=True)
class _Line:
    """A line between boxes, with the places that it crosses; ``label`` names its case."""

    way: list[_Node]
    label: str
    dashed: bool


def draw(plan: Pipeline) -> str:
    """Draw a pipeline as SVG."""
    nodes, lines = _layout(plan)
    width = max(node.x + node.width for node in nodes) + _MARGIN
    height = max(node.y + node.height for node in nodes) + _MARGIN
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {_FONT}>',
        f"<title>{escape(plan.name)}</title>",
        _ARROW,
        *(_drawn_line(line) for line in lines),
        *(_drawn_box(node) for node in nodes if node.lines),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _layout(plan: Pipeline) -> tuple[list[_Node], list[_Line]]:
    boxes: dict[str, _Node] = {}
    for given in plan.inputs.values():
        what = f"{given.datatype} {list(given.shape)}" if given.kind == "tensor" else given.kind
        boxes[given.name] = _Node((given.name, f"{what}{' (many)' if given.many else ''}"), "input", 0)
    links: list[tuple[_Node, _Node, str, bool]] = []
    for name, step in plan.steps.items():
        needed = [boxes[reference.name] for reference in all_needs(step)]
        kind, said = _described(step)
        boxes[name] = _Node((_short(name), _short(said)), kind, 1 + max((node.column for node in needed), default=0))
        links += [(boxes[ref.name], boxes[name], label, dashed) for ref, label, dashed in _links(step)]
    last = 1 + max(node.column for node in boxes.values())
    outputs = []
    for name, output in plan.outputs.items():
        outputs.append(_Node((_short(name), _short(str(output.reference))), "output", last))
        links.append((boxes[output.reference.name], outputs[-1], "", False))
    columns: list[list[_Node]] = [[] for _ in range(last + 1)]
    for node in (*boxes.values(), *outputs):
        columns[node.column].append(node)
    lines = [_line(start, end, label, columns, dashed=dashed) for start, end, label, dashed in links]
    _order(columns)
    _place(columns)
    return [node for column in columns for node in column], lines


def _described(step: Step) -> tuple[str, str]:
    match step:
        case ModelStep():
            version = "" if step.version is None else f" {step.version}"
            return "model", f"{'map ' if step.over else ''}{step.model}{version}"
        case SwitchStep():
            return "choice", f"switch {step.on}"
        case EqualStep():
            return "choice", "equal"
        case ConcatStep():
            return "join", f"concat {step.axis}"
        case JoinStep():
            return "join", "join"


def _links(step: Step) -> Iterator[tuple[Reference, str, bool]]:
    """The references of a step, the label of each line, and whether the line is conditional."""
    seen: set[str] = set()
    for reference in step.needs():
        if reference.name not in seen:
            seen.add(reference.name)
            yield reference, "", False
    if isinstance(step, SwitchStep):
        labels: dict[str, list[str]] = {}
        references: dict[str, Reference] = {}
        for case, chosen in (*step.cases.items(), ("default", step.default)):
            if isinstance(chosen, Reference):
                labels.setdefault(chosen.name, []).append(case)
                references[chosen.name] = chosen
        for name, cases in labels.items():
            yield references[name], _short(", ".join(cases)), True


def _line(start: _Node, end: _Node, label: str, columns: Sequence[list[_Node]], *, dashed: bool) -> _Line:
    way = [start]
    for column in range(start.column + 1, end.column):
        passing = _Node((), "", column)
        columns[column].append(passing)
        way.append(passing)
    way.append(end)
    for before, after in pairwise(way):
        before.after.append(after)
        after.before.append(before)
    return _Line(way, label, dashed)


def _order(columns: Sequence[list[_Node]]) -> None:
    """Order each column by the mean place of its neighbours, forwards and backwards alternately."""
    for column in columns:
        for place, node in enumerate(column):
            node.place = place
    for sweep in range(_SWEEPS):
        forwards = sweep % 2 == 0
        for column in columns[1:] if forwards else columns[-2::-1]:
            wanted = {
                id(node): fmean(other.place for other in others)
                for node in column
                if (others := node.before if forwards else node.after)
            }
            column.sort(key=lambda node: wanted.get(id(node), node.place))
            for place, node in enumerate(column):
                node.place = place


def _place(columns: Sequence[list[_Node]]) -> None:
    heights = [sum(node.height for node in column) + _BETWEEN_ROWS * (len(column) - 1) for column in columns]
    tallest, x = max(heights), float(_MARGIN)
    for column, height in zip(columns, heights, strict=True):
        width = max(node.width for node in column)
        y = _MARGIN + (tallest - height) / 2
        for node in column:
            node.x, node.y = x + (width - node.width) / 2, y
            y += node.height + _BETWEEN_ROWS
        x += width + _BETWEEN_COLUMNS


def _drawn_line(line: _Line) -> str:
    path = ""
    for before, after in pairwise(line.way):
        x1, y1 = before.x + before.width, before.y + before.height / 2
        x2, y2 = after.x, after.y + after.height / 2
        bend = (x2 - x1) / 2
        path += "" if path else f"M{x1:.1f} {y1:.1f}"
        path += f"C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    dashes = ' stroke-dasharray="4 3"' if line.dashed else ""
    drawn = f'<path d="{path}" fill="none" stroke="#5f6368"{dashes} marker-end="url(#end)"/>'
    if line.label:
        end = line.way[-1]
        x, y = end.x - 10, (line.way[-2].y + line.way[-2].height / 2 + 3 * (end.y + end.height / 2)) / 4 - 4
        drawn += f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="end" font-size="11">{escape(line.label)}</text>'
    return drawn


def _drawn_box(node: _Node) -> str:
    corner = 14 if node.kind in {"input", "output"} else 3
    drawn = (
        f'<rect x="{node.x:.1f}" y="{node.y:.1f}" width="{node.width:.1f}" height="{node.height:.1f}" rx="{corner}"'
        f' fill="{_FILLS[node.kind]}" stroke="#5f6368"/>'
    )
    for at, line in enumerate(node.lines):
        y = node.y + _PADDING / 2 + (at + 0.72) * _LINE
        weight = ' font-weight="bold"' if at == 0 else ""
        drawn += (
            f'<text x="{node.x + node.width / 2:.1f}" y="{y:.1f}" text-anchor="middle"{weight}>{escape(line)}</text>'
        )
    return drawn


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
