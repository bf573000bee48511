"""What an experiment has found, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from serve_app_simulator.report import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Finding:
    """An aim and what was measured.

    Attributes:
        experiment: What it belongs to, in a few words.
        aim: What was wanted.
        measured: What was found.
        met: Whether the aim was reached; ``None`` for what has no aim.
    """

    experiment: str
    aim: str
    measured: str
    met: bool | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its header, and lines of text."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Experiment:
    """One section of the report.

    Attributes:
        name: Short name, also of its files.
        title: For readers.
        text: What was done, and what is to be seen, in paragraphs.
        findings: Aims and what was measured.
        tables: Tables.
        figures: Plots by the end of their file name.
        data: Everything that the tables and plots show, JSON-able.
    """

    name: str
    title: str
    text: str
    findings: Sequence[Finding]
    tables: Sequence[Table] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)


def percent(value: Estimate, digits: int = 1) -> str:
    """A part in percent with its interval."""
    if value.seeds < 2:
        return f"{100 * value.mean:.{digits}f}%"
    return f"{100 * value.mean:.{digits}f} ±{100 * value.half_width:.{digits}f}%"


def times(value: Estimate) -> str:
    """A ratio with its interval."""
    return f"{value.mean:.2f} ±{value.half_width:.2f}"


def plain(value: Estimate, digits: int = 1) -> str:
    """A number with its interval."""
    return f"{value.mean:,.{digits}f} ±{value.half_width:,.{digits}f}"


def as_values(value: Estimate) -> dict[str, float]:
    """For JSON."""
    return {"mean": value.mean, "half_width": value.half_width}
