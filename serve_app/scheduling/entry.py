"""An entry: one request as the scheduler sees it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from serve_app.domain.priority import Priority

if TYPE_CHECKING:
    from serve_app.payloads import RequestAttributes

EXACT_ONLY = "="
"""The batch key of entries for the exact model that no fallback may answer. No variant can have this name."""

UNBATCHED = "!"
"""The batch key of entries that share no batch. No variant can have this name."""


class EntryState(Enum):
    """State of an entry. Legal moves go downwards, plus RUNNING -> QUEUED for one retry."""

    NEW = "new"
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"


class Entry:
    """One request, reduced to what scheduling needs.

    Attributes:
        id: Unique in this router process.
        priority: Demotion lowers it and keeps the deadline.
        arrival: At the scheduler, or at the gate, seconds on the monotonic clock of that process.
        deadline: When the answer becomes worthless, on the same clock; includes execution.
        rows: At least 1.
        bucket: Cost bucket within the model, e.g. padded sequence length; 0 if the model has none.
        nbytes: Bytes held while queued or running: of the body as received, and of the decoded tensors.
        payload: Opaque; belongs to the maker of the entry.
        variant: Requested variant, empty for the exact model. Once dispatched: the variant that runs.
        batch_key: Entries of equal keys may share a batch: the variant, `EXACT_ONLY` or `UNBATCHED`.
        state: Written by the scheduler only.
        attempts: Number of tries; ties to several replicas are one try.
        bundles: Ids of the bundles in flight that carry it; several if it is tied to several replicas.
        avoid: Name of a replica that it must not be sent to, since it failed there, or ``None``.
        probe: Accepted although predicted to be late, to measure again; it is not given up.
        default_of: The class whose default the deadline is; ``None`` if the request names one. For messages only.
        spent_s: Time of the request before its arrival here, for messages.
        answer_by: For an answer in parts, the deadline of the whole; ``deadline`` is for the first part, until that is
            there. 0.0: not in parts.
        begun: Id of the bundle that has brought a part of the answer, so that it cannot be tried again; 0: none.
    """

    __slots__ = (
        "answer_by",
        "arrival",
        "attempts",
        "attributes",
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
        "variant",
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
        attributes: RequestAttributes,
        exact: bool = False,
        default_of: Priority | None = None,
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
        self.attributes = attributes
        self.answer_by = answer_by
        self.begun = 0
        self.spent_s = spent_s

    @property
    def allowed_s(self) -> float:
        """Time that the request, or its class, allows from its arrival, seconds."""
        return self.deadline - self.arrival + self.spent_s

    @property
    def is_cut(self) -> bool:
        """Whether its rows may run in several batches, so that no other entry should wait for its answer."""
        return self.rows > 1 and self.bucket > 0

    @property
    def exact(self) -> bool:
        """Whether it is for the exact model, without fallback."""
        return self.batch_key == EXACT_ONLY

    def drop_carrier(self, bundle_id: int) -> None:
        """Remove a bundle that carries it no more."""
        self.bundles = tuple([other for other in self.bundles if other != bundle_id])

    def left_to_bundle(self) -> bool:
        """Leave an entry taken out of a queue to the bundle that still carries it. Returns whether one does."""
        if self.bundles:
            self.state = EntryState.RUNNING
        return bool(self.bundles)

    def uncount_attempt(self) -> None:
        """Undo a try that did not run. The first try counts all the same if another replica that had it has failed."""
        if self.attempts > 1 or self.avoid is None:
            self.attempts -= 1

    def __repr__(self) -> str:
        return (
            f"<Entry {self.id} {self.model} {self.priority.label} {self.state.value}"
            f" rows={self.rows} deadline={self.deadline:.3f}>"
        )
