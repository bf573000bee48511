"""What all reports have in common: where they go, how tables and pictures look, and what they were measured on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
import orjson
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.figures import wrong_figures
from benchmarks.machine import Machine
from benchmarks.process import OUT, ROOT

PUBLISHED = ROOT / "docs" / "benchmarks"
_NAMED = ("ray", "onnxruntime-gpu")
_JSON = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE


def folders(*, publish: bool, own: Path = OUT) -> tuple[Path, ...]:
    """Where a report goes: into the benchmarks' own folder and, to be published, into the documentation's too."""
    found = (own, PUBLISHED) if publish else (own,)
    for folder in found:
        folder.mkdir(parents=True, exist_ok=True)
    return found


def write_report(folder: Path, name: str, figures: Any, text: str) -> None:
    """Write ``name.json`` and ``name.md``. What the documentation says and a published report no longer does is told.

    Args:
        folder: Where to.
        name: Of the report.
        figures: What was measured: plain values and dataclasses of them.
        text: The report as Markdown.
    """
    (folder / f"{name}.json").write_bytes(orjson.dumps(figures, option=_JSON))
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    if folder == PUBLISHED:
        for page, fault in old_figures():
            print(f"change {page.relative_to(ROOT)}: {fault}", file=sys.stderr)


def old_figures() -> Iterator[tuple[Path, str]]:
    """Pages whose marked figures are not the published ones, and which (see `benchmarks.figures`)."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for fault in wrong_figures(page.read_text("utf-8"), PUBLISHED):
            yield page, fault


def publish_report(
    console: Console,
    name: str,
    figures: Any,
    text: str,
    draw: Callable[[Path], None] | None = None,
    *,
    publish: bool,
) -> None:
    """Write a report into `folders`, with ``name.svg`` where there is a picture, and print it.

    Args:
        console: For the text.
        name: Of the report.
        figures: See `write_report`.
        text: The report as Markdown.
        draw: Draws the picture into a file.
        publish: Whether it goes into the documentation, too.
    """
    for folder in folders(publish=publish):
        write_report(folder, name, figures, text)
        if draw is not None:
            draw(folder / f"{name}.svg")
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def now() -> str:
    """Date and time for a report."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


@contextmanager
def picture_style(font_size: int = 9) -> Iterator[None]:
    """Draw and save pictures in here: they look alike, and the same figures give the same bytes."""
    style: Any = {"svg.hashsalt": "serve-app", "font.size": font_size, "axes.grid": True, "grid.alpha": 0.3}
    with mpl.rc_context(style):
        yield


def save_svg(figure: Figure, path: Path, **options: Any) -> None:
    """Write a picture, without the date. ``options`` are matplotlib's."""
    figure.savefig(path, format="svg", metadata={"Date": None}, **options)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    first, *others = (f"| {' | '.join(line)} |" for line in (header, *rows))
    return "\n".join([first, "|---" * len(header) + "|", *others])


def measured_on(date: str, machine: Machine, others: Sequence[str] = ()) -> str:
    """When and on what was measured, in a sentence. The JSON has the rest of the machine.

    Args:
        date: When; see `now`.
        machine: What.
        others: Names and versions of packages in other environments.
    """
    packages = [f"{name} {machine.packages[name]}" for name in _NAMED if name in machine.packages]
    what = [f"{machine.cpu}, {machine.cores} cores", f"{machine.memory_gib} GiB", *packages, *others]
    commit = f" at commit {machine.commit}" if machine.commit else ""
    during = f", during {min(machine.load_during)} to {max(machine.load_during)}" if machine.load_during else ""
    return f"Measured {date}{commit} on {', '.join(what)}; load average before {machine.load_before}{during}."
