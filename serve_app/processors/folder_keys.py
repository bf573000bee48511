"""Classifies the keys of a model folder's files: followed, irrelevant or refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from serve_app.config.problems import short_repr
from serve_app.errors import ConfigError

Use = Literal["followed", "irrelevant", "limited"]


@dataclass(frozen=True, slots=True)
class FolderKey:
    """The handling of a key.

    Attributes:
        use: ``followed`` or ``irrelevant`` for any value; ``limited``: followed for some values, refused for others.
        meaning: Its effect, or why it is irrelevant. For the documentation.
        values: Supported values of a ``limited`` key.
        advice: The remedy for other values.
        types: Types of its value; empty: checked by its reader.
    """

    use: Use
    meaning: str
    values: tuple[Any, ...] = ()
    advice: str = ""
    types: tuple[type, ...] = ()


def followed(meaning: str, *types: type) -> FolderKey:
    """A followed key with a value of these types; ``None`` counts as missing."""
    return FolderKey("followed", meaning, types=types)


def irrelevant(meaning: str) -> FolderKey:
    """A key that changes no answer."""
    return FolderKey("irrelevant", meaning)


def limited(meaning: str, *values: Any, advice: str = "") -> FolderKey:
    """A key with these values only; ``None`` counts as missing and is allowed."""
    return FolderKey("limited", meaning, values, advice)


def keys(names: str, key: FolderKey) -> dict[str, FolderKey]:
    """Several keys with equal handling, in one space-separated text."""
    return dict.fromkeys(names.split(), key)


def check_keys(
    file: str, config: Mapping[str, Any], known: Mapping[str, FolderKey], ignored: Collection[str] = ()
) -> None:
    """Refuse keys that are not supported.

    Args:
        ignored: Keys to skip, from ``processor.ignore_keys``.

    Raises:
        ConfigError: A key is unknown, or has an unsupported value. One line for each.
    """
    faults = []
    for name, value in config.items():
        key = known.get(name)
        if name in ignored or (value is None and key is not None):
            continue
        if key is None:
            faults.append(
                f"{file}: {name}: not understood (its value is {short_repr(value)}); remove the key, or list it in"
                " processor.ignore_keys if it changes nothing that the model gets"
            )
        elif key.types and not _is_one_of(value, key.types):
            wanted = " or ".join(_TYPES[each] for each in key.types)
            faults.append(f"{file}: {name}: must be {wanted}, not {short_repr(value)}")
        elif key.use == "limited" and not _among(value, key.values):
            expected = " or ".join(map(short_repr, key.values)) or "null"
            advice = f"; {key.advice}" if key.advice else ""
            faults.append(f"{file}: {name}: {short_repr(value)} is not supported, only {expected}{advice}")
    if faults:
        raise ConfigError(tuple(faults))


_TYPES: Final = {
    bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list", dict: "an object"
}  # fmt: skip


def _is_one_of(value: Any, types: tuple[type, ...]) -> bool:
    # True is an int to Python, and a whole number is a float to JSON.
    if isinstance(value, bool):
        return bool in types
    return isinstance(value, types) or (isinstance(value, int) and float in types)


def _among(value: Any, values: tuple[Any, ...]) -> bool:
    # False equals 0, and True equals 1: a number is no switch.
    return any(value == known and isinstance(value, bool) == isinstance(known, bool) for known in values)
