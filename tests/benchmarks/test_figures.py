"""Figures in the documentation that say where they come from agree with what is published there."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.figures import count_figures, wrong_figures
from benchmarks.publishing import old_figures

ROOT = Path(__file__).resolve().parents[2]


def test_marked_figures_agree_with_the_published_tables() -> None:
    """Whoever publishes new tables is told which sentences are old."""
    assert [f"{page.name}: {fault}" for page, fault in old_figures()] == []


def test_some_figures_are_marked() -> None:
    """The scheduler's, at least."""
    assert count_figures((ROOT / "docs" / "scheduling.md").read_text("utf-8")) > 0


@pytest.mark.parametrize(
    ("figure", "wrong"),
    [
        ("98.3%", ""),
        ("**98.3%**", ""),
        ("98%", ""),
        ("0.983", ""),
        ("about 0.98 of it", ""),
        ("98.2%", "t.json > a > 0: is 0.98312, and the text says 98.2%"),
        ("0.99", "t.json > a > 0: is 0.98312, and the text says 0.99"),
        ("98.3", "t.json > a > 0: is 0.98312, and the text says 98.3"),
        ("nothing", "t.json > a > 0: no figure stands before this mark"),
    ],
)
def test_a_figure_is_the_published_number_rounded(figure: str, wrong: str, tmp_path: Path) -> None:
    """To as many digits as it is written with."""
    (tmp_path / "t.json").write_text('{"a": [0.98312]}')
    assert list(wrong_figures(f"{figure} <!-- figure: t.json > a > 0 -->", tmp_path)) == ([wrong] if wrong else [])


def test_a_figure_is_one_of_a_published_texts_rounded(tmp_path: Path) -> None:
    """Not a part of another number."""
    (tmp_path / "t.json").write_text('{"of x/0.9": "1,234 in 51 s, 2.54 times"}')
    for figure, fault in (
        ("1,234", False),
        ("51", False),
        ("2.5", False),
        ("234", True),
        ("5", True),
        ("2", True),
        ("2.6", True),
    ):
        found = list(wrong_figures(f"{figure} <!-- figure: t.json > of x/0.9 -->", tmp_path))
        assert bool(found) == fault, figure


@pytest.mark.parametrize("place", ["none.json > a", "t.json > b", "t.json > a > 7", "t.json > a > x"])
def test_a_mark_without_a_value_is_wrong(place: str, tmp_path: Path) -> None:
    """A table that has gone, a key, a place."""
    (tmp_path / "t.json").write_text('{"a": [1]}')
    (fault,) = wrong_figures(f"3 <!-- figure: {place} -->", tmp_path)
    assert "there is no such value" in fault
