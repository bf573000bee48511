"""Slots: how many bundles may be in flight, and at which replica the next one goes.

Each listed replica has ``window`` slots. The next bundle goes where the fewest bundles are in flight; among equals,
where the predicted work ends first. A replica can be out of the choice for three reasons, all called *held*:

    quarantined   a bundle timed out there. Held until any of its bundles is answered.
    ejected       it fails what others do not; see `serve_app.scheduling.ejection`. Held for a time that is set then,
                  which ends sooner where it is the only one left that could be chosen, or too many are ejected.
    failed        a bundle failed there and the replica is believed lost. Held for 1 s, doubled at every failure in a
                  row up to 30 s: a replica that was only unreachable for a moment comes back without being listed anew.

All end when the replica disappears from the list; if it is listed again later, it is a new one. A quarantined
replica with nothing left in flight can answer nothing, so it counts as failed.

With no replica listed, one wake-up bundle may be in flight, addressed to nobody. When it fails, the next one is held
back like a failed replica.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from math import inf

from serve_app.scheduling.gate import Outlook

_HOLD_S = 1.0
_LONGEST_HOLD_S = 30.0
_NO_BUNDLE = (0, 0.0)


class Replica:
    """One replica as the router sees it, or (``name`` is ``None``) the wake-up slot.

    Attributes:
        name: The replica's name.
        bundles: Id of every bundle in flight there -> (rows, predicted seconds).
        sent: When each of those bundles was sent, seconds.
        suspects: Ids of those bundles that carry a retried entry. At most one at a time.
        answered_at: When a bundle there was last answered or failed.
        busy_until: When a bundle would have to be sent to reach it as the predicted work ends: on this clock, and
            without the way there.
        held_until: When it may be chosen again; ``None``: now. ``inf``: after an answer.
        failures: Failures since its last answer.
        ejected_until: Until when it is ejected, and so held whatever it answers; ``None``: it is not.
        level: The level of `Slots` that it is in; -1 when it is in none.
        listed: Whether it is in the latest list of replicas.
        share: The part of a batch that is this router's there, over 0 to 1; 1 where no other router sends.
        riders: Rows of other routers that lately shared a batch with a bundle from here, on average.
        riders_s: How much longer they make an execution, seconds.
    """

    __slots__ = (
        "answered_at", "bundles", "busy_until", "ejected_until", "failures", "held_until", "level", "listed", "name",
        "riders", "riders_s", "sent", "share", "suspects",
    )  # fmt: skip

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.bundles: dict[int, tuple[int, float]] = {}
        self.sent: dict[int, float] = {}
        self.suspects: set[int] = set()
        self.share = 1.0
        self.riders = 0.0
        self.riders_s = 0.0
        self.busy_until = -inf
        self.answered_at = -inf
        self.held_until: float | None = None
        self.failures = 0
        self.ejected_until: float | None = None
        self.listed = True
        self.level = -1

    def __repr__(self) -> str:
        return f"<Replica {self.name} bundles={len(self.bundles)} held_until={self.held_until}>"

    def most_rows(self, max_rows: int) -> int:
        """Rows of a full batch that are this router's, of ``max_rows``."""
        return max(1, int(max_rows * self.share + 1e-9))

    def predicted_s(self, bundle_id: int) -> float:
        """Predicted execution time of a bundle in flight there, seconds; 0.0 when it is not."""
        return self.bundles.get(bundle_id, _NO_BUNDLE)[1]

    @property
    def last_s(self) -> float:
        """Predicted execution time of the bundle that was sent there last, seconds; 0.0 when none is in flight."""
        return next(reversed(self.bundles.values()), _NO_BUNDLE)[1]

    @property
    def rows(self) -> int:
        """Rows in flight there."""
        return sum(rows for rows, _ in self.bundles.values())


