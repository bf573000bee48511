"""Where the fields of a text in protobuf's text format stand, and which of them their message does not have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

Path: TypeAlias = tuple[str | int, ...]
"""Names of fields, each followed by the position of a repeated message or the key of a map's entry."""

_ENDS = {"{": "}", "<": ">"}
_QUOTES = ("'", '"')


class Position(NamedTuple):
    """A place in a text, counted from 1."""

    line: int
    column: int


class Unknown(NamedTuple):
    """A field that its message does not have."""

    position: Position
    name: str
    known: tuple[str, ...]


class Positions(NamedTuple):
    """What `find_positions` found.

    Attributes:
        of: Position of each field, by path. A repeated field of scalars is one.
        unknown: Fields that are in no message; what stands inside of them is left out.
        twice: Entries of maps whose key stands there a second time.
    """

    of: dict[Path, Position]
    unknown: list[Unknown]
    twice: list[tuple[Position, Path]]


def find_positions(text: str, descriptor: Descriptor) -> Positions:
    """Find the fields of a text that `google.protobuf.text_format` has parsed.

    Args:
        text: It is known to be well-formed.
        descriptor: Of the message that it holds.
    """
    return _Finder(text).find(descriptor)


class _Finder:
    def __init__(self, text: str) -> None:
        self._tokens = text_format.Tokenizer(text.split("\n"))
        self._found = Positions({}, [], [])

    def find(self, descriptor: Descriptor) -> Positions:
        self._found.of.update(self._message(descriptor, ""))
        return self._found

    def _message(self, descriptor: Descriptor | None, end: str) -> dict[Path, Position]:
        """The fields up to the end of a message; ``None``: of one that is not known."""
        found: dict[Path, Position] = {}
        counts: dict[str, int] = {}
        while not (self._tokens.AtEnd() or (end and self._tokens.LookingAt(end))):
            position = self._position()
            name = self._name()
            field = None if descriptor is None else descriptor.fields_by_name.get(name)
            if descriptor is not None and field is None:
                self._found.unknown.append(Unknown(position, name, tuple(descriptor.fields_by_name)))
            for place, below in self._values(field):
                if field is None:
                    continue
                path: Path = (name,)
                if field.is_repeated and field.message_type is not None:
                    number = counts[name] = counts.get(name, -1) + 1
                    path = (name, number)
                    position = place or position
                    if _is_entry(field.message_type):
                        key, below = self._entry(below)  # noqa: PLW2901 - the same without its key and value
                        path = (name, key)
                        if path in found:
                            self._found.twice.append((position, path))
                found.setdefault(path, position)
                found.update({(*path, *steps): inside for steps, inside in below.items()})
            if not self._tokens.TryConsume(","):
                self._tokens.TryConsume(";")
        return found

    def _entry(self, below: dict[Path, Position]) -> tuple[str, dict[Path, Position]]:
        """The key of a map's entry, and the fields of its value."""
        key = next((str(steps[1]) for steps in below if steps[0] == "key" and len(steps) > 1), "")
        return key, {steps[1:]: place for steps, place in below.items() if steps[0] == "value" and len(steps) > 1}

    def _values(self, field: FieldDescriptor | None) -> Iterator[tuple[Position | None, dict[Path, Position]]]:
        """For each value of a field, where it stands in a list, and the fields inside of it."""
        self._tokens.TryConsume(":")
        if not self._tokens.TryConsume("["):
            yield None, self._value(field)
            return
        while not self._tokens.TryConsume("]"):
            yield self._position(), self._value(field)
            self._tokens.TryConsume(",")

    def _value(self, field: FieldDescriptor | None) -> dict[Path, Position]:
        for begin, end in _ENDS.items():
            if self._tokens.TryConsume(begin):
                found = self._message(None if field is None else field.message_type, end)
                self._tokens.Consume(end)
                return found
        position, text = self._position(), self._scalar()
        if field is None or field.name != "key" or not _is_entry(field.containing_type):
            return {}
        is_text = field.cpp_type == FieldDescriptor.CPPTYPE_STRING
        return {(text if is_text else str(text_format.ParseInteger(text)),): position}

    def _scalar(self) -> str:
        """A number, a word, or texts one after the other, which are one."""
        if not self._tokens.token.startswith(_QUOTES):
            self._tokens.TryConsume("-")
            word = self._tokens.token
            self._tokens.NextToken()
            return word
        parts = []
        while self._tokens.token.startswith(_QUOTES):
            parts.append(self._tokens.ConsumeByteString())
        return b"".join(parts).decode("utf-8", "replace")

    def _name(self) -> str:
        if not self._tokens.TryConsume("["):
            name = self._tokens.token
            self._tokens.NextToken()
            return name
        parts = []
        while not self._tokens.TryConsume("]"):
            parts.append(self._tokens.token)
            self._tokens.NextToken()
        return f"[{''.join(parts)}]"

    def _position(self) -> Position:
        # Only an error tells where its tokenizer is. It takes a text, whatever its stub says.
        error = self._tokens.ParseError("")  # type: ignore[arg-type]
        return Position(error.GetLine() or 1, error.GetColumn() or 1)


def _is_entry(message: Descriptor | None) -> bool:
    """Whether it is what a map is made of."""
    return message is not None and bool(message.GetOptions().map_entry)
