"""Documentation, docstrings and comments use the usual words, and name parts of the system rather than people."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "client/README.md", "examples/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
MODULES = sorted((ROOT / "serve_app").rglob("*.py"))
NAMES_PARTS = ("access", "scheduling")
"""Packages whose docstrings and comments also name parts of the system rather than people."""
_RETIRED = re.compile(r"\b(strangers?|heirs?|riders?|lanes?|owed|dearer|bears?|borne)\b", re.IGNORECASE)
_PEOPLE = re.compile(r"\b(whoever|nobody|somebody|everybody)\b", re.IGNORECASE)
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_retired_word(page: Path) -> None:
    """Outside of code; CONTRIBUTING.md says what to write instead."""
    text = _CODE.sub("", page.read_text("utf-8"))
    assert [*_RETIRED.findall(text), *_PEOPLE.findall(text)] == []


def test_no_retired_word_in_modules() -> None:
    """In no docstring, comment or message; where packages have been gone over, no people either."""
    found = []
    for module in MODULES:
        parts = module.relative_to(ROOT / "serve_app").parts
        words = [_RETIRED, _PEOPLE] if parts[0] in NAMES_PARTS else [_RETIRED]
        for line, text in _texts(module):
            used = [word for each in words for word in each.findall(text)]
            if used:
                found.append(f"{'/'.join(parts)}:{line}: {', '.join(used)}")
    assert found == []


def _texts(module: Path) -> Iterator[tuple[int, str]]:
    """The comments and strings of a module without the code in them, each with the line where it begins."""
    with tokenize.open(module) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type in {tokenize.COMMENT, tokenize.STRING}:
                yield token.start[0], _CODE.sub("", token.string)
