"""The interface of what drives a router's core: the dispatcher of a server, or the simulator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import Any, Protocol, TypeVar

from serve_app.scheduling.decisions import Change, Dispatch, Rejection
from serve_app.scheduling.entry import Entry

SentT = TypeVar("SentT")
"""The driver's state of a bundle in flight."""


class Why(Enum):
    """Why an accepted entry ends without an answer."""

    EXPIRED = "its deadline has passed"
    GIVEN_UP = "it cannot be in time any more, or only at the cost of more others"
    REFUSED = "its model was removed, or fails; or another tenant's entry has its place"
    POISONED = "two replicas failed while they ran it"
    BROKEN = "its replica was lost when a part of the answer had come"


class Places(Protocol):
    """Allocates places of the table in which replicas agree on who runs a tied entry."""

    def place(self) -> int:
        """Allocate a place; 0 if none is free."""

    def free(self, place: int) -> None:
        """Release a place that no entry uses any more. 0 is ignored."""


class Driver(Protocol[SentT]):
    """Carries out the core's decisions. No method may call the core back before it returns."""

    def pump_soon(self) -> None:
        """Call `RouterCore.pump` once after the events of this turn."""

    def set_timer(self, at: float) -> None:
        """Call `RouterCore.fire` at this time, instead of the time set before."""

    def send(self, dispatch: Dispatch, now: float, places: Sequence[int]) -> SentT:
        """Send a bundle to its replica.

        Args:
            dispatch: Names a replica.
            places: Of its entries, if they are tied; else empty.
        """

    def wake_up(self, dispatch: Dispatch) -> None:
        """Ask for a replica of a model that has none. The entries wait in the router."""

    def recall(self, sent: SentT, dispatch: Dispatch, entries: Collection[Entry]) -> None:
        """Ask a replica for entries of a bundle back."""

    def fail(self, entry: Entry, why: Why, refusal: Rejection | None = None) -> None:
        """End an entry without an answer; ``refusal`` is for its client if ``why`` is REFUSED."""

    def timed_out(self, dispatch: Dispatch) -> None:
        """Log that a replica did not answer a bundle in time, and gets no more work until it does."""

    def changed(self, changes: Sequence[Change]) -> None:
        """Log changes of circuit breakers and ejections."""


CarryOut = Callable[[Any], None]
"""Carries out an order of a device (`Device.orders`). Must not call the core back before it returns."""
