"""Others are served as before while clients are idle, drip and stop half way."""

from __future__ import annotations

from pathlib import Path

import onnx_models
from local_server import LocalServer

from benchmarks.slow_clients import measure


async def test_slow_clients_change_no_answer(tmp_path: Path) -> None:
    """A small version of the measurement, against the listener of a real server."""
    onnx_models.make(tmp_path / "sum_diff" / "1" / "model.onnx", "sum_diff")
    inputs = [
        {"name": name, "shape": [1, 16], "datatype": "INT32", "data": list(range(16))} for name in ("INPUT0", "INPUT1")
    ]
    with LocalServer({"models": [{"name": "sum_diff", "path": str(tmp_path / "sum_diff")}]}) as server:
        outcome = await measure(server.url, "sum_diff", {"inputs": inputs}, idle=200, slow=50, seconds=0.5)
    assert (outcome.correct, outcome.connected) == (True, 250)
