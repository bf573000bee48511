"""The contract of a store of jobs.

- What `Store.create` has returned is kept: on disk, or as the configured server acknowledges it.
- An item is leased to one session at a time. Its outcome, the lease's end and the job's progress are one transaction:
  an outcome counts once, or not at all where the session is over or the job has ended.
- No step takes long, however much there is: backlogs are paged, and `Store.sweep` is called until nothing is left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from serve_app.errors import Conflict, QueueFull
from serve_app.jobs.records import (
    Callback,
    Census,
    Exchanged,
    Item,
    Job,
    JobBounds,
    NewItem,
    NewJob,
    Outcome,
    StoredFile,
)

MOST_OVERDUE: Final = 100
"""Jobs that one exchange ends because they are too late."""


class SessionOver(Exception):
    """This session has expired. Its items belong to others."""


def other_request() -> Conflict:
    """The error for an idempotency key of another request."""
    return Conflict("Idempotency-Key: it came before with another request; use a new one")


def too_many_jobs(bounds: JobBounds) -> QueueFull:
    """The error for too many active jobs of an owner."""
    return QueueFull(f"{bounds.jobs} jobs have not ended, the most (router.jobs.max_jobs): wait for some", 10.0)


def too_many_files(bounds: JobBounds) -> QueueFull:
    """The error for too many files of an owner."""
    return QueueFull(f"{bounds.files} files are kept, the most (router.jobs.max_files): delete some", 60.0)


def check_room(used_bytes: int, more_bytes: int, bounds: JobBounds) -> None:
    """Raise `QueueFull` if a store of this size has no room for more bytes."""
    if used_bytes + more_bytes > bounds.nbytes:
        raise QueueFull("the store of jobs is full (router.jobs.max_bytes); wait until older jobs expire", 60.0)


class Store(Protocol):
    """Stores jobs. Every method raises `StoreUnavailable` if that is impossible now."""

    async def open(self) -> None:
        """Open, and create anything missing."""

    async def close(self) -> None:
        """Close for good."""

    async def create(self, job: NewJob, items: Sequence[NewItem], bounds: JobBounds) -> tuple[Job, bool]:
        """Store a job of at least one item.

        Returns:
            The job, and whether it is new: a repeated idempotency key returns the existing one.

        Raises:
            Conflict: The key belongs to another request.
            QueueFull: The owner has too many active jobs, or the store has no room.
        """

    async def job(self, job: str) -> Job | None:
        """A job by its id."""

    async def jobs(self, owner: str, kind: str, after: str, limit: int) -> list[Job]:
        """Jobs, newest first.

        Args:
            after: Id of the previous page's last job; empty for the first page.
            limit: Most jobs.
        """

    async def cancel(self, job: str, now: float) -> Job | None:
        """End a job, unless it has ended."""

    async def items(
        self, job: str, after: int, limit: int, nbytes: int, states: frozenset[str] = frozenset()
    ) -> list[Item]:
        """Items of a job in order.

        Args:
            after: The index before the first; -1 for the beginning.
            limit: Most items.
            nbytes: Most bytes of their answers, not counting the first.
            states: Shown states to include; empty for all.
        """

    async def begin_session(self, now: float, lease_s: float) -> str:
        """Begin a session, which expires after this many seconds of silence."""

    async def exchange(
        self,
        session: str,
        outcomes: Sequence[Outcome],
        room: Mapping[str, int],
        others: int,
        nbytes: int,
        now: float,
        lease_s: float,
        running: Collection[str] | None = None,
    ) -> Exchanged:
        """Deliver outcomes, renew the session, and lease more items, in one transaction.

        Overdue jobs end after the outcomes, so that no more of them runs.

        Args:
            outcomes: Of the session's items. A PENDING one becomes available again.
            room: Places by model; none for others.
            others: Places for items of unknown model.
            nbytes: Most bytes of bodies, not counting the first.
            lease_s: The session's lease, seconds.
            running: Its running items besides ``outcomes``; ``None`` for all. Its others become available again: the
                store has lost their outcomes.

        Raises:
            SessionOver: It has expired; the exchange has no effect.
        """

    async def has_waiting(self, models: Collection[str]) -> bool:
        """Whether any item waits for one of these models or an unknown one. Read-only."""

    async def end_session(self, session: str) -> None:
        """End a session and release its items."""

    async def sweep(self, now: float, limit: int) -> int:
        """Do a small step of cleanup: expired sessions, jobs and files, and their rows.

        Returns:
            The number of affected rows; less than ``limit`` if nothing is left.
        """

    async def census(self) -> Census:
        """Count the content."""

    async def due_callbacks(self, now: float, limit: int, lease_s: float) -> list[Callback]:
        """Due callbacks, leased for this many seconds."""

    async def told(self, job: str, told: str, attempts: int, due: float) -> None:
        """Record a callback's state: ``pending`` until ``due``, ``delivered`` or ``given_up``."""

    async def add_file(self, file: StoredFile, content: bytes, bounds: JobBounds) -> None:
        """Store a file. Raises `QueueFull` if the store is full, or the owner has too many."""

    async def file(self, file: str) -> StoredFile | None:
        """A file by its id."""

    async def files(self, owner: str, after: str, limit: int, *, oldest_first: bool = False) -> list[StoredFile]:
        """Files, newest or oldest first; other arguments as in `jobs`."""

    async def content(self, file: str) -> bytes | None:
        """The content of a file."""

    async def delete_file(self, file: str) -> None:
        """Delete a file."""
