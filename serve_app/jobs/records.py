"""What a store keeps: jobs, items, files. Times are POSIX seconds: they are compared by several processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from serve_app.jobs.states import ENDED, State

JOB: Final = "job"
BATCH: Final = "batch"
"""Kinds of jobs: of ``/v1/jobs``, and of ``/v1/batches``."""


class NewItem(Struct, frozen=True):
    """One request of a job.

    Attributes:
        model: That it is for, as metrics and in-flight limits know it; empty where only its route finds that out.
        url: The path of the route that would take it as a request of its own.
        body: The body of that request.
        headers: Those of its headers that the route reads, JSON-able.
        custom_id: What the client calls it.
    """

    model: str
    url: str
    body: bytes
    headers: Mapping[str, str] = {}
    custom_id: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in a store, about."""
        return len(self.body) + len(self.url) + 64


class NewJob(Struct, frozen=True):
    """A job that a client asks for.

    Attributes:
        id: A new one.
        kind: `JOB` or `BATCH`.
        owner: Name of the API key that it came with; empty where none is needed.
        created: When it came.
        expires: When it must have ended.
        keep_s: How long it is kept after its end, seconds.
        headers: Of every item that does not say otherwise.
        callback: Where its end is told; empty for nowhere.
        meta: JSON of the API's own.
        idempotency_key: As the client names the request; empty where it does not.
        digest: Of the request, where it has an idempotency key.
    """

    id: str
    kind: str
    owner: str
    created: float
    expires: float
    keep_s: float
    headers: Mapping[str, str] = {}
    callback: str = ""
    meta: bytes = b"{}"
    idempotency_key: str = ""
    digest: bytes = b""


class Job(Struct, frozen=True):
    """A job as it is now.

    Attributes:
        id: Its name.
        kind: As of `NewJob`; so are ``owner``, ``created``, ``expires``, ``callback``, ``meta``.
        state: Of the whole.
        started: When the first item was leased; ``None`` before that.
        ended: When it ended; ``None`` before that.
        kept_until: When it will be forgotten; ``None`` before its end.
        total: Items.
        completed: Items that were answered.
        failed: Items that cannot be answered.
        code: ``deadline_exceeded`` where items could not be answered in time; empty otherwise.
        told: What became of its callback: ``pending``, ``delivered`` or ``given_up``; empty without one.
    """

    id: str
    kind: str
    owner: str
    state: State
    created: float
    expires: float
    started: float | None
    ended: float | None
    kept_until: float | None
    total: int
    completed: int
    failed: int
    callback: str
    meta: bytes
    code: str
    told: str

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.state in ENDED


class Lease(Struct, frozen=True):
    """An item that a session may run.

    Attributes:
        item: How the store knows it.
        job: Its job.
        index: Its place in the job, from 0.
        owner: Of the job.
        expires: When the job must have ended.
        request: What is to be run; its headers are the job's and its own.
        losses: How many sessions ended while they had it.
    """

    item: str
    job: str
    index: int
    owner: str
    expires: float
    request: NewItem
    losses: int = 0


class Outcome(Struct, frozen=True):
    """What became of an item.

    Attributes:
        item: As of `Lease`.
        state: COMPLETED or ERROR; PENDING where the session gives it back.
        status: The HTTP status of the answer; 0 for an error, whose code says it.
        body: The answer, or nothing.
        headers: Of the answer, JSON-able.
        code: Of the error; empty for an answer.
        message: Of the error.
    """

    item: str
    state: State
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}
    code: str = ""
    message: str = ""


class Item(Struct, frozen=True):
    """An item as it is shown.

    Attributes:
        index: Its place in the job, from 0.
        state: Its state.
        custom_id: What the client calls it.
        ended: When it ended; ``None`` before that.
        status: The HTTP status of the answer; 0 for an error, and before the end.
        body: The answer.
        headers: Of the answer.
        code: Of the error.
        message: Of the error.
    """

    index: int
    state: State
    custom_id: str
    ended: float | None = None
    status: int = 0
    body: bytes = b""
    headers: Mapping[str, str] = {}
    code: str = ""
    message: str = ""


class Exchanged(Struct, frozen=True):
    """What a session gets for telling what it did.

    Attributes:
        leases: Items that it may run now.
        discarded: How many outcomes counted for nothing: their items are not this session's, or their jobs have ended.
        ended: Jobs of its items that have ended meanwhile: running them is of no use.
        finished: Jobs that ended by its outcomes, or because they are too late.
    """

    leases: list[Lease]
    discarded: int
    ended: frozenset[str]
    finished: tuple[str, ...] = ()


class Callback(Struct, frozen=True):
    """The end of a job that is to be told.

    Attributes:
        job: It.
        attempts: How often that was tried.
    """

    job: Job
    attempts: int


class StoredFile(Struct, frozen=True):
    """A file that a client has uploaded.

    Attributes:
        id: Its name.
        owner: Name of the API key that it came with.
        name: What the client calls it.
        purpose: What it is for.
        nbytes: Its size.
        created: When it came.
        expires: When it will be forgotten.
    """

    id: str
    owner: str
    name: str
    purpose: str
    nbytes: int
    created: float
    expires: float


class Census(Struct, frozen=True):
    """How much a store holds.

    Attributes:
        jobs: By state.
        backlog: Items that wait, by model.
        in_flight: Items that sessions have.
        nbytes: Bytes of the store.
    """

    jobs: Mapping[str, int]
    backlog: Mapping[str, int]
    in_flight: int
    nbytes: int


class Bounds(Struct, frozen=True):
    """How much a store takes.

    Attributes:
        jobs: Of one owner that have not ended.
        nbytes: Of the whole store.
        files: Of one owner.
    """

    jobs: int
    nbytes: int
    files: int = 1000
