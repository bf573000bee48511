"""A pool whose host has room for one of its members, so that almost every request unloads one and loads another."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.reload.models import KINDS, SIZE
from benchmarks.reload.swapping import Load, Memory, Swaps
from benchmarks.reload.systems import memory, ours, ready
from benchmarks.server import DIRECT
from benchmarks.wires import WIRES

_MEMBERS = 6
_FILES_PER_HOST = 2.5  # room for one: a member is expected to take twice its files
_POOL = "many"


def measure_members(
    folder: Path, count: int, within_s: float, start_within_s: float, say: Callable[[str], None]
) -> Swaps:
    """Start a server with a pool, and ask its members in turns.

    Raises:
        BenchmarkError: It did not start, or has ended.
    """
    args, nbytes = write_members(folder)
    with ours(args, folder) as server:
        server.wait_until(partial(ready, server), start_within_s)
        say("loading members")
        return ask_in_turns(server.urls[DIRECT], partial(memory, server), count, within_s, nbytes)


def write_members(folder: Path) -> tuple[dict[str, Any], int]:
    """Write members, each of which answers with its number. Returns a server's arguments, and the bytes of one."""
    kind = KINDS["onnx"]
    nbytes = max(kind.write(folder / "models" / f"m{number}", number) for number in range(_MEMBERS))
    names = [f"m{number}" for number in range(_MEMBERS)]
    args = {
        "models": [{"name": name, "path": str(folder / "models" / name), "pool": _POOL} for name in names],
        "pools": [{"name": _POOL, "memory": round(_FILES_PER_HOST * nbytes)}],
        "classes": {"normal": {"timeout_ms": 30_000}},
    }
    return args, nbytes


def ask_in_turns(url: str, memory_now: Callable[[], Memory], count: int, within_s: float, nbytes: int) -> Swaps:
    """Ask one member after the other, so that the next one is never loaded.

    Args:
        url: Where the server is; it is ready.
        memory_now: That of its processes.
        count: Requests.
        within_s: For how long at most, seconds.
        nbytes: Of a member's files.
    """
    wire, load = WIRES["binary"], Load()
    request = wire.request({"x": np.ones((1, SIZE), np.float32)})
    swap_s: list[float] = []
    memories: list[Memory] = []
    until = time.monotonic() + within_s
    with httpx.Client(base_url=url, timeout=60.0) as client:
        while len(swap_s) < count and time.monotonic() < until:
            number = len(swap_s) % _MEMBERS
            began = time.monotonic()
            path = f"/v2/models/m{number}/infer"
            answer = client.post(path, content=request.body, headers=dict(request.headers))
            swap_s.append(time.monotonic() - began)
            load.during.append(swap_s[-1])
            if answer.status_code != httpx.codes.OK:
                load.fail(f"{answer.status_code} {answer.text}")
            elif (
                wire.answer({name.lower(): value for name, value in answer.headers.items()}, answer.content)[0]
                != number
            ):
                load.wrong += 1
            memories.append(memory_now())
    return Swaps(swap_s, nbytes, memories, load)
