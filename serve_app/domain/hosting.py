"""What a router and the hosts of a pool tell each other, besides bundles and their results."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from serve_app.domain.agreed import Told


class Owner(Struct, frozen=True):
    """Who decides what a host loads.

    Attributes:
        since: When it took the host, seconds since the epoch, or later where another had a later claim: of two the
            later counts.
        name: Tells it from others of that moment.
    """

    since: float
    name: str


class LoadOutcome(Struct, frozen=True):
    """What became of an order, which may have a load.

    Attributes:
        seconds: What it took.
        nbytes: What the member holds, bytes; 0: not measured.
        told: What its router needs to know of it; ``None``: it has failed.
        fault: Why, safe to show to clients.
        superseded: `Owner.since` of another router that has the host now, which has done nothing of the order; 0.0: it
            was done.
    """

    seconds: float = 0.0
    nbytes: int = 0
    told: Told | None = None
    fault: str = ""
    superseded: float = 0.0


ChangeHost: TypeAlias = Callable[[str, str, Owner, Sequence[str], str, bool], Coroutine[Any, Any, LoadOutcome]]
"""``change(pool, host, owner, evicted, load, urgent)`` has a host unload models and load one.

Raises `ReplicaLost`, or a `ServeAppError`.
"""
