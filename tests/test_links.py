"""Links between the pages of the documentation lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "client").glob("*.md")),
    *sorted((ROOT / "simulator").glob("*.md")),
    *sorted((ROOT / "examples").glob("*.md")),
]

_LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
_CODE = re.compile(r"^( *)(```|~~~).*?^\1\2", re.MULTILINE | re.DOTALL)


def broken_links(page: Path) -> Iterator[str]:
    """Links of a page to files, or to headings, that are not there."""
    for target in _LINK.findall(_CODE.sub("", page.read_text("utf-8"))):
        path, _, anchor = target.partition("#")
        file = page if not path else (page.parent / path).resolve()
        if not file.exists():
            yield f"{target}: no such file"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text("utf-8")):
            yield f"{target}: no such heading"


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    seen: dict[str, int] = {}
    found = set()
    for heading in _HEADING.findall(_CODE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        number = seen.get(anchor, 0)
        seen[anchor] = number + 1
        found.add(f"{anchor}-{number}" if number else anchor)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    """Headings by the anchors that GitHub gives them."""
    assert list(broken_links(page)) == []


def test_every_page_of_the_documentation_is_listed() -> None:
    """In the index, so that a reader finds it."""
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page != "README.md" and f"({page})" not in index] == []


def test_a_link_to_nowhere_is_found(tmp_path: Path) -> None:
    """A missing file, and a missing heading."""
    page = tmp_path / "page.md"
    page.write_text("# One `two`: three\n[a](gone.md) [b](#one-two-three) [c](page.md#four)\n", "utf-8")
    assert list(broken_links(page)) == ["gone.md: no such file", "page.md#four: no such heading"]
