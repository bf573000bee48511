"""Responses of the routes that are not the hot path, and what every answer of a model tells in its headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from starlette.responses import Response

from serve_app.protocols.service import Answer


def _plain(value: Any) -> Any:
    """What orjson cannot write by itself: arrays that are not contiguous, and mappings that are not dicts."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def dump_json(value: Any) -> bytes:
    """JSON of plain data and numpy arrays. NaN and infinities become null."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)


def json_response(value: Any, headers: Mapping[str, str] | None = None) -> Response:
    """A 200 response with `dump_json` of a value."""
    return Response(dump_json(value), media_type="application/json", headers=headers)


def answer_headers(answer: Answer) -> dict[str, str]:
    """What a client is told of how it was served: its class, and the variant unless the exact model answered."""
    headers = {"X-Priority": answer.priority.label}
    if answer.variant:
        headers["X-Variant"] = answer.variant
    return headers
