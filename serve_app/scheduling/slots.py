"""Slots: how much may be in flight at a replica, and which replica gets the next bundle.

Routers send entries ahead, so that a replica has them when it composes its next batch (`serve_app.scheduling.gate`). A
listed replica has room for ``window`` full batches of rows in flight; rows of a less urgent class do not count against
a more urgent one. The next bundle goes where it is predicted to begin first: when the present run and the rows ahead of
it have ended. Ties go to the replica with the fewest rows in flight, then to the one used least recently. A replica is
not chosen while it is *held*, for one of three reasons:

    quarantined   a bundle timed out there. Held until any of its bundles is answered.
    ejected       it fails where others do not (`scheduling.health.ejection`). Held for a fixed time, which ends early
                  if no other replica could be chosen, or too many are ejected.
    failed        a bundle failed there and the replica is believed lost. Held for 1 s, doubled per failure in a row up
                  to 30 s, so a replica that was only unreachable for a moment returns without being listed anew.

A hold ends when the replica disappears from the list; one listed again later is new. A quarantined replica with nothing
left in flight cannot answer, so it counts as failed.

With no replica listed, one wake-up bundle may be in flight, without a replica. If it fails, the next one is held back
like a failed replica.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import NamedTuple

from serve_app.domain.priority import Priority
from serve_app.scheduling.entry import Entry

_HOLD_S = 1.0
_LONGEST_HOLD_S = 30.0


class InFlight(NamedTuple):
    """A bundle at a replica.

    Attributes:
        rows: Per class, most urgent first.
        sent: Seconds.
        tenants: Rows per class and tenant; empty while there was one tenant only.
    """

    rows: tuple[int, int, int]
    sent: float
    tenants: Mapping[tuple[Priority, str], int] = {}


class Replica:
    """One replica as the router sees it, or (``name`` is ``None``) the wake-up slot.

    Attributes:
        bundles: All bundles in flight, by id, in the order sent.
        ahead: Rows in flight per class, most urgent first.
        tenants: Rows in flight per class and tenant, if counted.
        suspects: Ids of bundles that carry a retried entry. At most one at a time.
        sent_at: When a bundle was last sent, seconds.
        last_answer_at: Seconds.
        free_at: Predicted end of the present run, seconds.
        reported_backlog_s: Predicted time until it is idle, as of its last answer, other routers' work included.
        held_until: When it may be chosen again; ``None``: now. ``inf``: after an answer.
        failures: Failures since its last answer.
        ejected_until: End of its ejection, during which it is held whatever it answers; ``None``: not ejected.
        listed: Whether it is in the latest list of replicas.
        linked: Whether it shares the table of ties.
    """

    __slots__ = (
        "ahead",
        "bundles",
        "ejected_until",
        "failures",
        "free_at",
        "held_until",
        "last_answer_at",
        "linked",
        "listed",
        "name",
        "reported_backlog_s",
        "sent_at",
        "suspects",
        "tenants",
    )  # fmt: skip

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.bundles: dict[int, InFlight] = {}
        self.ahead = [0, 0, 0]
        self.tenants: dict[tuple[Priority, str], int] = {}
        self.suspects: set[int] = set()
        self.sent_at = -inf
        self.last_answer_at = -inf
        self.free_at = -inf
        self.reported_backlog_s = 0.0
        self.held_until: float | None = None
        self.failures = 0
        self.ejected_until: float | None = None
        self.listed = True
        self.linked = False

    def __repr__(self) -> str:
        return f"<Replica {self.name} bundles={len(self.bundles)} held_until={self.held_until}>"

    @property
    def rows(self) -> int:
        """Rows in flight."""
        high, normal, low = self.ahead
        return high + normal + low

    def rows_before(self, priority: Priority) -> int:
        """Rows in flight of this class and those above it."""
        return sum(self.ahead[:priority])


class Slots:
    """The slots of one model.

    Args:
        window: Full batches of rows in flight per replica.
        max_ejected: Largest fraction of ejected replicas, 0 to 1.

    Attributes:
        replicas: By name.
        holding: Whether anything is held, the wake-up slot included.
    """

    def __init__(self, window: int, max_ejected: float = 1.0) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.window = window
        self._max_ejected = max_ejected
        self.replicas: dict[str, Replica] = {}
        self._wake_up = Replica(None)
        self._held: dict[Replica, None] = {}
        self.holding = False

    def set_replicas(self, names: Collection[str], now: float) -> list[Replica]:
        """Replace the list of replicas. Returns those that vanished."""
        listed = set(names)
        vanished = [replica for name, replica in self.replicas.items() if name not in listed]
        for replica in vanished:
            del self.replicas[str(replica.name)]
            replica.listed = False
            self._place(replica)
        for name in names:
            if name not in self.replicas:
                self.replicas[name] = Replica(name)
        self.release_holds(now)
        return vanished

    def choose(
        self,
        priority: Priority,
        max_rows: float,
        now: float,
        per_row_s: float = 0.0,
        avoid: str | None = None,
        *,
        suspect: bool = False,
    ) -> Replica | None:
        """Choose the replica for the next bundle of a class; ``None`` if none has room.

        Args:
            max_rows: Rows of a full batch; ``inf``: any replica has room.
            per_row_s: Execution time of a row in a usual batch; 0.0 while unknown.
            avoid: A replica not to choose, unless it is the only one that is not held.
            suspect: The bundle carries a retried entry: it goes where no other such bundle is in flight, so that two
                suspects are never lost together.
        """
        if not self.replicas:
            return None if self._wake_up.bundles or self._wake_up.held_until is not None else self._wake_up
        if avoid is not None and self.usable <= 1:
            avoid = None
        most = self.window * max_rows
        best: Replica | None = None
        least = (inf, 0, inf)
        for replica in self.replicas.values():
            if replica.held_until is not None or replica.name == avoid or (suspect and replica.suspects):
                continue
            rows = before = 0
            if replica.bundles:
                rows, before = replica.rows, replica.rows_before(priority)
            if before < most:
                begins = max(now, replica.free_at) + per_row_s * before
                if (cost := (begins, rows, replica.sent_at)) < least:
                    best, least = replica, cost
        return best

    def beside(self, chosen: Replica, priority: Priority, max_rows: float, most: int) -> list[Replica]:
        """At most ``most`` other linked replicas with room for rows of a class: those with the fewest rows."""
        room = self.window * max_rows
        others = [
            replica
            for replica in self.replicas.values()
            if replica is not chosen
            and replica.linked
            and replica.held_until is None
            and replica.rows_before(priority) < room
        ]
        return sorted(others, key=_rows)[:most] if len(others) > most else others

    def acquire(
        self,
        replica: Replica,
        bundle_id: int,
        entries: Sequence[Entry],
        predicted_s: float,
        now: float,
        *,
        suspect: bool = False,
        tenants: bool = False,
    ) -> None:
        """Count a bundle in at a replica that `choose` returned.

        Args:
            predicted_s: Predicted execution time of the bundle alone.
            tenants: Whether rows are counted per tenant, too.
        """
        if not replica.bundles:
            replica.free_at = max(now, replica.free_at) + predicted_s
        rows = [0, 0, 0]
        for entry in entries:
            rows[entry.priority - 1] += entry.rows
        of_tenants: dict[tuple[Priority, str], int] = {}
        if tenants:
            for entry in entries:
                key = entry.priority, entry.attributes.tenant
                of_tenants[key] = of_tenants.get(key, 0) + entry.rows
            for key, more in of_tenants.items():
                replica.tenants[key] = replica.tenants.get(key, 0) + more
        high, normal, low = rows
        replica.bundles[bundle_id] = InFlight((high, normal, low), now, of_tenants)
        ahead = replica.ahead
        ahead[0] += high
        ahead[1] += normal
        ahead[2] += low
        replica.sent_at = now
        if suspect:
            replica.suspects.add(bundle_id)

    def release(
        self,
        replica: Replica,
        bundle_id: int,
        now: float,
        *,
        answered: bool,
        runs_s: float = 0.0,
        reported_backlog_s: float = 0.0,
    ) -> None:
        """Count out a bundle that was answered or failed.

        Args:
            answered: Whether it was answered, by a session that works.
            runs_s: Predicted time until the replica's present run ends.
        """
        bundle = replica.bundles.pop(bundle_id, None)
        if bundle is not None:
            ahead, (high, normal, low) = replica.ahead, bundle.rows
            ahead[0] -= high
            ahead[1] -= normal
            ahead[2] -= low
            for key, less in bundle.tenants.items():
                if replica.tenants[key] == less:
                    del replica.tenants[key]
                else:
                    replica.tenants[key] -= less
        replica.suspects.discard(bundle_id)
        replica.free_at = now + runs_s
        replica.reported_backlog_s = reported_backlog_s
        if answered:
            replica.last_answer_at = now
            replica.failures = 0
            replica.held_until = replica.ejected_until
        elif replica.held_until == inf and not replica.bundles:
            replica.held_until = self._hold_end(replica, now)
        if self.holding or replica.held_until is not None:
            self._place(replica)

    def fail(self, replica: Replica, now: float) -> None:
        """Hold a replica believed lost, or the wake-up slot. A hold that exists already is not changed."""
        if replica.held_until is None:
            replica.held_until = self._hold_end(replica, now)
            self._place(replica)

    def eject(self, replica: Replica, until: float) -> None:
        """Hold a replica until then, or longer if it is held for another reason as well."""
        replica.ejected_until = until
        replica.held_until = until if replica.held_until is None else max(until, replica.held_until)
        self._place(replica)

    def quarantine(self, name: str | None, now: float) -> Replica | None:
        """Hold a replica until it answers; an unknown name is ignored.

        ``None`` frees the wake-up slot and returns its former holder, which counts as vanished.
        """
        if name is None:
            abandoned = self._wake_up
            abandoned.listed = False
            self._wake_up = Replica(None)
            self.holding = bool(self._held)
            return abandoned
        if (replica := self.replicas.get(name)) is not None:
            replica.held_until = inf if replica.bundles else self._hold_end(replica, now)
            self._place(replica)
        return None

    def restore(self, replica: Replica) -> None:
        """End a quarantine without an answer: the replica is alive and keeps its bundles."""
        if replica.held_until == inf:
            replica.held_until = replica.ejected_until
            self._place(replica)

    def release_holds(self, now: float) -> None:
        """End the holds whose time has come, and ejections beyond the allowed fraction."""
        wake_up = self._wake_up
        if wake_up.held_until is not None and wake_up.held_until <= now:
            wake_up.held_until = None
        if self._held:
            for replica in list(self._held):
                if replica.held_until is not None and replica.held_until <= now:
                    replica.held_until = replica.ejected_until = None
                    self._place(replica)
            self._end_ejections()
        self.holding = bool(self._held) or wake_up.held_until is not None

    @property
    def next_release(self) -> float:
        """When the next hold ends by itself; ``inf``: none does."""
        return min((r.held_until for r in (*self._held, self._wake_up) if r.held_until is not None), default=inf)

    @property
    def usable(self) -> int:
        """Replicas that are listed and not held."""
        return len(self.replicas) - len(self._held)

    @property
    def held(self) -> list[str]:
        """Names of the replicas that are held."""
        return [str(replica.name) for replica in self._held]

    @property
    def rows(self) -> int:
        """Rows in flight in bundles that hold a slot."""
        return self._wake_up.rows + sum(r.rows for r in self.replicas.values() if r.held_until is None)

    def rows_of(self, priority: Priority, tenant: str) -> int:
        """Rows of a tenant's class in flight, if counted."""
        return sum([r.tenants.get((priority, tenant), 0) for r in self.replicas.values() if r.held_until is None])

    @property
    def bundles(self) -> list[int]:
        """Ids of bundles in flight, without those at held and vanished replicas."""
        at = [r for r in self.replicas.values() if r.held_until is None]
        return [bundle_id for replica in (*at, self._wake_up) for bundle_id in replica.bundles]

    @property
    def in_use(self) -> int:
        """Number of `bundles`."""
        return len(self.bundles)

    def quickest(self) -> Replica | None:
        """The usable replica with the fewest rows in flight; ``None`` without one."""
        usable = [r for r in self.replicas.values() if r.held_until is None]
        return min(usable, key=_rows, default=None)

    def _end_ejections(self) -> None:
        """End surplus ejections, and one if no other replica can be chosen, those that end first."""
        ejected = sorted((r for r in self._held if r.ejected_until is not None), key=_ejected_until)
        left = len(ejected)
        for replica in ejected:
            is_reason = replica.held_until == replica.ejected_until
            if left > self._max_ejected * len(self.replicas) or (is_reason and not self.usable):
                left -= 1
                replica.ejected_until = None
                if is_reason:
                    replica.held_until = None
                    self._place(replica)

    def _hold_end(self, replica: Replica, now: float) -> float:
        replica.failures += 1
        return now + min(_LONGEST_HOLD_S, _HOLD_S * 2.0 ** min(replica.failures - 1, 10))

    def _place(self, replica: Replica) -> None:
        """Update the set of held replicas."""
        self._held.pop(replica, None)
        if replica.name is not None and replica.listed and replica.held_until is not None:
            self._held[replica] = None
        self.holding = bool(self._held) or self._wake_up.held_until is not None


def _rows(replica: Replica) -> int:
    return replica.rows


def _ejected_until(replica: Replica) -> float:
    return inf if replica.ejected_until is None else replica.ejected_until
