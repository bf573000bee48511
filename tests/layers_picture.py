"""Draws what imports what into docs/architecture.md: ``make architecture``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

import grimp
from serve_process import ROOT

PAGE = ROOT / "docs" / "architecture.md"
_DRAWN = re.compile(r"```mermaid\n.*?```", re.DOTALL)


def layers() -> list[list[str]]:
    """The packages as import-linter orders them, those that are independent of each other together."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = [contract["layers"] for contract in contracts if contract["name"] == "Layers"]
    return [layer.split(" | ") for layer in found]


def picture() -> str:
    """A Mermaid diagram of the packages: an arrow for each import that does not follow from the others."""
    imported = _imports([package for layer in layers() for package in layer])
    lines = ["flowchart TD"]
    for package, others in imported.items():
        further = {below for other in others for below in _below(other, imported)}
        if nearest := [other for other in imported if other in others - further]:
            lines.append(f"    {package} --> {' & '.join(nearest)}")
    return "\n".join(["```mermaid", *lines, "```"])


def drawn() -> str:
    """The diagram that the page has."""
    (found,) = _DRAWN.findall(PAGE.read_text())
    return str(found)


def _imports(packages: list[str]) -> dict[str, set[str]]:
    graph = grimp.build_graph("serve_app", cache_dir=None, exclude_type_checking_imports=True)
    imported: dict[str, set[str]] = {package: set() for package in packages}
    for module in graph.modules - {"serve_app"}:
        importer = module.split(".")[1]
        for other in graph.find_modules_directly_imported_by(module) - {"serve_app"}:
            imported[importer].add(other.split(".")[1])
    return {package: others - {package} for package, others in imported.items()}


def _below(package: str, imported: Mapping[str, set[str]]) -> set[str]:
    """All that a package reaches."""
    return imported[package].union(*(_below(other, imported) for other in imported[package]))


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().replace(drawn(), picture()))
