"""Bundles in flight, and which of their entries is due next."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from operator import attrgetter

from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.slots import Replica

_deadline = attrgetter("deadline")
_QUEUED, _RUNNING = EntryState.QUEUED, EntryState.RUNNING
_STALE_ALLOWED = 64


class Bundle:
    """A bundle in flight.

    Attributes:
        id: Unique in this scheduler.
        entries: In the order sent. An entry that is not RUNNING any more has ended, and its late result is waste.
        begins: When it was sent, seconds.
        detached: Whether its model was removed: its entries may still be answered, with no other effect.
        recalled: Whether any of its entries was recalled.
        first_deadline: The earliest of its entries' deadlines.
    """

    __slots__ = (
        "_by_deadline",
        "_due",
        "begins",
        "detached",
        "entries",
        "first_deadline",
        "id",
        "model",
        "recalled",
        "replica",
        "rows",
    )  # fmt: skip

    def __init__(
        self,
        id: int,  # noqa: A002 - the glossary's word
        model: str,
        replica: Replica,
        entries: list[Entry],
        rows: int,
        begins: float = 0.0,
    ) -> None:
        self.begins = begins
        self.detached = self.recalled = False
        self.id = id
        self.model = model
        self.replica = replica
        self.entries = entries
        self.rows = rows
        self._by_deadline = by_deadline = sorted(entries, key=_deadline) if len(entries) > 1 else entries
        self.first_deadline = by_deadline[0].deadline
        self._due = 0

    @property
    def next_deadline(self) -> float | None:
        """Earliest deadline of an entry that has not ended and may be answered from here, or ``None``."""
        while self._due < len(self._by_deadline):
            entry = self._by_deadline[self._due]
            if entry.state is _RUNNING or (entry.state is _QUEUED and self.id in entry.bundles):
                return entry.deadline
            self._due += 1
        return None

    def pop_due(self, now: float) -> Entry | None:
        """The next RUNNING entry whose deadline has passed, once each, or ``None``."""
        while (deadline := self.next_deadline) is not None and deadline <= now:
            self._due += 1
            entry = self._by_deadline[self._due - 1]
            if entry.state is _RUNNING:  # one that is queued as well expires there
                return entry
        return None

    def postponed(self) -> None:
        """Update after the deadline of an entry was extended."""
        self._by_deadline = sorted(self._by_deadline[self._due :], key=_deadline)
        self._due = 0

    def release_entries(self) -> None:
        """Release the entries, once all have ended."""
        self.entries = []
        self._by_deadline = []
        self._due = 0


class BundlesInFlight:
    """All bundles that were sent and neither answered nor failed, with a heap of deadlines.

    The heap holds pairs (deadline of a running entry, bundle id), one per bundle at a time. Stale pairs are dropped
    lazily, so it has at most ``2 * bundles + 64`` of them.

    Attributes:
        due: The heap: nothing expires before its first pair.
        recalls: By bundle, recalled entries.
    """

    def __init__(self) -> None:
        self._bundles: dict[int, Bundle] = {}
        self.due: list[tuple[float, int]] = []
        self.recalls: dict[int, list[Entry]] = {}

    def __len__(self) -> int:
        return len(self._bundles)

    @property
    def heap_size(self) -> int:
        """Pairs held, stale ones included."""
        return len(self.due)

    def add(self, bundle: Bundle) -> None:
        """Add a bundle, whose entries are all RUNNING."""
        self._bundles[bundle.id] = bundle
        heappush(self.due, (bundle.first_deadline, bundle.id))

    def pop(self, bundle_id: int) -> Bundle | None:
        """Remove an answered or failed bundle; ``None`` if it is unknown."""
        bundle = self._bundles.pop(bundle_id, None)
        if self.recalls:
            self.recalls.pop(bundle_id, None)
        if len(self.due) > 2 * len(self._bundles) + _STALE_ALLOWED:
            self.due[:] = [pair for pair in self.due if pair[1] in self._bundles]
            heapify(self.due)
        return bundle

    def recall(self, entry: Entry, *, but: int = 0) -> None:
        """Recall a running entry whose answer is no longer needed: it need not run if it waits at a gate.

        Args:
            but: Id of a bundle that keeps it.
        """
        for bundle_id in entry.bundles:
            bundle = self._bundles.get(bundle_id)
            if bundle is not None and bundle_id != but and bundle.replica.name is not None:
                bundle.recalled = True
                self.recalls.setdefault(bundle_id, []).append(entry)

    def get(self, bundle_id: int) -> Bundle | None:
        """The bundle of that id, or ``None``."""
        return self._bundles.get(bundle_id)

    def all(self) -> list[Bundle]:
        """All bundles."""
        return list(self._bundles.values())

    def next_deadline(self) -> float:
        """The earliest deadline of all running entries; ``inf`` without any."""
        due = self.due
        while due:
            noted, bundle_id = due[0]
            bundle = self._bundles.get(bundle_id)
            if bundle is None:
                heappop(due)
                continue
            deadline = bundle.next_deadline
            if deadline is None:
                heappop(due)
                self.forget_ended(bundle_id)
            elif deadline > noted:
                heapreplace(due, (deadline, bundle_id))
            else:
                return deadline
        return inf

    def pop_due(self, now: float) -> list[Entry]:
        """Running entries whose deadline has passed, a tied one once per bundle. The caller ends them."""
        due = self.due
        expired: list[Entry] = []
        while due and due[0][0] <= now:
            bundle_id = heappop(due)[1]
            bundle = self._bundles.get(bundle_id)
            if bundle is None:
                continue
            while (entry := bundle.pop_due(now)) is not None:
                expired.append(entry)
            if (deadline := bundle.next_deadline) is not None:
                heappush(due, (deadline, bundle_id))
            else:
                self.forget_ended(bundle_id)
        return expired

    def forget_ended(self, bundle_id: int) -> None:
        """Release the entries of a bundle if no answer is needed, and the bundle if its replica is gone.

        A bundle at a listed replica stays known without entries: its answer frees a slot or ends a quarantine.
        """
        bundle = self._bundles.get(bundle_id)
        if bundle is not None and bundle.next_deadline is None:
            self.abandon(bundle_id)

    def abandon(self, bundle_id: int) -> None:
        """Release a bundle's entries, and the bundle if its replica is gone."""
        bundle = self._bundles.get(bundle_id)
        if bundle is not None:
            bundle.release_entries()
            if not bundle.replica.listed:
                self.pop(bundle_id)
