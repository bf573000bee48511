"""The picture and the table of layers in docs/architecture.md say what the code imports and import-linter enforces."""

from __future__ import annotations

import re

from layers_picture import PAGE, drawn, layers, picture


def test_the_documentation_shows_the_layers_that_are_enforced() -> None:
    """In the same order, layers of the same height in one row."""
    table = PAGE.read_text().split("| layer | holds |\n|---|---|\n", 1)[1].split("\n\n", 1)[0]
    shown = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines()]
    assert layers() == shown


def test_the_picture_shows_what_is_imported() -> None:
    """`make architecture` has been run since imports between packages last changed."""
    assert drawn() == picture()
