"""Slots: how much may be in flight at a replica, and at which replica the next bundle goes.

Routers send entries ahead, so that a replica composes its next batch of what is there (`serve_app.scheduling.gate`). A
listed replica has room for ``window`` full batches of rows in flight; those of a less urgent class do not count against
a more urgent one. The next bundle goes where it is predicted to begin first: when what runs there ends, and what is
ahead of it there has run; among equals, where the fewest rows are in flight, and where one was sent least recently. A
replica can be out of the choice for three reasons, all called *held*:

    quarantined   a bundle timed out there. Held until any of its bundles is answered.
    ejected       it fails what others do not; see `scheduling.health.ejection`. Held for a time that is set then,
                  which ends sooner where it is the only one left that could be chosen, or too many are ejected.
    failed        a bundle failed there and the replica is believed lost. Held for 1 s, doubled at every failure in a
                  row up to 30 s: a replica that was only unreachable for a moment comes back without being listed anew.

All end when the replica disappears from the list; if it is listed again later, it is a new one. A quarantined
replica with nothing left in flight can answer nothing, so it counts as failed.

With no replica listed, one wake-up bundle may be in flight, without a replica. When it fails, the next one is held
back like a failed replica.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import NamedTuple

from serve_app.scheduling.entry import Entry, Priority

_HOLD_S = 1.0
_LONGEST_HOLD_S = 30.0


class InFlight(NamedTuple):
    """A bundle at a replica.

    Attributes:
        rows: Its rows per class, most urgent first.
        sent: When it was sent, seconds.
        tenants: Its rows per class and tenant; empty while there was one tenant only.
    """

    rows: tuple[int, int, int]
    sent: float
    tenants: Mapping[tuple[Priority, str], int] = {}


class Replica:
    """One replica as the router sees it, or (``name`` is ``None``) the wake-up slot.

    Attributes:
        name: The replica's name.
        bundles: Every bundle in flight there, by id, in the order sent.
        ahead: Rows in flight there per class, most urgent first.
        tenants: Rows in flight there per class and tenant, as far as they were counted.
        suspects: Ids of those bundles that carry a retried entry. At most one at a time.
        sent_at: When a bundle was last sent there, seconds.
        last_answer_at: When it last answered one, seconds.
        free_at: When what runs there is predicted to end, seconds.
        reported_backlog_s: Predicted time until it is idle, as of its last answer, other routers' work included.
        held_until: When it may be chosen again; ``None``: now. ``inf``: after an answer.
        failures: Failures since its last answer.
        ejected_until: Until when it is ejected, and so held whatever it answers; ``None``: it is not.
        listed: Whether it is in the latest list of replicas.
        linked: Whether it can agree with others at once on who runs an entry that several have.
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
        """Rows in flight there."""
        high, normal, low = self.ahead
        return high + normal + low

    def rows_before(self, priority: Priority) -> int:
        """Rows in flight there of this class and those above it."""
        return sum(self.ahead[:priority])


class Slots:
    """The slots of one model.

    Args:
        window: Full batches of rows in flight per replica.
        max_ejected: Part of the replicas that may be ejected, 0 to 1.

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
        """Take the list of replicas as it is now. Returns those that vanished."""
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
        """The replica with room for more rows of a class where the next bundle should go, or ``None``.

        Args:
            priority: The class.
            max_rows: Rows of a full batch; ``inf``: any replica has room.
            now: Seconds.
            per_row_s: Execution time of a row in a usual batch, seconds; 0.0 while unknown.
            avoid: A replica not to choose, unless it is the only one that is not held.
            suspect: The bundle carries a retried entry: it goes where no other such bundle is in flight, so that
                two suspects are never lost together.
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
        """The other linked replicas with room for rows of a class, at most so many: those with the fewest rows."""
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
            replica: Where it goes.
            bundle_id: The bundle.
            entries: Its entries.
            predicted_s: How long it is predicted to take by itself, seconds.
            now: Seconds.
            suspect: See `choose`.
            tenants: Whether its rows are to be counted per tenant, too.
        """
        if not replica.bundles:
            replica.free_at = max(now, replica.free_at) + predicted_s
        rows = [0, 0, 0]
        for entry in entries:
            rows[entry.priority - 1] += entry.rows
        of_tenants: dict[tuple[Priority, str], int] = {}
        if tenants:
            for entry in entries:
                key = entry.priority, entry.tenant
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
            replica: Where it was.
            bundle_id: The bundle.
            now: Seconds.
            answered: Whether it was answered, by a session that works.
            runs_s: Predicted time until what runs there has ended, seconds.
            reported_backlog_s: See `Replica`.
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
        """Hold a replica that is believed lost, or the wake-up slot. One that is held already stays so."""
        if replica.held_until is None:
            replica.held_until = self._hold_end(replica, now)
            self._place(replica)

    def eject(self, replica: Replica, until: float) -> None:
        """Hold a replica until then, and longer where it is held for another reason as well."""
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
        """End a quarantine without an answer: the replica is alive after all, and begins with what it has."""
        if replica.held_until == inf:
            replica.held_until = replica.ejected_until
            self._place(replica)

    def release_holds(self, now: float) -> None:
        """End the holds whose time has come, and ejections that there are too many of now."""
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
        """When the next hold ends by itself; ``inf`` when none does."""
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
        """Rows of a tenant's class in flight, as far as they were counted."""
        return sum([r.tenants.get((priority, tenant), 0) for r in self.replicas.values() if r.held_until is None])

    @property
    def bundles(self) -> list[int]:
        """Bundles in flight, by id. Those at held and at vanished replicas do not count."""
        at = [r for r in self.replicas.values() if r.held_until is None]
        return [bundle_id for replica in (*at, self._wake_up) for bundle_id in replica.bundles]

    @property
    def in_use(self) -> int:
        """How many `bundles` there are."""
        return len(self.bundles)

    def quickest(self) -> Replica | None:
        """The usable replica with the fewest rows in flight; ``None`` without one."""
        usable = [r for r in self.replicas.values() if r.held_until is None]
        return min(usable, key=_rows, default=None)

    def _end_ejections(self) -> None:
        """As many as there are too many of, or one where nothing else can be chosen; who would be back first is."""
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
        """Put a replica among the held, or take it out."""
        self._held.pop(replica, None)
        if replica.name is not None and replica.listed and replica.held_until is not None:
            self._held[replica] = None
        self.holding = bool(self._held) or self._wake_up.held_until is not None


def _rows(replica: Replica) -> int:
    return replica.rows


def _ejected_until(replica: Replica) -> float:
    return inf if replica.ejected_until is None else replica.ejected_until
