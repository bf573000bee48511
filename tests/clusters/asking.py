"""Ways to ask a real server, and to wait for what its processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
from serve_process import ServeProcess

WAIT_S = 240.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that another process does, or fail naming it."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_S:.0f} s in vain: {what}"
        time.sleep(0.05)


def ask(url: str, model: str, value: float = 1.0, size: int = 1, **options: Any) -> httpx.Response:
    """Send one row of equal numbers."""
    body = {"inputs": [{"name": "x", "shape": [1, size], "datatype": "FP32", "data": [value] * size}]}
    return httpx.post(f"{url}/v2/models/{model}/infer", json=body, timeout=60.0, **options)


def endpoints(server: ServeProcess) -> tuple[list[int], list[int]]:
    """The ports for HTTP and those for gRPC: Serve's, where it has any, and the routers' own."""
    router = server.config["applications"][0]["args"]["router"]
    of_serve = [server.grpc_port] if "grpc_options" in server.config else []
    return [server.port, router["http"]["port"]], [*of_serve, router["grpc"]["port"]]
