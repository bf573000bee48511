"""Shared values and base of the configuration's sections."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, ByteSize, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from serve_app.config.field_docstrings import field_docstrings
from serve_app.config.problems import short_repr

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_DAY_S = 86_400

Size = Annotated[ByteSize, Field(gt=0)]
"""Bytes: a number, or text such as ``32MiB``."""

Positive = Annotated[int, Field(ge=1)]
Milliseconds = Annotated[float, Field(gt=0, le=_DAY_S * 1000, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=_DAY_S, allow_inf_nan=False)]
Delay = Annotated[float, Field(ge=0, le=_DAY_S, allow_inf_nan=False)]
Cpus = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class Section(BaseModel):
    """What every section shares: frozen, no unknown keys, no guessing of types, field docstrings as descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Describe the fields."""
        reference = handler(core_schema)
        described, texts = handler.resolve_ref_schema(reference).get("properties", {}), field_docstrings(cls)
        for name, field in cls.model_fields.items():
            key = field.alias or name
            if key in described and name in texts:
                described[key].setdefault("description", texts[name])
        return reference


def checked_name(name: str) -> str:
    """Return a plain name. Raises ``ValueError`` for others. Model names are freer: `serve_app.config.names`."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"must be 1 to 63 lower-case letters, digits, '-', '_' or '.',"
            f" with a letter or digit at both ends, got {short_repr(name)}"
        )
    return name


def size(nbytes: int) -> str:
    """Bytes in readable units."""
    return ByteSize(nbytes).human_readable()
