"""Checks task parameters of a request."""

from __future__ import annotations

import difflib
from typing import Any, TypeVar

import msgspec

from serve_app.errors import InvalidRequest

Parameters = TypeVar("Parameters", bound=msgspec.Struct)


def parse_parameters(parameters: dict[str, Any], kind: type[Parameters]) -> Parameters:
    """Check a request's ``parameters`` against a task's.

    Raises:
        InvalidRequest: A parameter is unknown or has the wrong type; names it.
    """
    for name in parameters:
        if name not in kind.__struct_fields__:
            close = difflib.get_close_matches(str(name), kind.__struct_fields__, n=1)
            known = f"did you mean {close[0]}?" if close else f"known here: {', '.join(kind.__struct_fields__)}"
            raise InvalidRequest(f"parameters.{str(name)[:60]}: unknown; {known}")
    try:
        return msgspec.convert(parameters, kind)
    except msgspec.ValidationError as error:
        fault, _, place = str(error).rpartition(" - at `$")
        if not fault:
            raise InvalidRequest(f"parameters: {error}") from None
        raise InvalidRequest(f"parameters{place.rstrip('`')}: {fault[0].lower()}{fault[1:]}") from None
