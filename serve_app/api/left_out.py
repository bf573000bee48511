"""Treats null as missing for optional fields of JSON bodies.

These decoders refuse null at first like any other wrong type, and only then decode again: bodies without null cost
nothing more. Null in tensor data, or in a field that defines it, is not affected.
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
    """Decodes bodies of one type.

    Args:
        kind: A struct, or a union of structs.
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
        """`decode` for a body that probably contains null."""
        return self._tolerant.decode(body)


def is_of_null(error: Exception) -> bool:
    """Whether a decoder refused null."""
    return "got `null`" in str(error)


@cache
def tolerant(kind: Any) -> Any:
    """The type with null allowed, as the default, in each field with a default."""
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
