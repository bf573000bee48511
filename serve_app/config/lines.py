"""Finds the line of a fault in a YAML file."""

from __future__ import annotations

import re

import yaml

from serve_app.config.problems import place

_PLACE = re.compile(r"[^\s:]+(?=: )")
_LAST_STEP = re.compile(r"(\.[^.\[\]]*|\[\d+\])$")


class Lines:
    """The lines of a YAML document's keys and list items.

    Each node is visited once: content of an alias or a merge key counts at its use.

    Args:
        text: The document. Invalid YAML has no lines.

    Attributes:
        is_other: Whether it is YAML other than a mapping.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[str, int] = {}
        self._seen: set[int] = set()
        try:
            root = yaml.compose(text, yaml.SafeLoader)
        except yaml.YAMLError:
            self.is_other = False
            return
        self.is_other = not isinstance(root, yaml.MappingNode)
        if root is not None:
            self._walk(root, ())

    def of(self, written: str) -> int | None:
        """The line of a place in `serve_app.config.problems.place`'s form, or of the nearest parent."""
        while written not in self._lines:
            shorter = _LAST_STEP.sub("", written)
            if shorter in {written, ""}:
                return None
            written = shorter
        return self._lines[written]

    def mark(self, problem: str) -> str:
        """The problem with its line prepended, if it begins with a place of the document."""
        found = _PLACE.match(problem)
        line = self.of(found[0]) if found else None
        return problem if line is None else f"line {line}: {problem}"

    def _walk(self, node: yaml.Node, location: tuple[str | int, ...]) -> None:
        if id(node) in self._seen:
            return
        self._seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    self._note((*location, key.value), key)
                    self._walk(value, (*location, key.value))
        elif isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                self._note((*location, number), item)
                self._walk(item, (*location, number))

    def _note(self, location: tuple[str | int, ...], node: yaml.Node) -> None:
        self._lines[place(location)] = node.start_mark.line + 1
