"""An entry: one request as the scheduler sees it."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any


class Priority(IntEnum):
    """A class of requests. The lower number is the more urgent; the numbers are those of the V2 protocol."""

    HIGH = 1
    NORMAL = 2
    LOW = 3

    label: str
    """The name used in configuration, headers, metrics and errors."""

    def __init__(self, _: int) -> None:
        self.label = self._name_.lower()


EXACT_ONLY = "="
"""The batch key of entries for the exact model that no fallback may answer. No variant can have this name."""

UNBATCHED = "!"
"""The batch key of entries that share no batch. No variant can have this name."""


class EntryState(Enum):
    """Where an entry is. The only legal moves are downwards, plus RUNNING -> QUEUED for one retry."""

    NEW = "new"
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"


class Entry:
    """One request, reduced to what scheduling needs to know.

    Attributes:
        id: Unique in this router process.
        model: Name of the model.
        priority: The class. Demotion lowers it and keeps the deadline.
        arrival: When it reached the scheduler, seconds on the router's monotonic clock.
        deadline: When the answer becomes worthless, on the same clock; includes execution.
        rows: How many rows it adds to a batch, at least 1.
        bucket: Cost bucket within the model, 0 where the model has none (e.g. padded sequence length).
        nbytes: Bytes held while it is queued or running: of the body as it came, and of its tensors once decoded.
        payload: Opaque; belongs to the maker of the entry.
        variant: Name of the variant to run, empty for the exact model. Once dispatched: what it runs on.
        batch_key: Entries of equal keys may share a batch: the variant, `EXACT_ONLY` or `UNBATCHED`.
        state: See `EntryState`; written by the scheduler only.
        attempts: How many times it has been tried: that other replicas have it as well is no other try.
        bundles: Ids of the bundles in flight that carry it; more than one where it is tied to several replicas.
        avoid: Name of a replica that it must not be sent to (it failed there), or ``None``.
        probe: It was accepted although it is predicted to be late, to measure again; it is not given up.
        default_of: The class whose default the deadline is; ``None`` where the request names one. For messages only.
        spent_s: How long the request had been here before, seconds. For messages: they tell the deadline as named.
        tenant: Who shares the class with others; see `scheduling.queueing.tenants`. All with the same name are one.
        weight: The tenant's part of its class's server time, relative to other tenants'; over 0.
        answer_by: Of an answer in parts, when the whole is worthless; ``deadline`` is for the first part, until that
            is there. 0.0: the answer comes at once.
        begun: Id of the bundle that has brought a part of the answer, so that it cannot be tried again; 0: none has.
    """

    __slots__ = (
        "answer_by",
        "arrival",
        "attempts",
        "avoid",
        "batch_key",
        "begun",
        "bucket",
        "bundles",
        "deadline",
        "default_of",
        "id",
        "model",
        "nbytes",
        "payload",
        "priority",
        "probe",
        "rows",
        "spent_s",
        "state",
        "tenant",
        "variant",
        "weight",
    )  # fmt: skip

    def __init__(
        self,
        id: int,  # noqa: A002 - the glossary's word
        model: str,
        priority: Priority,
        arrival: float,
        deadline: float,
        rows: int = 1,
        bucket: int = 0,
        nbytes: int = 0,
        payload: Any = None,
        variant: str = "",
        *,
        exact: bool = False,
        default_of: Priority | None = None,
        tenant: str = "",
        weight: float = 1.0,
        answer_by: float = 0.0,
        spent_s: float = 0.0,
    ) -> None:
        self.id = id
        self.model = model
        self.priority = priority
        self.arrival = arrival
        self.deadline = deadline
        self.rows = rows
        self.bucket = bucket
        self.nbytes = nbytes
        self.payload = payload
        self.variant = variant
        self.batch_key = EXACT_ONLY if exact and not variant else variant
        self.state = EntryState.NEW
        self.attempts = 0
        self.bundles: tuple[int, ...] = ()
        self.avoid: str | None = None
        self.probe = False
        self.default_of = default_of
        self.tenant = tenant
        self.weight = weight
        self.answer_by = answer_by
        self.begun = 0
        self.spent_s = spent_s

    @property
    def allowed_s(self) -> float:
        """What the request, or its class, allows from when it came, seconds."""
        return self.deadline - self.arrival + self.spent_s

    @property
    def is_cut(self) -> bool:
        """Whether its rows may run in several batches, so that no other entry should have to wait for its answer."""
        return self.rows > 1 and self.bucket > 0

    @property
    def exact(self) -> bool:
        """Whether it is for the exact model, and no fallback may stand in."""
        return self.batch_key == EXACT_ONLY

    def drop_carrier(self, bundle_id: int) -> None:
        """A bundle carries it no more."""
        self.bundles = tuple([other for other in self.bundles if other != bundle_id])

    def left_to_bundle(self) -> bool:
        """Leave it, which was taken out of a queue, to the bundle that still carries it. Returns whether one does."""
        if self.bundles:
            self.state = EntryState.RUNNING
        return bool(self.bundles)

    def uncount_attempt(self) -> None:
        """It was not run. Its first try counts all the same where another replica that had it, too, has failed."""
        if self.attempts > 1 or self.avoid is None:
            self.attempts -= 1

    def __repr__(self) -> str:
        return (
            f"<Entry {self.id} {self.model} {self.priority.label} {self.state.value}"
            f" rows={self.rows} deadline={self.deadline:.3f}>"
        )
