"""A bundle inside the replica, and the session that is lent to the bundles of one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from serve_app.errors import DeadlineExceeded, InvalidRequest
from serve_app.inference.batch import rows_of
from serve_app.payloads import EntryResult, Execution, Failure, Tensors, WireEntry

EXPIRED = Failure(DeadlineExceeded.code, "the deadline passed before the model could run this request")
"""The outcome of an entry that was not run in time."""


@dataclass(slots=True, eq=False)
class Staged:
    """A bundle inside the replica, from its arrival to its answer.

    Attributes:
        entries: The bundle's entries.
        deadlines: When each entry's answer becomes worthless, on this process's monotonic clock.
        tensors: Per entry its tensors, or why there are none.
        results: Per entry its outcome, filled in on the way.
        rows: Rows it puts into a batch.
        sender: Names the router that sent it.
        behind_others_s: How long it waited at the gate, if other routers' work ran meanwhile, seconds.
    """

    entries: list[WireEntry]
    deadlines: list[float]
    tensors: list[Tensors | Failure]
    results: list[EntryResult | None]
    rows: int = 0
    sender: str = ""
    behind_others_s: float = 0.0
    executions: list[Execution] = field(default_factory=list)
    executed_at: float = 0.0
    finished_at: float = 0.0
    grant: Grant | None = None

    def count_rows(self) -> None:
        """Set ``rows``. Entries whose tensors do not agree in their rows fail, as they would in a batch."""
        self.rows = 0
        for index, tensors in enumerate(self.tensors):
            if not isinstance(tensors, Failure):
                try:
                    self.rows += rows_of(tensors)
                except InvalidRequest as error:
                    self.tensors[index] = Failure(error.code, error.message)


class Grant:
    """The session, lent to the bundles of one batch. Ends once: after the run, or when every bundle has left."""

    __slots__ = ("_on_end", "_waiting", "ended", "running")

    def __init__(self, bundles: int, on_end: Callable[[], None]) -> None:
        self._waiting = bundles
        self._on_end = on_end
        self.running = False
        self.ended = False

    def end(self) -> None:
        """Give the session back."""
        if not self.ended:
            self.ended = True
            self._on_end()

    def leave(self) -> None:
        """One bundle has left: answered, failed or cancelled. The last to leave a batch that never ran ends it."""
        self._waiting -= 1
        if self._waiting == 0 and not self.running:
            self.end()
