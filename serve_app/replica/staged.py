"""A bundle inside the replica, from arrival to answer."""

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


class BackgroundWork(Protocol):
    """Background work for the session."""

    def run(self) -> None:
        """Do the work in the session's turn. Does not raise."""

    def drop(self) -> None:
        """Cancel the work."""


class Assembled(Struct, frozen=True):
    """All entries of a bundle as one batch.

    Attributes:
        entries: The tensors of each.
        rows: The rows of all, in order.
    """

    entries: list[Tensors]
    rows: Tensors


class Stage(IntEnum):
    """The state of a bundle."""

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


class StageEvent(IntEnum):
    """An event of a bundle."""

    ADMITTED = 0
    GRANTED = 1
    SUBMITTED = 2
    ENDED = 3


AFTER: Final[Mapping[tuple[Stage, StageEvent], Stage]] = {
    (Stage.PREPARED, StageEvent.ADMITTED): Stage.AT_GATE,
    (Stage.AT_GATE, StageEvent.GRANTED): Stage.GRANTED,
    (Stage.AT_GATE, StageEvent.ENDED): Stage.ENDED,  # nothing of it runs
    (Stage.GRANTED, StageEvent.SUBMITTED): Stage.SUBMITTED,
    (Stage.GRANTED, StageEvent.ENDED): Stage.ENDED,  # it has run in the event loop's own turn
    (
        Stage.SUBMITTED,
        StageEvent.SUBMITTED,
    ): Stage.SUBMITTED,  # after a failure, whatever is granted counts as handed
    (Stage.SUBMITTED, StageEvent.ENDED): Stage.ENDED,
    (Stage.ENDED, StageEvent.SUBMITTED): Stage.ENDED,  # the session's thread may find a bundle ended already,
    (Stage.ENDED, StageEvent.ENDED): Stage.ENDED,  # and end it again
}
"""Any other event is a bug, and raises KeyError."""


@dataclass(slots=True, eq=False)
class Staged:
    """A bundle inside the replica.

    Attributes:
        deadlines: Per entry, on this process's monotonic clock.
        tensors: Per entry its tensors, or its failure.
        results: Per entry its outcome, filled in on the way.
        sender: Name of the sending router.
        recalled: Positions of entries that its router no longer awaits; see `serve_app.payloads.Bundle`.
        ties: Decides which replica runs duplicated entries; see `serve_app.payloads.Bundle`.
        waiting: Entries at the gate, by position.
        chosen: Positions of granted entries, which run.
        runs_on: The variant for them.
        first: Whether it is the first bundle of its batch.
        stage: Changes only by `AFTER`.
        counts: Per entry; 0 without tensors.
        whole: Per entry, whether it runs alone and uncut.
        nbytes: Approximate size; 0 if unknown.
        valid: Whether every entry has tensors, and all can be joined on one variant.
        bucket: Its largest cost bucket.
        buckets: Cost buckets per entry.
        batch: All rows, ready to run; ``None``: the entries do not fit together, or assembly was not tried.
        assembling: The pending ``batch``.
        assembled: Whether assembly was tried.
        executions: The runs that carried it.
        executed_at: Start of the runs.
        finished_at: End of the runs.
        model_works: The self-test's result after a failed entry; ``None``: not tested, or unknown.
        waiter: Woken when the session is done with it.
        job: Runs instead of entries, of which there are none.
        on_behalf_of: The variant of a job.
        outlets: Per entry, the exit of streamed parts; empty without streaming.
        pieces: By position, pieces of entries with rows of several lengths.
        arrived_at: Arrival of one of several pieces that came together; 0.0: the time at the gate.
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
    job: BackgroundWork | None = None
    on_behalf_of: str = ""
    outlets: Sequence[Outlet] = ()
    pieces: dict[int, list[Piece]] = field(default_factory=dict)
    arrived_at: float = 0.0

    @property
    def variant(self) -> str:
        """The variant of its first entry or its job."""
        return self.entries[0].variant if self.entries else self.on_behalf_of

    @property
    def complete(self) -> bool:
        """Whether all of its entries run, on the variants that they name."""
        asked = self.entries[0].variant if self.entries else self.on_behalf_of
        return len(self.chosen) == len(self.entries) and self.runs_on == asked

    def count_rows(self, joining: Joining) -> None:
        """Set ``rows``, ``counts``, ``whole`` and ``valid``. Entries with inconsistent rows fail."""
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
        """Fill in an entry's result from its pieces' bundles, and record their runs."""
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
        """Stop its streamed answers."""
        for outlet in self.outlets:
            outlet.stop(why)

    def wake(self) -> None:
        """Wake the waiter after the session."""
        self.stage = AFTER[self.stage, StageEvent.ENDED]
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
