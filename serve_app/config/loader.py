"""How YAML files are read."""

from __future__ import annotations

from typing import Any

import yaml

from serve_app.config.faults import shown


class UniqueKeyLoader(yaml.SafeLoader):
    """YAML's safe loader, refusing a mapping that holds a key twice: the first value would silently be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As the loader it is made from. Raises `yaml.MarkedYAMLError` for a key that stands there twice."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {shown(key)} stands here twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)
