"""Messages between a router and the hosts of a pool, besides bundles and their results."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from serve_app.domain.agreed import Told


class Owner(Struct, frozen=True):
    """The router that decides what a host loads.

    Attributes:
        since: Time of its claim, seconds since the epoch; later if another's claim was later. The later claim counts.
        name: Distinguishes claims of the same time.
    """

    since: float
    name: str


class LoadOutcome(Struct, frozen=True):
    """The outcome of an order, with or without a load.

    Attributes:
        seconds: Duration.
        nbytes: Memory of the member; 0: not measured.
        told: Facts for its router; ``None``: it has failed.
        fault: Why, safe to show to clients.
        superseded: `Owner.since` of another router that has the host now, so that the order was ignored; 0.0: it was
            carried out.
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
