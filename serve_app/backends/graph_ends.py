"""Finds the function that produces a value of a graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Made(NamedTuple):
    """How a value is produced: by an operator, from other values."""

    operator: str
    inputs: tuple[str, ...]


def applied_function(
    made: Mapping[str, Made], name: str, functions: Mapping[str, str], keeping: Collection[str], joining: str
) -> str:
    """Follow a value back to the function of ``functions`` that produces it; empty if there is none.

    Args:
        made: Producer of each value, by name.
        functions: The functions to find: operator to name.
        keeping: Operators that keep or round the values of their first input.
        joining: An operator that concatenates its inputs.
    """
    for _ in range(len(made) + 1):
        node = made.get(name)
        if node is None:
            return ""
        if node.operator in functions:
            return functions[node.operator]
        if node.operator == joining:
            # Two classes may be made of one score: 1 - p beside p.
            parts = [
                made[part].inputs[-1] if part in made and made[part].operator == "Sub" else part for part in node.inputs
            ]
            found = {applied_function(made, part, functions, keeping, "") for part in parts}
            return found.pop() if len(found) == 1 else ""
        if node.operator not in keeping or not node.inputs:
            return ""
        name = node.inputs[0]
    return ""
