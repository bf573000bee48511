"""The table of layers in docs/architecture.md says what import-linter enforces."""

from __future__ import annotations

import re
import tomllib

from serve_process import ROOT


def test_the_documentation_shows_the_layers_that_are_enforced() -> None:
    """In the same order, layers of the same height in one row."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["name"] == "Layers"]
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text.split("| layer | holds |\n|---|---|\n", 1)[1].split("\n\n", 1)[0]
    shown = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines()]
    assert [layer.split(" | ") for layer in layers] == shown
