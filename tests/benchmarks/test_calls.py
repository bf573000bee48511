"""How many Python functions a small request calls stays as few as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_models

from benchmarks.calls import count

_MOST = 310
"""Of a request whose run is in the event loop. On a busy machine some are in the session's thread, which takes more."""


def test_a_small_request_calls_few_functions(make_model: Callable[[onnx_models.Kind], Path]) -> None:
    """Router and replica together, from the socket to the socket; most calls of each side are one per request."""
    calls = count(make_model("add_one").parent.parent, requests=50)
    assert calls.least <= _MOST
    per_request = {code.co_qualname: round(number) for code, number in calls.functions.items()}
    once = (
        "Connection.begin",
        "ModelCodec.decode",
        "Scheduler.on_arrival",
        "Gate.next",
        "ModelCodec.encode",
    )
    assert [per_request[name] for name in once] == [1] * len(once)
