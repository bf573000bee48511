"""Which function makes a value of a graph last."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Made(NamedTuple):
    """How a value is made: by an operator, of other values."""

    operator: str
    inputs: tuple[str, ...]


def applied_function(
    made: Mapping[str, Made], name: str, functions: Mapping[str, str], keeping: Collection[str], joining: str
) -> str:
    """Follow a value back to the function that makes it; empty where that is none of ``functions``.

    Args:
        made: How each value is made, by its name.
        name: Of the value.
        functions: What operators are called that are looked for.
        keeping: Operators that keep the values of their first input, or round them.
        joining: An operator that puts its inputs side by side.
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
