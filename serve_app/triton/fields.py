"""A `config.pbtxt` as it is read: every field that stands in it is taken, told of, or told of as left over."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, TypeAlias

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from serve_app.api.open_inference.model_config_pb2 import DESCRIPTOR, ModelConfig
from serve_app.config.problems import nearest
from serve_app.errors import ConfigError
from serve_app.triton.positions import Path, Position, find_positions

Level: TypeAlias = Literal["note", "refusal", "fault"]
"""What is served otherwise; why a model is not served; what is wrong with the file."""

FILE: Final = "config.pbtxt"


MODEL_CONFIG: Final[Descriptor] = DESCRIPTOR.message_types_by_name["ModelConfig"]
"""Descriptor of the message."""


class Remark(NamedTuple):
    """Something that a user should know of one field.

    Attributes:
        level: What follows from it.
        place: ``FILE:LINE:COLUMN``.
        field: The field, as people write it.
    """

    level: Level
    place: str
    field: str
    text: str

    def line(self) -> str:
        """One line."""
        return ": ".join(part for part in (self.place, self.field, self.text) if part)


class TritonDocument:
    """One parsed file.

    Args:
        name: The file, for messages.

    Attributes:
        remarks: What was told of it so far.

    Raises:
        ConfigError: It is not in protobuf's text format, or a value is not what its field takes, or a field is unknown.
            With file, line and column; one line for each unknown field.
    """

    def __init__(self, name: str, text: str) -> None:
        self.remarks: list[Remark] = []
        self._name = name
        self._message = _parse(name, text)
        found = find_positions(text, MODEL_CONFIG)
        problems = []
        for place, field, known in found.unknown:
            guess = nearest(field, known)
            hint = f"; did you mean {guess}?" if guess else ""
            problems.append(f"{self._place(place)}: unknown field {field}{hint}")
        problems += [f"{self._place(place)}: {written(path)}: stands here twice" for place, path in found.twice]
        if problems:
            raise ConfigError(tuple(problems))
        self._positions = found.of
        self._taken: set[Path] = set()
        self._told: set[Path] = set()

    @property
    def fields(self) -> Fields:
        """The fields of the whole message."""
        return Fields(self, self._message, ())

    def has_only_notes(self) -> bool:
        """Whether nothing was told so far that keeps the model from being served."""
        return all(remark.level == "note" for remark in self.remarks)

    def leaves(self) -> list[Path]:
        """The fields that stand in the file and have no fields inside of them, by path."""
        inner = {path[:steps] for path in self._positions for steps in range(1, len(path))}
        return [path for path in self._positions if path not in inner]

    def take(self, path: Path) -> None:
        """Note that a field is followed."""
        self._taken.add(path)

    def has(self, path: Path) -> bool:
        """Whether a field stands in the file, also where it has its default value."""
        return path in self._positions

    def tell(self, level: Level, path: Path, text: str) -> None:
        """Say something of a field, and so of all that is inside of it."""
        self._told.add(path)
        self.remarks.append(Remark(level, self._place(self._position(path)), written(path), text))

    def tell_rest(self) -> None:
        """Say of every field that was neither taken nor told of that it counts for nothing."""
        for path in self.leaves():
            if path not in self._taken and not any(path[:steps] in self._told for steps in range(len(path) + 1)):
                self.tell("note", path, "has no counterpart, and counts for nothing")

    def _position(self, path: Path) -> Position:
        path = path if path in self._positions else (*path, 0)  # of a repeated message, where the first one stands
        while path and path not in self._positions:
            path = path[:-1]
        return self._positions.get(path, Position(1, 1))

    def _place(self, position: Position) -> str:
        return f"{self._name}:{position.line}:{position.column}"


class Fields:
    """The fields of one message of a document. Each way to read a field also notes that it is followed.

    Args:
        document: The document.
        message: The message.
    """

    def __init__(self, document: TritonDocument, message: Message, path: Path) -> None:
        self._document = document
        self._message = message
        self._path = path

    def has(self, name: str) -> bool:
        """Whether the field stands in the file, also where it has its default value. Does not count as reading it."""
        return self._document.has((*self._path, name))

    def value(self, name: str) -> Any:
        """A number, a truth value or a text; of a repeated field a list, of a map of scalars a dict."""
        found = getattr(self._message, name)
        field = self._message.DESCRIPTOR.fields_by_name[name]
        if not field.is_repeated:
            self._document.take((*self._path, name))
            return found
        if field.message_type is not None:
            for key in found:
                self._document.take((*self._path, name, str(key)))
            return {str(key): found[key] for key in sorted(found)}
        self._document.take((*self._path, name))
        return list(found)

    def word(self, name: str) -> str:
        """The name of an enumeration's value."""
        number, kind = self.value(name), self._message.DESCRIPTOR.fields_by_name[name].enum_type
        known = {} if kind is None else kind.values_by_number
        return str(known[number].name) if number in known else str(number)

    def below(self, name: str) -> Fields | None:
        """The fields of a message, or ``None`` where it is not given. An empty one is followed by that."""
        path = (*self._path, name)
        if not self._document.has(path):
            return None
        self._document.take(path)
        return Fields(self._document, getattr(self._message, name), path)

    def each(self, name: str) -> list[Fields]:
        """The fields of every message of a repeated field."""
        found = getattr(self._message, name)
        paths = [(*self._path, name, number) for number in range(len(found))]
        for path in paths:
            self._document.take(path)
        return [Fields(self._document, message, path) for message, path in zip(found, paths, strict=True)]

    def entries(self, name: str) -> dict[str, Fields]:
        """The fields of every value of a map of messages, by key."""
        found = getattr(self._message, name)
        paths = {str(key): (*self._path, name, str(key)) for key in found}
        for path in paths.values():
            self._document.take(path)
        return {str(key): Fields(self._document, found[key], paths[str(key)]) for key in found}

    def note(self, name: str, text: str) -> None:
        """Say how a field, or with an empty name the message itself, is followed otherwise than there."""
        self._tell("note", name, text)

    def fault_entry(self, name: str, key: str, text: str) -> None:
        """As `fault`, of one entry of a map."""
        self._document.tell("fault", (*self._path, name, key), text)

    def refuse(self, name: str, text: str) -> None:
        """Say why the model cannot be served."""
        self._tell("refusal", name, text)

    def fault(self, name: str, text: str) -> None:
        """Say what is wrong with the file."""
        self._tell("fault", name, text)

    def place(self, name: str) -> Path:
        """Where a field is, for `TritonDocument.tell`."""
        return (*self._path, name) if name else self._path

    def _tell(self, level: Level, name: str, text: str) -> None:
        self._document.tell(level, self.place(name), text)


def _parse(name: str, text: str) -> Message:
    message = ModelConfig()
    try:
        # Unknown fields are told all at once, and with what was meant.
        text_format.Parse(text, message, allow_unknown_field=True)
    except text_format.ParseError as error:
        line, column = error.GetLine(), error.GetColumn()
        what = str(error).partition(" : ")[2] or str(error)
        place = f"{name}:{line}:{column or 1}" if line is not None else name
        raise ConfigError((f"{place}: {' '.join(what.replace('inference.', '').split())}",)) from None
    except RecursionError:
        raise ConfigError((f"{name}: too many brackets within brackets",)) from None
    return message


def written(path: Path) -> str:
    """A path the way people write it: ``instance_group[0].count``, ``parameters["key"]``."""
    text, known = "", MODEL_CONFIG
    is_map = False
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif is_map:
            text += f'["{step}"]'
            is_map = False
        else:
            text += f".{step}" if text else step
            field = known.fields_by_name[step]
            if field.message_type is not None:
                is_map = field.message_type.GetOptions().map_entry
                inside = field.message_type.fields_by_name["value"].message_type if is_map else field.message_type
                known = inside or known
    return text
