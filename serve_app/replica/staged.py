"""A bundle inside the replica, from its arrival to its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Protocol

from msgspec import Struct

from serve_app.errors import InferenceFailed, InvalidRequest
from serve_app.payloads import (
    EXPIRED,
    NOT_IN_TIME,
    RETURNED,
    EntryResult,
    Execution,
    Failure,
    Success,
    Tensors,
    Ties,
    WireEntry,
)
from serve_app.replica.joining import Joining
from serve_app.replica.parts import Outlet
from serve_app.replica.pieces import Piece, put_together
from serve_app.scheduling.entry import Entry

SMALL_BYTES = 64 * 1024
"""Copied in less time than it takes to wake a thread."""


class Job(Protocol):
    """Work for the session when nothing else needs it."""

    def run(self) -> None:
        """Do it, in the session's turn. Does not raise."""

    def drop(self) -> None:
        """It will not be done."""


class Assembled(Struct, frozen=True):
    """All entries of a bundle as one batch.

    Attributes:
        entries: What each runs on.
        rows: The rows of all, one behind the other.
    """

    entries: list[Tensors]
    rows: Tensors


class Stage(IntEnum):
    """Where a bundle is."""

    PREPARED = 0
    """Its entries were decoded."""
    AT_GATE = 1
    """Its entries wait for the session."""
    GRANTED = 2
    """Entries of it are in the batch that runs next. What was left of it has gone back to its router."""
    SUBMITTED = 3
    """The session's thread has it."""
    ENDED = 4
    """The session is done with it."""


class Event(IntEnum):
    """What happens to a bundle."""

    ADMITTED = 0
    GRANTED = 1
    SUBMITTED = 2
    ENDED = 3


AFTER: Final[Mapping[tuple[Stage, Event], Stage]] = {
    (Stage.PREPARED, Event.ADMITTED): Stage.AT_GATE,
    (Stage.AT_GATE, Event.GRANTED): Stage.GRANTED,
    (Stage.AT_GATE, Event.ENDED): Stage.ENDED,  # nothing of it runs
    (Stage.GRANTED, Event.SUBMITTED): Stage.SUBMITTED,
    (Stage.GRANTED, Event.ENDED): Stage.ENDED,  # it has run in the event loop's own turn
    (
        Stage.SUBMITTED,
        Event.SUBMITTED,
    ): Stage.SUBMITTED,  # after a failure, whatever is granted counts as handed
    (Stage.SUBMITTED, Event.ENDED): Stage.ENDED,
    (Stage.ENDED, Event.SUBMITTED): Stage.ENDED,  # so that the session's thread may find what it takes ended already,
    (Stage.ENDED, Event.ENDED): Stage.ENDED,  # and end it again
}
"""Any other event is a bug, and raises KeyError."""


