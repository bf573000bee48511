"""Responses off the hot path, and the common headers of all model answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import orjson
from starlette.responses import Response

from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer
from serve_app.http.errors import Headers

_SERVER_TIMING: Final = b"queue;dur=%.3f, preprocess;dur=%.3f, infer;dur=%.3f, postprocess;dur=%.3f, total;dur=%.3f"
_SHARED: Final = "batch"
"""What was done without proof: a run may have been shared."""
_PRIORITY: Final = {priority: (b"x-priority", priority.label.encode()) for priority in Priority}


def _plain(value: Any) -> Any:
    """Convert types that orjson lacks: non-contiguous arrays, and mappings other than dicts."""
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


def server_timing(answer: Answer) -> bytes:
    """The Server-Timing header's value (milliseconds) of an answer."""
    return _SERVER_TIMING % (
        answer.queue_s * 1e3,
        answer.preprocess_s * 1e3,
        answer.infer_s * 1e3,
        answer.postprocess_s * 1e3,
        answer.total_s * 1e3,
    )


def timings(answer: Answer) -> dict[str, int]:
    """The V2 response parameters for the request parameter ``timings``.

    Returns:
        The class (1 to 3) and the deadline in effect, and durations (microseconds).
    """
    return {
        "priority": int(answer.priority),
        "timeout": round(answer.timeout_s * 1e6),
        "queue_us": round(answer.queue_s * 1e6),
        "preprocess_us": round(answer.preprocess_s * 1e6),
        "infer_us": round(answer.infer_s * 1e6),
        "postprocess_us": round(answer.postprocess_s * 1e6),
    }


def body_parameters(answer: Answer, *, timed: bool) -> dict[str, int | str] | None:
    """A V2 response's parameters besides the variant, if any.

    Args:
        timed: Whether the request asked for `timings`.
    """
    told: dict[str, int | str] = {"unverified": _SHARED} if answer.unverified else {}
    return {**told, **timings(answer)} if timed else told or None


def answer_headers(answer: Answer) -> Headers:
    """All headers of how a request was answered: its class, timings, and what is exceptional.

    Every API sends them whole: a new one is added here, or by whoever makes the answer in `Answer.headers`.
    """
    headers = [_PRIORITY[answer.priority], (b"server-timing", server_timing(answer))]
    if answer.version:
        headers.append((b"x-model-version", answer.version.encode()))
    if answer.variant:
        headers.append((b"x-variant", answer.variant.encode()))
    if answer.cache:
        headers.append((b"x-cache", answer.cache.encode()))
    if answer.unverified:
        headers.append((b"x-unverified", _SHARED.encode()))
    if answer.headers:
        headers += [(name.encode(), value.encode()) for name, value in answer.headers.items()]
    return headers
