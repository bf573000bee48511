"""Null for what may be left out of a JSON body means that it is left out.

Decoders made here refuse null as any other wrong type at first, and look again only then: bodies without it cost
nothing more. Null inside the data of a tensor is none of this, nor is null where a field gives it a meaning of its own.
"""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Any, Final, Generic, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec.structs import fields, force_setattr

_T = TypeVar("_T")

NULL: Final = msgspec.Raw(b"null")


class BodyDecoder(Generic[_T]):
    """Decodes bodies of one kind.

    Args:
        kind: A struct, or one whose members are structs.
    """

    def __init__(self, kind: type[_T]) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._tolerant: msgspec.json.Decoder[_T] = msgspec.json.Decoder(tolerant(kind))  # type: ignore[arg-type] # types are

    def decode(self, body: bytes | memoryview) -> _T:
        """Decode a body. Raises what `msgspec.json.Decoder` raises."""
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            if not is_of_null(error):
                raise
        return self.without_nulls(body)

    def without_nulls(self, body: bytes | memoryview) -> _T:
        """As `decode`, of a body that may well have null somewhere."""
        return self._tolerant.decode(body)


def is_of_null(error: Exception) -> bool:
    """Whether null is what a decoder did not expect."""
    return "got `null`" in str(error)


@cache
def tolerant(kind: Any) -> Any:
    """A type that takes null, too, for each field that has a default, and then has that."""
    origin = get_origin(kind)
    struct = origin if isinstance(origin, type) else kind
    if isinstance(struct, type) and issubclass(struct, msgspec.Struct):
        return _tolerant_struct(kind, struct)
    parts = tuple(map(tolerant, get_args(kind)))
    if origin in {Union, UnionType}:
        return reduce(or_, parts)
    return origin[parts] if origin is list else kind


def _tolerant_struct(kind: Any, struct: type[msgspec.Struct]) -> Any:
    members: list[Any] = []
    defaults = {}
    for field in fields(kind):
        type_ = tolerant(field.type)
        if field.required:
            members.append((field.name, type_))
            continue
        default = field.default
        if default is msgspec.NODEFAULT:
            default = msgspec.field(default_factory=field.default_factory)
        if not _takes_null(field.type):
            type_ = type_ | None
            defaults[field.name] = field
        members.append((field.name, type_, default))
    inherited = getattr(struct, "__post_init__", None)

    def fill(self: msgspec.Struct) -> None:
        for name, field in defaults.items():
            if getattr(self, name) is None:
                made = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
                force_setattr(self, name, made)
        if inherited is not None:
            inherited(self)

    return msgspec.defstruct(struct.__name__, members, bases=(struct,), namespace={"__post_init__": fill})


def _takes_null(type_: Any) -> bool:
    if get_origin(type_) in {Union, UnionType}:
        return any(map(_takes_null, get_args(type_)))
    return type_ in {NoneType, Any, msgspec.Raw}