@dataclass(slots=True, eq=False)
class Staged:
    """A bundle inside the replica.

    Attributes:
        entries: The bundle's entries.
        deadlines: When each entry's answer becomes worthless, on this process's monotonic clock.
        tensors: Per entry its tensors, or why there are none.
        results: Per entry its outcome, filled in on the way.
        sender: Names the router that sent it.
        recalled: Positions of entries that its router does not wait for any more; see `serve_app.payloads.Bundle`.
        ties: Who runs those of its entries that other replicas have, too; see `serve_app.payloads.Bundle`.
        waiting: Its entries at the gate, by position.
        chosen: Positions of the entries that the gate has let through, and that run.
        runs_on: The variant that they run on.
        first: Whether it is the first bundle of its batch.
        stage: Where it is; changes by `AFTER` alone.
        rows: Rows it puts into a batch.
        counts: Per entry its rows; 0 where it has no tensors.
        whole: Per entry whether it is run by itself, and uncut.
        nbytes: About how much they take; 0 where nobody has looked.
        valid: Whether every entry has tensors, and all can be joined and are for one variant.
        bucket: Largest cost bucket in it.
        buckets: Per entry its cost bucket.
        batch: All of its rows, ready to run; ``None`` where its entries do not fit together, or nobody has tried.
        assembling: What makes ``batch`` meanwhile.
        assembled: Whether that has been tried.
        executions: The runs that carried it.
        executed_at: When they began.
        finished_at: When they had ended.
        model_works: What the self-test said after an entry had failed; ``None``: it was not asked, or cannot tell.
        waiter: Whom to wake when the session is done with it.
        job: What to do in the session instead of running entries, of which there are none.
        on_behalf_of: The variant that a job runs.
        outlets: Per entry where the parts of its answer leave; empty where answers have none.
        pieces: By position, what entries with rows of several lengths were cut into.
        arrived_at: When it came, where it is one of several pieces that came at once; 0.0: when it is at the gate.
    """

    entries: list[WireEntry]
    deadlines: list[float]
    tensors: list[Tensors | Failure]
    results: list[EntryResult | None]
    sender: str = ""
    recalled: AbstractSet[int] = frozenset()
    ties: Ties | None = None
    waiting: dict[int, Entry] = field(default_factory=dict)
    chosen: list[int] = field(default_factory=list)
    runs_on: str = ""
    first: bool = False
    stage: Stage = Stage.PREPARED
    rows: int = 0
    counts: list[int] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    nbytes: int = 0
    valid: bool = False
    bucket: int = 0
    buckets: list[int] = field(default_factory=list)
    batch: Assembled | None = None
    assembling: Future[None] | None = None
    assembled: bool = False
    executions: list[Execution] = field(default_factory=list)
    executed_at: float = 0.0
    finished_at: float = 0.0
    model_works: bool | None = None
    waiter: asyncio.Future[None] | None = None
    job: Job | None = None
    on_behalf_of: str = ""
    outlets: Sequence[Outlet] = ()
    pieces: dict[int, list[Piece]] = field(default_factory=dict)
    arrived_at: float = 0.0

    @property
    def variant(self) -> str:
        """What its first entry runs on, or its job."""
        return self.entries[0].variant if self.entries else self.on_behalf_of

    @property
    def complete(self) -> bool:
        """Whether all of its entries run, and on what they ask for."""
        asked = self.entries[0].variant if self.entries else self.on_behalf_of
        return len(self.chosen) == len(self.entries) and self.runs_on == asked

    def count_rows(self, joining: Joining) -> None:
        """Set ``rows``, ``counts``, ``whole`` and ``valid``. Entries whose tensors do not agree in their rows fail."""
        variant = self.entries[0].variant if self.entries else ""
        valid = True
        for index in self.recalled:
            self.tensors[index] = RETURNED
        counts, wholes = [], []
        for index, tensors in enumerate(self.tensors):
            rows, whole = 0, False
            if not isinstance(tensors, Failure):
                try:
                    rows, whole = joining.rows(self.entries[index].variant, tensors)
                except InvalidRequest as error:
                    self.tensors[index] = self.results[index] = Failure(error.code, error.message)
            else:
                self.results[index] = tensors
            counts.append(rows)
            wholes.append(whole)
            valid = valid and rows > 0 and not whole and self.entries[index].variant == variant
        self.runs_on = variant
        self.counts = counts
        self.whole = wholes
        self.rows = sum(counts)
        self.valid = valid

    def take_pieces(self, index: int, parts: Sequence[Staged]) -> None:
        """Fill in the result of an entry, of what the bundles of its pieces came to, and note their runs."""
        if not self.executed_at:
            self.executed_at = min([part.executed_at for part in parts if part.executed_at], default=0.0)
        self.finished_at = max(self.finished_at, *(part.finished_at for part in parts))
        counted = [part for part in parts if part.first]
        known = {id(execution) for execution in self.executions}
        for part in counted or parts:
            self.executions += [each for each in part.executions if id(each) not in known]
            known.update(map(id, part.executions))
        self.first = self.first or bool(counted)
        works = [part.model_works for part in parts if part.model_works is not None]
        if works:
            self.model_works = all(works) and self.model_works is not False
        failures = [part.results[0] for part in parts if not isinstance(part.results[0], Success)]
        if not failures:
            try:
                outputs = [part.results[0].value for part in parts if isinstance(part.results[0], Success)]
                self.results[index] = Success(put_together(self.pieces[index], outputs))
            except InferenceFailed as error:
                self.results[index] = Failure(error.code, error.message)
            return
        # The others were recalled for the one that failed.
        why = next((each for each in failures if each != RETURNED), RETURNED) or EXPIRED
        if why == EXPIRED and self.deadlines[index] > time.monotonic():
            why = NOT_IN_TIME
        self.results[index] = why

    def stop(self, why: Failure) -> None:
        """Nobody needs the rest of its answers in parts."""
        for outlet in self.outlets:
            outlet.stop(why)

    def wake(self) -> None:
        """The session is done with it."""
        self.stage = AFTER[self.stage, Event.ENDED]
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
