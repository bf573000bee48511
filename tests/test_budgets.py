"""The size of the code and of its documentation: each budget is today's figure, and only falls.

A change that needs more pays for it elsewhere, or raises the budget in the same commit and says why.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
_STAIRWELL: Final = (
    "router/router.py", "router/models.py", "router/inference.py", "router/administration.py", "router/dispatcher.py",
    "scheduling/core.py", "scheduling/scheduler.py",
)  # fmt: skip
"""The files that every request and every feature of the router passes."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _files() -> list[Path]:
    return sorted((ROOT / "serve_app").rglob("*.py"))


@cache
def _trees() -> list[ast.Module]:
    return [ast.parse(path.read_text("utf-8")) for path in _files()]


def _lines(path: Path) -> int:
    return path.read_text("utf-8").count("\n")


def _docstring_lines(tree: ast.Module) -> int:
    """Lines of docstrings, those of attributes included."""
    return sum(
        (node.end_lineno or 0) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )


def _functions() -> Iterator[tuple[str, int]]:
    for tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, _Function):
                first = node.body[0]
                body = (
                    node.body[1:]
                    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
                    else node.body
                )
                if body:
                    yield node.name, (node.end_lineno or 0) - body[0].lineno + 1


def _methods() -> int:
    trees = [ast.parse((ROOT / "serve_app" / path).read_text("utf-8")) for path in _STAIRWELL]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    return sum(isinstance(node, _Function) for each in classes for node in each.body)


def _class_names_used_twice() -> int:
    names = Counter(node.name for tree in _trees() for node in tree.body if isinstance(node, ast.ClassDef))
    return sum(count > 1 for count in names.values())


def _words() -> int:
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    return sum(len(page.read_text("utf-8").split()) for page in pages)


def _private_cross_references() -> int:
    """Docstrings that send the reader elsewhere instead of saying it."""
    return sum(len(re.findall(r'"""(?:See|As) ', path.read_text("utf-8"))) for path in _files())


BUDGETS: Final[Mapping[str, tuple[Callable[[], int], int]]] = {
    "lines of serve_app": (lambda: sum(map(_lines, _files())), 75_039),
    "lines of docstrings": (lambda: sum(map(_docstring_lines, _trees())), 14_314),
    "lines of the stairwell": (lambda: sum(_lines(ROOT / "serve_app" / path) for path in _STAIRWELL), 3_221),
    "methods of the stairwell": (_methods, 207),
    "lines of the longest file": (lambda: max(map(_lines, _files())), 786),
    "lines of the longest function": (lambda: max(lines for _, lines in _functions()), 61),
    "lines of the longest constructor": (lambda: max(lines for name, lines in _functions() if name == "__init__"), 59),
    "class names used twice": (_class_names_used_twice, 6),
    "docstrings that begin with See or As": (_private_cross_references, 24),
    "words of the documentation": (_words, 75_377),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_the_house_does_not_grow(name: str) -> None:
    """Lower the figure here where it has fallen."""
    measure, budget = BUDGETS[name]
    assert measure() <= budget
