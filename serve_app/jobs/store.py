"""What a store of jobs promises, whatever it keeps them in.

- What `Store.create` has returned is kept: on disk, or as the configured server acknowledges it.
- An item is leased to one session at a time. Its outcome, the lease's end and the job's progress are one transaction:
  an outcome counts once, or not at all where the session is over or the job has ended.
- No step takes long, however much there is: backlogs are paged, and `Store.sweep` is called until nothing is left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from serve_app.errors import Conflict, QueueFull
from serve_app.jobs.records import Bounds, Callback, Census, Exchanged, Item, Job, NewItem, NewJob, Outcome, StoredFile

MOST_OVERDUE: Final = 100
"""Jobs that one exchange ends because they are too late."""


class SessionOver(Exception):
    """This session was not heard of for too long. Its items are others'."""


def other_request() -> Conflict:
    """An idempotency key came with another request than before."""
    return Conflict("Idempotency-Key: it came before with another request; use a new one")


def too_many_jobs(bounds: Bounds) -> QueueFull:
    """An owner has as many jobs that have not ended as it may."""
    return QueueFull(f"{bounds.jobs} jobs have not ended, the most (router.jobs.max_jobs): wait for some", 10.0)


def too_many_files(bounds: Bounds) -> QueueFull:
    """An owner has as many files as it may."""
    return QueueFull(f"{bounds.files} files are kept, the most (router.jobs.max_files): delete some", 60.0)


def check_room(used_bytes: int, more_bytes: int, bounds: Bounds) -> None:
    """Raise `QueueFull` where a store that holds so many bytes has no room for so many more."""
    if used_bytes + more_bytes > bounds.nbytes:
        raise QueueFull("the store of jobs is full (router.jobs.max_bytes); wait until older jobs expire", 60.0)


class Store(Protocol):
    """Keeps jobs. Every method raises `StoreUnavailable` where that is not possible now."""

    async def open(self) -> None:
        """Be ready for calls; makes what is missing."""

    async def close(self) -> None:
        """End. Nothing is called after it."""

    async def create(self, job: NewJob, items: Sequence[NewItem], bounds: Bounds) -> tuple[Job, bool]:
        """Keep a job, of one item at least.

        Returns:
            The job, and whether it is new: of an idempotency key that came before, the one of that time.

        Raises:
            Conflict: That one came with another request.
            QueueFull: The owner has too many jobs that have not ended, or the store has no room for this one.
        """

    async def job(self, job: str) -> Job | None:
        """A job by its id."""

    async def jobs(self, owner: str, kind: str, after: str, limit: int) -> list[Job]:
        """Jobs, the newest first.

        Args:
            owner: Whose.
            kind: Which.
            after: The id of the last one of the page before; empty for the first page.
            limit: Most of them.
        """

    async def cancel(self, job: str, now: float) -> Job | None:
        """End a job. One that has ended stays as it is."""

    async def items(
        self, job: str, after: int, limit: int, nbytes: int, states: frozenset[str] = frozenset()
    ) -> list[Item]:
        """Items of a job in their order.

        Args:
            job: Its id.
            after: The index before the first one; -1 for the beginning.
            limit: Most of them.
            nbytes: Most bytes of their answers together, beyond the first.
            states: Only those in these states, as shown; empty for all.
        """

    async def begin_session(self, now: float, lease_s: float) -> str:
        """A new session, which is over when it was not heard of for so many seconds."""

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
        """Tell what became of items, that the session lives, and get more of them. One transaction.

        Jobs whose deadline has passed end behind the outcomes, so that nothing more of them is run.

        Args:
            session: It.
            outcomes: Of items that it has. One that is PENDING waits again, for whoever can run it.
            room: How many items of which models it takes; none of models that are not named there.
            others: How many of those whose models are not known before they run.
            nbytes: Most bytes of their bodies together, beyond the first.
            now: The time.
            lease_s: When it is over if it is not heard of again, seconds.
            running: Items that it runs, besides those of ``outcomes``; ``None`` for all that it has. What else it has
                waits again: the store has lost what it was told of that.

        Raises:
            SessionOver: It was not heard of for too long; nothing of this counts.
        """

    async def has_waiting(self, models: Collection[str]) -> bool:
        """Whether any item waits for one of these models, or for one that only its request names. Writes nothing."""

    async def end_session(self, session: str) -> None:
        """End a session: what it has waits again."""

    async def sweep(self, now: float, limit: int) -> int:
        """One small step of what is due: sessions that are over, jobs and files that have expired, their rows.

        Returns:
            How many rows it took; less than ``limit`` where nothing is left to do.
        """

    async def census(self) -> Census:
        """How much there is."""

    async def due_callbacks(self, now: float, limit: int, lease_s: float) -> list[Callback]:
        """Ends of jobs that are to be told now. Nobody else gets them for so many seconds."""

    async def told(self, job: str, told: str, attempts: int, due: float) -> None:
        """Note what became of a callback: ``pending`` until ``due``, ``delivered`` or ``given_up``."""

    async def add_file(self, file: StoredFile, content: bytes, bounds: Bounds) -> None:
        """Keep a file. Raises `QueueFull` where the store is full, or the owner has too many."""

    async def file(self, file: str) -> StoredFile | None:
        """A file by its id."""

    async def files(self, owner: str, after: str, limit: int, *, oldest_first: bool = False) -> list[StoredFile]:
        """Files, the newest first or the oldest; other arguments as of `jobs`."""

    async def content(self, file: str) -> bytes | None:
        """What is in a file."""

    async def delete_file(self, file: str) -> None:
        """Forget a file."""
