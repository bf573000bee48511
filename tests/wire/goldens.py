"""The committed answers: a file for each family of requests, in which equal answers stand once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

FOLDER: Final = Path(__file__).with_name("goldens")
REWRITE: Final = "if that is meant, `make goldens` writes them again"
_WIDTH: Final = 120

Answers: TypeAlias = dict[str, Any]
"""Answers by the titles of their requests."""


def read(family: str, folder: Path = FOLDER) -> Answers:
    """The answers of one family; none where there is no file."""
    file = folder / f"{family}.json"
    groups = json.loads(file.read_text()) if file.exists() else []
    return {title: group["answer"] for group in groups for title in group["asked"]}


def write(families: Mapping[str, Answers], folder: Path = FOLDER) -> None:
    """Replace all files by these."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    for family, answers in families.items():
        groups: dict[str, dict[str, Any]] = {}
        for title, answer in answers.items():
            group = groups.setdefault(json.dumps(answer), {"asked": [], "answer": answer})
            group["asked"].append(title)
        (folder / f"{family}.json").write_text("".join(_laid_out(list(groups.values()), "")) + "\n")


def _laid_out(value: Any, indent: str, before: int = 0) -> Iterator[str]:
    """JSON in which everything that fits a line stands on one, but lists of titles."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or (before + len(indent) + len(line) <= _WIDTH and indent) or not value:
        yield line
        return
    inner = indent + " "
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    yield opening
    items = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    for index, (name, item) in enumerate(items):
        label = "" if name is None else f"{json.dumps(name, ensure_ascii=False)}: "
        yield f"{',' if index else ''}\n{inner}{label}"
        yield from _laid_out(item, inner, len(label) + 1)
    yield f"\n{indent}{closing}"