class Slots:
    """The slots of one model.

    Args:
        window: Bundles in flight per replica.
        max_ejected: Part of the replicas that may be ejected, 0 to 1.

    Attributes:
        round_trip_s: The way to a replica and back. The next bundle there could begin when an answer left, not when it
            came, and what is sent arrives later by its own way.
        pause_s: From the end of an execution until its replica can begin the next.
    """

    def __init__(self, window: int, max_ejected: float = 1.0) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.window = window
        self._max_ejected = max_ejected
        self.round_trip_s = 0.0
        self.pause_s = 0.0
        self.replicas: dict[str, Replica] = {}
        self._wake_up = Replica(None)
        # Replicas that may be chosen, by bundles in flight. Dicts serve as ordered sets: first come, first chosen.
        self._levels: list[dict[Replica, None]] = [{} for _ in range(window)]
        self._held: dict[Replica, None] = {}
        self._earliest: float | None = None

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
                replica = self.replicas[name] = Replica(name)
                self._place(replica)
        self.release_holds(now)
        return vanished

    def choose(self, avoid: str | None = None, *, suspect: bool = False) -> Replica | None:
        """The replica with a free slot where the next bundle should go, or ``None``.

        Args:
            avoid: A replica not to choose, unless it is the only one that is not held.
            suspect: The bundle carries a retried entry: it goes where no other such bundle is in flight, so that
                two suspects are never lost together.
        """
        if not self.replicas:
            return None if self._wake_up.bundles or self._wake_up.held_until is not None else self._wake_up
        if avoid is not None and len(self.replicas) - len(self._held) <= 1:
            avoid = None
        for in_flight, level in enumerate(self._levels):
            if not level:
                continue
            if avoid is None and not suspect:
                return next(iter(level)) if in_flight == 0 else min(level, key=_busy_until)
            fitting = [r for r in level if r.name != avoid and not (suspect and r.suspects)]
            if fitting:
                return min(fitting, key=_busy_until)
        return None

    def acquire(
        self, replica: Replica, bundle_id: int, rows: int, predicted_s: float, now: float, *, suspect: bool = False
    ) -> None:
        """Take a slot at a replica that `choose` returned."""
        replica.bundles[bundle_id] = (rows, predicted_s)
        replica.sent[bundle_id] = now
        if suspect:
            replica.suspects.add(bundle_id)
        replica.busy_until = max(now, replica.busy_until) + predicted_s + self.pause_s
        self._place(replica)

    def release(
        self, replica: Replica, bundle_id: int, now: float, *, answered: bool, outlook: Outlook | None = None
    ) -> None:
        """Free the slot of a bundle that was answered or failed.

        Args:
            replica: Where it was.
            bundle_id: The bundle.
            now: Seconds.
            answered: Whether it was answered.
            outlook: What the replica told of itself; ``None``: it has nothing but what came from here.
        """
        replica.bundles.pop(bundle_id, None)
        replica.sent.pop(bundle_id, None)
        replica.suspects.discard(bundle_id)
        if outlook is None:
            pause_s = self.pause_s if replica.bundles else 0.0
            busy_until, told, replica.share = now - self.round_trip_s + pause_s, 0, 1.0
        else:
            # What it knows of is in its own prediction already; bundles reach it in the order sent. The round trip is
            # left to what others sent meanwhile.
            busy_until, told, replica.share = now + outlook.busy_s, outlook.bundles, outlook.share
        for other, (_, predicted) in islice(replica.bundles.items(), told, None):
            busy_until = max(busy_until, replica.sent[other]) + predicted + self.pause_s
        replica.busy_until = busy_until
        replica.answered_at = now
        if answered:
            replica.failures = 0
            replica.held_until = replica.ejected_until
        elif replica.held_until == inf and not replica.bundles:
            replica.held_until = self._hold_end(replica, now)
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
            return abandoned
        if (replica := self.replicas.get(name)) is not None:
            replica.held_until = inf if replica.bundles else self._hold_end(replica, now)
            self._place(replica)
        return None

    def restore(self, replica: Replica, now: float) -> None:
        """End a quarantine without an answer: the replica is alive after all, and begins with what it has."""
        if replica.held_until == inf:
            replica.held_until = replica.ejected_until
            replica.busy_until = now + sum(predicted_s for _, predicted_s in replica.bundles.values())
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

    @property
    def next_release(self) -> float:
        """When the next hold ends by itself; ``inf`` when none does."""
        if not self._held and self._wake_up.held_until is None:
            return inf
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

    @property
    def in_use(self) -> int:
        """Slots in use. Bundles at held and at vanished replicas hold none."""
        bundles = sum(len(r.bundles) for r in self.replicas.values() if r.held_until is None)
        return bundles + len(self._wake_up.bundles)

    def earliest_start(self, now: float) -> float:
        """When the first usable replica is predicted to be done with what it has; ``now`` when none is usable."""
        if self._levels[0]:
            return now
        if self._earliest is None:
            busy = [r.busy_until for r in self.replicas.values() if r.held_until is None]
            self._earliest = min(busy, default=-inf)
        return max(now, self._earliest)

    @property
    def idle(self) -> int:
        """Usable replicas with nothing in flight."""
        return len(self._levels[0])

    def second_start(self, first: Replica, now: float) -> float:
        """When a usable replica other than ``first`` is predicted to be done; ``inf`` without one."""
        if len(self.replicas) < 2 and first.listed:
            return inf
        for replica in self._levels[0]:
            if replica is not first:
                return now
        others = [r.busy_until for r in self.replicas.values() if r is not first and r.held_until is None]
        return max(now, min(others, default=inf))

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
        """Put a replica where its state belongs: into one level, among the held, or nowhere."""
        self._earliest = None
        if replica.name is None:
            return
        if replica.level >= 0:
            del self._levels[replica.level][replica]
            replica.level = -1
        self._held.pop(replica, None)
        if not replica.listed:
            return
        if replica.held_until is not None:
            self._held[replica] = None
        elif len(replica.bundles) < self.window:
            replica.level = len(replica.bundles)
            self._levels[replica.level][replica] = None


def _busy_until(replica: Replica) -> float:
    return replica.busy_until


def _ejected_until(replica: Replica) -> float:
    return inf if replica.ejected_until is None else replica.ejected_until
