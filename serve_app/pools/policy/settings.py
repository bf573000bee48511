"""Frozen settings of a pool's device. `serve_app.config` makes them; nothing here reads a file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pool:
    """Models that share few processes, its hosts, which have memory for some of them at a time.

    Attributes:
        models: Names of the members. A model is a member of one pool at most.
        concurrency: Bundles at a host at once over all members: one runs, and the others wait behind it. Those of a
            less urgent class do not count against a more urgent one.
        memory_bytes: Most memory of the loaded members of one host in sum. Each member declares its own
            (`ModelScheduling.resident_bytes`), until that is measured.
        load_s: Assumed load time until one has been measured.
        loads: Concurrent loads of a host.
        hold: A member stays at least this multiple of its load time, unless an entry would be too late for that.
        memory_s: Time constant of a request's weight in its member's value: it fades exponentially.
    """

    name: str
    models: tuple[str, ...]
    concurrency: int = 2
    memory_bytes: int = 0
    load_s: float = 0.1
    loads: int = 1
    hold: float = 2.0
    memory_s: float = 60.0
