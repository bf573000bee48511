"""How bundles travel: what the dispatcher asks of whoever carries them, and what it is told when a replica is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from serve_app.payloads import Bundle, BundleResult


class ReplicaLost(Exception):
    """The replica died or could not be reached.

    Attributes:
        reached: Whether the bundle may have run there; ``False`` when it was never sent.
    """

    def __init__(self, message: str, *, reached: bool = True) -> None:
        super().__init__(message)
        self.reached = reached


Send = Callable[[str, Bundle, str | None, int], Awaitable[BundleResult]]
"""``send(model, bundle, replica, nbytes)``. Raises `ReplicaLost`, or a `ServeAppError` that concerns every entry."""

Recall = Callable[[Bundle, str | None, Sequence[int]], None]
"""``recall(bundle, replica, positions)`` asks for entries of a bundle back that was sent: what still waits there is not
run. Where nobody can ask it does nothing."""
