"""Loads YAML strictly."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from serve_app.config.problems import short_repr


def load_yaml(text: str) -> Any:
    """Read a YAML document.

    Raises:
        yaml.YAMLError: It is malformed, repeats a key, or holds an impossible value.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except RecursionError:
        raise yaml.YAMLError("too many brackets within brackets") from None
    except (ValueError, OverflowError) as error:  # of an escape for a character that there is not; it has no place
        raise yaml.YAMLError(str(error)) from None


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, but refuses duplicate keys, of which the first would silently be lost."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Like the base class. Raises `yaml.MarkedYAMLError` for an invalid scalar.

        The base class leaks conversion errors: for an impossible date, a number of too many digits, text tagged as a
        number.
        """
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception:
            if not isinstance(node, yaml.ScalarNode):
                raise
            kind = node.tag.rpartition(":")[2]
            raise yaml.MarkedYAMLError(
                problem=f"{short_repr(node.value)} is no valid {kind}", problem_mark=node.start_mark
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Like the base class. Raises `yaml.MarkedYAMLError` for a duplicate or invalid key."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.MarkedYAMLError(
                    problem="a mapping or a list cannot be a key", problem_mark=key_node.start_mark
                )
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {short_repr(key)} stands here twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)
