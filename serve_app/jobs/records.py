"""Records of a store: jobs, items, files. Times are POSIX seconds, since several processes compare them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from serve_app.jobs.states import ENDED, JobState

JOB: Final = "job"
BATCH: Final = "batch"
"""Kinds of jobs: of ``/v1/jobs``, and of ``/v1/batches``."""


class NewItem(Struct, frozen=True):
    """One request of a job.

    Attributes:
        model: Its model in metrics and in-flight limits; empty if only its route finds it.
        url: The path of its route.
        headers: The request's headers that the route reads, as JSON.
        custom_id: The client's name for it.
    """

    model: str
    url: str
    body: bytes
    headers: Mapping[str, str] = {}
    custom_id: str = ""

    @property
    def nbytes(self) -> int:
        """Its approximate size in a store."""
        return len(self.body) + len(self.url) + 64


class NewJob(Struct, frozen=True):
    """A job to create.

    Attributes:
        id: Unique.
        kind: `JOB` or `BATCH`.
        owner: Name of its API key; empty without keys.
        created: Time of arrival.
        expires: Deadline.
        keep_s: How long it is kept after its end, seconds.
        headers: Defaults for every item.
        callback: URL to notify of its end, or empty.
        meta: The API's own JSON.
        idempotency_key: The client's key, possibly empty.
        digest: Of the request, if it has an idempotency key.
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
    """A job's present state.

    Attributes:
        kind: As in `NewJob`; so are ``owner``, ``created``, ``expires``, ``callback``, ``meta``.
        started: Time of the first lease, if any.
        ended: Time of its end, if ended.
        kept_until: Time of its deletion, if ended.
        total: Number of items.
        completed: Answered items.
        failed: Items with errors.
        code: ``deadline_exceeded`` if items missed the deadline; otherwise empty.
        told: State of its callback: ``pending``, ``delivered`` or ``given_up``; empty without one.
    """

    id: str
    kind: str
    owner: str
    state: JobState
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
        """Whether it has ended for good."""
        return self.state in ENDED


class Lease(Struct, frozen=True):
    """An item that a session may run.

    Attributes:
        item: Its id in the store.
        index: Its place in the job, from 0.
        expires: The job's deadline.
        request: With the headers of the job and its own.
        losses: Number of sessions that ended while they had it.
    """

    item: str
    job: str
    index: int
    owner: str
    expires: float
    request: NewItem
    losses: int = 0


class Outcome(Struct, frozen=True):
    """The result of an item.

    Attributes:
        item: As in `Lease`.
        state: COMPLETED or ERROR; PENDING to return it.
        status: HTTP status of the answer; 0 for an error, which has a code.
        body: The answer, possibly empty.
        headers: Of the answer, as JSON.
        code: Of the error; empty for an answer.
        message: Of the error.
    """

    item: str
    state: JobState
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}
    code: str = ""
    message: str = ""


class Item(Struct, frozen=True):
    """An item for display.

    Attributes:
        index: Its place in the job, from 0.
        custom_id: The client's name for it.
        ended: Time of its end, if ended.
        status: HTTP status of the answer; 0 for an error, and before the end.
    """

    index: int
    state: JobState
    custom_id: str
    ended: float | None = None
    status: int = 0
    body: bytes = b""
    headers: Mapping[str, str] = {}
    code: str = ""
    message: str = ""


class Exchanged(Struct, frozen=True):
    """The result of a session's exchange.

    Attributes:
        leases: Items to run now.
        discarded: Outcomes that did not count: their items are not this session's, or their jobs have ended.
        ended: Ended jobs among the session's items, which need not run.
        finished: Jobs that ended by these outcomes, or by their deadline.
    """

    leases: list[Lease]
    discarded: int
    ended: frozenset[str]
    finished: tuple[str, ...] = ()


class Callback(Struct, frozen=True):
    """A job's end that is to be sent.

    Attributes:
        attempts: Attempts so far.
    """

    job: Job
    attempts: int


class StoredFile(Struct, frozen=True):
    """An uploaded file.

    Attributes:
        owner: Name of its API key.
        name: The client's name for it.
        purpose: The client's purpose.
        expires: Time of its deletion.
    """

    id: str
    owner: str
    name: str
    purpose: str
    nbytes: int
    created: float
    expires: float


class Census(Struct, frozen=True):
    """The content of a store in numbers.

    Attributes:
        jobs: By state.
        backlog: Waiting items by model.
        in_flight: Items of sessions.
        nbytes: Size of the store.
    """

    jobs: Mapping[str, int]
    backlog: Mapping[str, int]
    in_flight: int
    nbytes: int


class JobBounds(Struct, frozen=True):
    """The limits of a store.

    Attributes:
        jobs: Active jobs per owner.
        nbytes: Bytes of the whole store.
        files: Files per owner.
    """

    jobs: int
    nbytes: int
    files: int = 1000
