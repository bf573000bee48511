"""Which line of a YAML file a fault is about."""

from __future__ import annotations

import re

import yaml

from serve_app.config.problems import place

_PLACE = re.compile(r"[^\s:]+(?=: )")
_LAST_STEP = re.compile(r"(\.[^.\[\]]*|\[\d+\])$")


class Lines:
    """The lines of a YAML document's keys and list items.

    Every node is looked at once: what is below an alias or a merge key counts where that stands.

    Args:
        text: The document. Text that is not YAML has no lines.

    Attributes:
        is_other: Whether the text is YAML, but not a mapping.
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
        """The line of a place as `serve_app.config.problems.place` writes it, or of the nearest place around it."""
        while written not in self._lines:
            shorter = _LAST_STEP.sub("", written)
            if shorter in {written, ""}:
                return None
            written = shorter
        return self._lines[written]

    def mark(self, problem: str) -> str:
        """The problem with its line in front, where it begins with a place that the document has."""
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
