"""Formats faults: one line each, with the place, the problem and the nearest correct value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from serve_app.errors import some_of

Location: TypeAlias = tuple[str | int, ...]
"""Keys and list positions from the top of a document to a value."""

_SHOWN_CHARACTERS = 60
_REMOVED: Final[Mapping[str, str]] = {
    "device_groups": "models share a GPU by resources.gpus below 1, and processes by pools",
    "memory_per_row": "set resources.gpu_memory",
}
"""Keys that there were, and what does the same now."""


class _Hidden:
    def __repr__(self) -> str:
        return "something else"


_HIDDEN = _Hidden()


def place(location: Iterable[str | int], prefix: str = "") -> str:
    """Format a location: ``args.models[1].batching``."""
    written = prefix
    for step in location:
        if isinstance(step, int):
            written += f"[{step}]"
        else:
            written += f".{step}" if written else step
    return written


def short_repr(value: object) -> str:
    """A value's literal, shortened for a message."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The likely known word for a misspelt one, if any."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def hint(word: str, known: Iterable[str]) -> str:
    """A suggestion for an unknown word, or the known ones."""
    known = list(known)
    guess = nearest(word, known)
    return f"did you mean {guess}?" if guess else f"there is {some_of(known) or 'none'}"


def validation_error(faults: Sequence[tuple[Location, str]]) -> ValidationError:
    """Make a pydantic validator's error with messages at its own places.

    Args:
        faults: Location below the validated value, and the problem.
    """
    return ValidationError.from_exception_data(
        "configuration",
        [
            InitErrorDetails(
                type=PydanticCustomError("fault", "{message}", {"message": message}), loc=location, input=None
            )
            for location, message in faults
        ],
    )


def problems_of(
    error: ValidationError,
    data: Any,
    schema: Mapping[str, Any],
    prefix: str = "",
    *,
    hide_values: bool = False,
) -> tuple[str, ...]:
    """Format each pydantic fault as one line; branches of a union at a place are one fault.

    Args:
        data: As validated.
        schema: Of the model; knows each place's keys.
        prefix: Precedes each place.
        hide_values: Whether to hide validated values, which may be secret.
    """
    messages: dict[Location, list[str]] = {}
    found = error.errors(include_url=False)
    for details in found:
        if details["type"] == "too_short" and any(_is_below(other["loc"], details["loc"]) for other in found):
            continue  # pydantic does not count items that have faults
        location = _without_union_tags(details, data)
        if hide_values:
            details["input"] = _HIDDEN
        message = _message(details, location, data, schema)
        messages.setdefault(location, []).append(message)
    return tuple(
        f"{place(location, prefix) or 'document'}: {'; or '.join(dict.fromkeys(alternatives))}"
        for location, alternatives in messages.items()
    )


def _is_below(location: Location, above: Location) -> bool:
    return len(location) > len(above) and location[: len(above)] == above


def _without_union_tags(details: ErrorDetails, data: Any) -> Location:
    """Drop steps of a location that pydantic adds for branches of a union.

    Keeps the name of a missing key.
    """
    steps = details["loc"]
    names_missing_keys = details["type"] in {"missing", "fault"}
    kept: list[str | int] = []
    for step in steps:
        if _has(data, step):
            data = data[step]
        elif not (names_missing_keys and isinstance(data, Mapping)):
            continue
        kept.append(step)
    return tuple(kept)


def _has(data: Any, step: str | int) -> bool:
    if isinstance(data, Mapping):
        return step in data
    return isinstance(data, list | tuple) and isinstance(step, int) and step < len(data)


def _message(details: ErrorDetails, location: Location, data: Any, schema: Mapping[str, Any]) -> str:
    context = details.get("ctx", {})
    value = details["input"]
    match details["type"]:
        case "extra_forbidden":
            return _unknown_key(location, data, schema)
        case "missing":
            return "required, but missing"
        case "fault":
            return str(context["message"])
        case "value_error" | "assertion_error":
            return str(context["error"])
        case "literal_error" | "enum":
            return f"must be {context['expected']}, got {short_repr(value)}"
        case "byte_size" | "byte_size_unit":
            return f"must be a size such as 32MiB, 2GiB or a number of bytes, got {short_repr(value)}"
        case "too_short":
            return f"needs at least {context['min_length']}, got {context['actual_length']}"
        case "too_long":
            return f"may have at most {context['max_length']}, got {context['actual_length']}"
        case "string_too_short":
            return f"must have {context['min_length']} or more characters, got {short_repr(value)}"
        case "greater_than_equal":
            return f"must be at least {context['ge']:g}, got {short_repr(value)}"
        case "greater_than":
            return f"must be more than {context['gt']:g}, got {short_repr(value)}"
        case "less_than_equal":
            return f"must be at most {context['le']:g}, got {short_repr(value)}"
        case "less_than":
            return f"must be less than {context['lt']:g}, got {short_repr(value)}"
        case "model_type" | "model_attributes_type" | "dict_type" | "dataclass_type":
            return f"must be a mapping, got {short_repr(value)}"
        case "list_type" | "tuple_type":
            return f"must be a list, got {short_repr(value)}"
        case "string_type":
            return f"must be text, got {short_repr(value)}"
        case "int_type" | "int_parsing" | "int_from_float":
            return f"must be a whole number, got {short_repr(value)}"
        case "float_type" | "float_parsing":
            return f"must be a number, got {short_repr(value)}"
        case "bool_type" | "bool_parsing":
            return f"must be true or false, got {short_repr(value)}"
        case _:
            return f"{details['msg'].replace('Input should', 'must')}, got {short_repr(value)}"


def _unknown_key(location: Location, data: Any, schema: Mapping[str, Any]) -> str:
    key = str(location[-1])
    if (instead := _REMOVED.get(key)) is not None:
        return f"unknown key: it was removed; {instead}"
    known = sorted(set(_known_keys(location[:-1], data, schema)))
    guess = nearest(key, known)
    if guess is not None:
        return f"unknown key; did you mean {guess}?"
    return f"unknown key; known here: {', '.join(known)}" if known else "unknown key"


def _known_keys(location: Location, data: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    """The schema's keys at a location of the data."""
    nodes = list(_branches(schema, data, schema))
    for step in location:
        data = data[step]
        below = [_below(node, step) for node in nodes]
        nodes = [branch for node in below if node is not None for branch in _branches(node, data, schema)]
    for node in nodes:
        yield from node.get("properties", {})


def _below(node: Mapping[str, Any], step: str | int) -> Any:
    """The schema of an item or a key, if any."""
    if isinstance(step, int):
        return node.get("items")
    others = node.get("additionalProperties")
    return node.get("properties", {}).get(step, others if isinstance(others, Mapping) else None)


def _branches(node: Mapping[str, Any], data: Any, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The node and its references; conditional parts only if the data meets the condition."""
    if "$ref" in node:
        yield from _branches(schema["$defs"][node["$ref"].rsplit("/", 1)[-1]], data, schema)
    for part in (*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())):
        yield from _branches(part, data, schema)
    if "if" in node and all(
        isinstance(data, Mapping) and data.get(key) == condition.get("const")
        for key, condition in node["if"]["properties"].items()
    ):
        yield from _branches(node["then"], data, schema)
    yield node
