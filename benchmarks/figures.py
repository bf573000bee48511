"""Figures in the documentation that come from published tables, and whether they still agree.

A figure is marked by a comment right behind it that names where it comes from, a file in ``docs/benchmarks`` and the
keys in it (places in lists count from 0):

    98.3% <!-- figure: scheduling.json > experiments > gamma > data > gamma/3x/1 > serve-app > of_bound > mean -->

A number there must round to the figure as written; with a percent sign, a hundred times the number or the number
itself. In a text, one of its numbers must.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

_MARK = re.compile(r"<!-- figure: ([^>]+?\.json)((?: > (?:(?! > | -->).)+)+) -->")
_NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?")
_FIGURE = re.compile(rf"({_NUMBER.pattern})( ?%)?[^\d\n]{{0,24}}$")


def wrong_figures(text: str, folder: Path) -> Iterator[str]:
    """What is wrong with the marked figures of a text, one line each.

    Args:
        text: Markdown.
        folder: Of the published tables.
    """
    for mark in _MARK.finditer(text):
        keys = mark[2].split(" > ")[1:]
        where = f"{mark[1]} > {' > '.join(keys)}"
        before = " ".join(text[: mark.start()].rsplit("\n", 2)[-2:])
        shown = _FIGURE.search(before)
        if shown is None:
            yield f"{where}: no figure stands before this mark"
            continue
        try:
            value = _value(orjson.loads((folder / mark[1]).read_bytes()), keys)
        except (OSError, LookupError, ValueError) as error:
            yield f"{where}: there is no such value ({error!r}); the text says {shown[1]}"
            continue
        if not _agree(shown[1], bool(shown[2]), value):
            yield f"{where}: is {value}, and the text says {shown[1]}{shown[2] or ''}"


def count_figures(text: str) -> int:
    """How many figures of a text are marked."""
    return len(_MARK.findall(text))


def _value(value: Any, keys: list[str]) -> Any:
    for key in keys:
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def _agree(shown: str, percent: bool, value: Any) -> bool:
    if isinstance(value, str):
        return any(_agree(shown, False, float(found.replace(",", ""))) for found in _NUMBER.findall(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    number = float(shown.replace(",", ""))
    half = 0.5 * 10.0 ** -len(shown.partition(".")[2]) + 1e-9
    return any(abs(number - scale * value) <= half for scale in ((1.0, 100.0) if percent else (1.0,)))
