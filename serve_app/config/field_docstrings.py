"""Reads docstrings below fields of a class.

Pydantic would read them at class creation, which takes longer than the rest of the import. Only schemas need them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise


def field_docstrings(cls: type) -> Mapping[str, str]:
    """By field, including those of base classes; empty without source."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        found |= _of_module(each.__module__).get(each.__qualname__, {})
    return found


@cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """By qualified name of the class."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (KeyError, OSError, TypeError, SyntaxError):  # no source, or of something else by now
        return {}
    return dict(_of_classes(tree, ""))


def _of_classes(parent: ast.AST, prefix: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    for node in ast.iter_child_nodes(parent):
        inside = prefix
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, dict(_of_fields(node))
            inside = f"{prefix}{node.name}."
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = f"{prefix}{node.name}.<locals>."
        yield from _of_classes(node, inside)


def _of_fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(node.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
