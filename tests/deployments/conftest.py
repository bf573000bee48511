"""Ways to ask the one real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from serve_process import ROOT, ServeProcess


@pytest.fixture(scope="session")
def client(server: ServeProcess) -> Iterator[httpx.Client]:
    """An HTTP client of that server."""
    with httpx.Client(base_url=server.url, timeout=30.0) as made:
        yield made


@pytest.fixture(scope="session", params=["direct", "serve"])
def grpc_address(request: pytest.FixtureRequest, server: ServeProcess) -> str:
    """Where that server speaks gRPC: on the router's own port, and on Ray Serve's."""
    router = server.config["applications"][0]["args"]["router"]
    return f"127.0.0.1:{router['grpc']['port'] if request.param == 'direct' else server.grpc_port}"


@pytest.fixture(scope="session")
def direct(server: ServeProcess) -> Iterator[httpx.Client]:
    """An HTTP client of that server's router, past Ray Serve's way in."""
    args = server.config["applications"][0]["args"]
    with httpx.Client(base_url=f"http://127.0.0.1:{args['router']['http']['port']}", timeout=30.0) as made:
        yield made


def held_out(kind: str) -> list[Path]:
    """Committed test media; a file's name starts with its label."""
    return sorted(path for path in (ROOT / "tests" / "data" / kind).iterdir() if path.suffix not in {".md", ".npz"})
