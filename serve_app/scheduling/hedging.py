"""Hedging: what a replica has had in flight for too long is also run elsewhere, while that can still be in time.

Not what is answered in parts: how long that takes is for the model to say.

A bundle is *overdue* when it has taken longer, from its predicted begin, than `HedgeSettings.patience` times its
execution, the usual overhead and `HedgeSettings.slack_s`: the replica hangs, or is far slower than it was. While
another replica is usable, an overdue one gets no new bundles until it answers something. Each of its entries becomes
two at the last moment at which it can be in time elsewhere: the one that runs, and a *hedge* that is queued as a retry,
away from that replica. So nothing runs twice while the first answer may still come in time. The first answer counts;
the other copy is recalled, and waste where it runs already.

A replica that the runtime found *unresponsive* is not waited for: all of its entries get their hedge at once, as if it
had died, but its answers still count if it comes back. So it is with one that is listed no more and still has requests
in flight.

This is hedging (Dean and Barroso, "The Tail at Scale", CACM 56(2), 2013), and it must not make an overload worse. An
entry gets one hedge at most that reaches a replica; hedges of overdue bundles are `HedgeSettings.share` of all rows in
the long run; and one is made only where it would be in time behind all that waits, so there are none above saturation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import Any

from serve_app.scheduling.admission import Bounds, meets_deadline_behind_queue
from serve_app.scheduling.batching.composition import execution_s
from serve_app.scheduling.bundles import Bundle, BundlesInFlight
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.model_state import ModelState
from serve_app.scheduling.placement.agenda import Agenda
from serve_app.scheduling.placement.devices import Device
from serve_app.scheduling.settings import HedgeSettings
from serve_app.scheduling.slots import Replica

_QUEUED, _RUNNING, _DONE = EntryState.QUEUED, EntryState.RUNNING, EntryState.DONE
_deadline = attrgetter("deadline")
_FULL_BUNDLES = 2


class Allowance:
    """A token bucket of rows that one model may run twice, and what came of it.

    Attributes:
        rows: Rows that may be hedged now.
        hedged: Hedges made.
        won: Hedges that were answered first.
        duplicates: Requests answered while another replica had them, too.
    """

    __slots__ = ("_most", "_share", "duplicates", "hedged", "rows", "won")

    def __init__(self, share: float, most: int) -> None:
        self._share = share
        self._most = float(most) if share else 0.0
        self.rows = self._most
        self.hedged = 0
        self.won = 0
        self.duplicates = 0

    def earn(self, rows: int) -> None:
        """So many rows were sent."""
        if self.rows < self._most:
            self.rows += self._share * rows

    def spend(self, rows: int) -> bool:
        """Take so many rows out, or tell that there are too few."""
        if rows > self.rows:
            return False
        self.rows -= rows
        return True


@dataclass(slots=True, eq=False)
class _Pair:
    """One request in two copies. ``lost`` tells of the original that its bundle has failed."""

    original: Entry
    bundle: Bundle
    hedge: Entry
    allowance: Allowance
    lost: bool = False


class Hedges:
    """The hedges of one scheduler. It changes queues, holds and counts of bytes; the scheduler does everything else.

    Args:
        settings: See `HedgeSettings`.
        models: By name.
        devices: By name of model.
        bounds: Of the process; hedges count as what they are, a second copy in flight.
        bundles: All that are in flight.
        agenda: Is told of models whose queue or holds changed.

    Attributes:
        check_at: When `check` must be called next, seconds, if anything is in flight; ``inf``: when something is sent.
        pairs: Requests in two copies, by id.
        suspects: Silent replicas.
        stuck: Whether something would be hedged if there were another usable replica.
    """

    def __init__(
        self,
        settings: HedgeSettings,
        models: Mapping[str, ModelState],
        devices: Mapping[str, Device],
        bounds: Bounds,
        bundles: BundlesInFlight,
        agenda: Agenda,
    ) -> None:
        self._settings = settings
        self._models = models
        self._devices = devices
        self._bounds = bounds
        self._bundles = bundles
        self._agenda = agenda
        self.suspects: set[Replica] = set()
        self._allowances: dict[str, Allowance] = {}
        self.check_at = inf
        self.pairs: dict[int, _Pair] = {}
        self.stuck = False

    def add_model(self, model: ModelState) -> None:
        """One more model has an allowance."""
        settings = model.settings
        self._allowances[settings.name] = Allowance(
            self._settings.share, _FULL_BUNDLES * settings.window * settings.max_rows
        )

    def remove_model(self, model: ModelState, detached_bundles: Iterable[Bundle]) -> None:
        """A model is gone: nothing that it has in flight is hedged any more. Copies there are still count as one."""
        del self._allowances[model.settings.name]
        self.suspects.difference_update(model.slots.replicas.values(), [bundle.replica for bundle in detached_bundles])

    def snapshot(self, model: str) -> dict[str, Any]:
        """This part of `Scheduler.snapshot`.

        Returns:
            ``hedges``: ``made``, ``won`` (answered first by the hedge) and ``duplicates`` (answered while another
            replica had it, too); and ``silent_replicas`` (names).
        """
        allowance = self._allowances[model]
        unresponsive = [str(r.name) for r in self._models[model].slots.replicas.values() if r in self.suspects]
        counts = {"made": allowance.hedged, "won": allowance.won, "duplicates": allowance.duplicates}
        return {"hedges": counts, "silent_replicas": unresponsive}

    # ---------------------------------------------------------------- events

    def launched(self, bundle: Bundle) -> None:
        """A bundle was sent to one of several replicas."""
        if self._settings.share:
            self._allowances[bundle.model].earn(bundle.rows)
            self.check_at = min(self.check_at, self._overdue_at(bundle))

    def left_to(self, bundle: Bundle, now: float) -> None:
        """It is the last that has an entry which was tied: it may be hedged now."""
        if bundle.settled:
            bundle.settled = False
            self.check_at = now

    def unresponsive(self, replica: Replica, now: float) -> None:
        """A replica sends no data: its entries get their hedges with the next `check`."""
        self.suspects.add(replica)
        for bundle_id in replica.bundles:
            if (bundle := self._bundles.get(bundle_id)) is not None:
                bundle.settled = False  # hedges that were too expensive are free now
        self.check_at = now

    def responsive(self, replica: Replica, now: float) -> None:
        """It sends data again, or is known to be dead; what had nowhere to go may have now."""
        self.suspects.discard(replica)
        if self.stuck:
            self.check_at = now

    def replicas_changed(self, now: float) -> None:
        """The list of replicas is another: what had nowhere to go may have now."""
        if self.suspects:
            self.suspects.intersection_update([bundle.replica for bundle in self._bundles.all()])
        if len(self._bundles):
            self.check_at = now

    def check(self, now: float) -> None:
        """Make hedges of what is due for it."""
        self.stuck = False
        self.check_at = min([self._look_at(bundle, now) for bundle in self._bundles.all()], default=inf)

    # ------------------------------------------------------------------ ends

    def settle(self, entry: Entry, *, answered: bool) -> bool:
        """A copy of a request ends, and with it the request: end the other copy, too.

        Args:
            entry: Either copy; any other entry is let through.
            answered: Whether it was answered.

        Returns:
            Whether this is the request's end. ``False``: the other copy's end in the same moment was.
        """
        pair = self.pairs.pop(entry.id, None)
        if pair is None:
            return entry.state is not _DONE or answered
        other = pair.hedge if entry is pair.original else pair.original
        if answered:
            allowance = pair.allowance
            allowance.won += other is pair.original
            allowance.duplicates += other.state is _RUNNING and not (other is pair.original and pair.lost)
        self._drop(other)
        return True

    def carried_elsewhere(self, entry: Entry) -> bool:
        """A copy failed with its bundle. Whether the request is left to the other copy; then this one is dealt with."""
        pair = self.pairs.get(entry.id)
        if pair is None:
            return False
        if entry is pair.original:
            pair.lost = True  # it stays RUNNING, in no bundle: the caller that had it accepted knows this copy
            return True
        if pair.lost or entry.attempts <= pair.original.attempts:
            return False  # it reached no replica, and is to be tried again
        pair.original.attempts = entry.attempts
        self._leave_to_original(pair)
        return True

    def refused(self, entry: Entry, again_at: float) -> bool:
        """Circuit breakers refuse what is queued. Whether it is a hedge, whose request is left to the first copy.

        Args:
            entry: Whatever is refused.
            again_at: When another hedge may be let through, seconds.
        """
        pair = self.pairs.get(entry.id)
        if pair is None or pair.lost:
            return False
        self._leave_to_original(pair)
        pair.bundle.settled = False
        self.check_at = min(self.check_at, again_at)
        return True

    # -------------------------------------------------------------- decisions

    def _look_at(self, bundle: Bundle, now: float) -> float:
        """Hedge what is due of a bundle. Returns when to look again, seconds; ``inf``: never."""
        replica = bundle.replica
        if bundle.detached:
            return inf
        model = self._models[bundle.model]
        slots = model.slots
        if bundle.settled or replica.name is None or (len(slots.replicas) < 2 and replica.listed):
            return inf  # `replicas_changed` tells when there is another
        unresponsive = replica in self.suspects
        if not unresponsive:
            if not self._settings.share:
                return inf
            if (due := self._overdue_at(bundle)) > now:
                return due
        waiting = [
            e
            for e in bundle.entries
            if e.state is _RUNNING and e.attempts == len(e.bundles) == 1 and e.id not in self.pairs and not e.answer_by
        ]
        self._agenda.touch(self._devices[bundle.model], model)
        slots.release_holds(now)
        other = slots.quickest(other_than=replica) if waiting else None
        if other is None:
            bundle.settled = not waiting
            self.stuck = self.stuck or bool(waiting)
            return slots.next_release if waiting else inf
        if replica.held_until is None and replica.listed:
            slots.quarantine(replica.name, now)
        following = self._hedge_due(
            waiting, model, bundle, now + model.backlog_s(other), now, unresponsive=unresponsive
        )
        bundle.settled = following == inf
        return following

    def _hedge_due(
        self, waiting: list[Entry], model: ModelState, bundle: Bundle, begin: float, now: float, *, unresponsive: bool
    ) -> float:
        """Make the hedges of entries that cannot wait longer. Returns when the next of them cannot, seconds."""
        settings = model.settings
        following = inf
        for entry in sorted(waiting, key=_deadline):
            latency = model.latencies.of(entry.variant)
            solo_s = execution_s(latency, entry.rows, entry.bucket, settings.max_rows)
            if unresponsive:
                self._make_hedge(entry, model, bundle)
                continue
            if begin + solo_s + model.overhead.seconds <= entry.deadline:
                latest = entry.deadline - self._patience_s(model, solo_s) - (begin - now)
                if begin > now:
                    latest -= model.full_s(entry)  # what follows what runs there now
                if latest > now:
                    following = min(following, latest)
                elif self._affordable(entry, model, now):
                    self._make_hedge(entry, model, bundle)
                begin += solo_s  # hedges travel alone, one after the other
        return following

    def _affordable(self, entry: Entry, model: ModelState, now: float) -> bool:
        """Whether there is room, it would be in time behind all that waits, and the share of extra work allows it."""
        priority = entry.priority
        return (
            self._bounds.room(priority, entry.nbytes) is priority
            and meets_deadline_behind_queue(entry, model, self._devices[entry.model], now)
            and self._allowances[entry.model].spend(entry.rows)
        )

    def _make_hedge(self, entry: Entry, model: ModelState, bundle: Bundle) -> None:
        hedge = entry.hedge(str(bundle.replica.name))
        hedge.state = _QUEUED
        self._bounds.nbytes += hedge.nbytes
        allowance = self._allowances[entry.model]
        allowance.hedged += 1
        self.pairs[entry.id] = _Pair(entry, bundle, hedge, allowance)
        model.queue.push(hedge)

    def _leave_to_original(self, pair: _Pair) -> None:
        del self.pairs[pair.hedge.id]
        self._drop(pair.hedge)

    def _drop(self, copy: Entry) -> None:
        """End a copy of a request, without reporting it."""
        if copy.state is _QUEUED:
            model = self._models[copy.model]
            if copy in model.queue:
                model.queue.remove(copy)
                self._agenda.touch(self._devices[copy.model], model)
        else:
            self._bundles.recall(copy)
        copy.state = _DONE
        self._bounds.nbytes -= copy.nbytes

    def _overdue_at(self, bundle: Bundle) -> float:
        """When a bundle is overdue, if its replica answers nothing until then: what it has may come in any order."""
        model, replica = self._models[bundle.model], bundle.replica
        expected_s = model.backlog_s(replica) or model.settings.slo_s
        return max(bundle.begins, replica.last_answer_at) + self._patience_s(model, expected_s)

    def _patience_s(self, model: ModelState, predicted_s: float) -> float:
        """How long what is predicted to take so long may take before it is overdue."""
        settings = self._settings
        return settings.patience * predicted_s + model.overhead.seconds + settings.slack_s
