"""Pages of the documentation use the usual words, and name parts of the system rather than people."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "client/README.md", "examples/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
_RETIRED = re.compile(
    r"\b(whoever|nobody|somebody|everybody|strangers?|heirs?|riders?|lanes?|owed|dearer|bears?|borne)\b", re.IGNORECASE
)
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_retired_word(page: Path) -> None:
    """Outside of code; CONTRIBUTING.md says what to write instead."""
    assert _RETIRED.findall(_CODE.sub("", page.read_text("utf-8"))) == []
