"""The scheduler: events in, decisions out. The router's core drives it (`serve_app.scheduling.core`).

    on_arrival ──> rejected
        │
        v                 on_done                 answered
      QUEUED ──decide──> RUNNING ──────────────> DONE
        │  ^               │  │
        │  └──on_failed────┘  │   once, in a bundle of its own, away from that replica
        └─────────────────────┴──> DONE           expired (decide), cancelled (on_cancel), poisoned (on_failed)

An answer may come in parts: after the first (on_part) its entry is RUNNING until the last, and is not tried elsewhere.
An entry queued when its circuit breaker opens is refused (decide) or runs on a fallback. Entries queued for a removed
model are refused (decide); running ones may still be answered, but are not tried elsewhere.

Every accepted entry ends exactly once: in a return value of `on_done`, `on_failed`, `on_timeout` or `decide`, or by the
caller's own `on_cancel`. Its bytes count against the bounds until then. A bundle keeps its slot until it is answered or
fails, or its replica is quarantined or vanishes, whatever became of its entries. Only bundles that reached a replica
count as a try.

After any event, call `decide` once (events of one event-loop turn may share a call), and again at `wake_at`. It looks
only at models with events (`Agenda`), so idle models cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from serve_app.domain.priority import Priority
from serve_app.scheduling.admission import (
    already_late,
    largest_tenant_queues,
    removed_model,
    too_slow,
    unknown_model,
)
from serve_app.scheduling.bundles import Bundle
from serve_app.scheduling.decisions import Change, Decisions, Dispatch, Rejection, Requeue
from serve_app.scheduling.demand import ModelDemand
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.health.breaker import BundleOutcome
from serve_app.scheduling.health.breakers import Breakers, Refused
from serve_app.scheduling.model_state import ModelState
from serve_app.scheduling.placement.agenda import Agenda
from serve_app.scheduling.placement.devices import DedicatedDevice, Device, NextBundle, shared_by
from serve_app.scheduling.queueing.tenant_queue import TenantQueue
from serve_app.scheduling.settings import ClassSettings, ModelScheduling, ProcessLimits
from serve_app.scheduling.silence import SilentReplicas
from serve_app.scheduling.slots import Replica
from serve_app.scheduling.view import SchedulerView

_NEW, _QUEUED, _RUNNING, _DONE = EntryState.NEW, EntryState.QUEUED, EntryState.RUNNING, EntryState.DONE
_PRIORITIES = tuple(Priority)
_MAX_ATTEMPTS = 2
_MOST_DISPLACED = 64
"""Most entries that make room for one."""


class Scheduler(SchedulerView):
    """Queues entries of several models by class and deadline, and decides which bundle goes where.

    Args:
        classes: Limits of every class. Raises ValueError if one is missing or the shares exceed 1 in sum.
        limits: Limits of the process.
        devices: Shared devices, each with a name; models may join later. Raises ValueError if a model is on two.

    Methods that name a model raise KeyError if it is unknown, except `on_arrival` and `precheck`, which reject, and
    those that bundles and replicas of a removed model may still use: it has no replica, and no fallback.
    """

    def __init__(
        self,
        models: Iterable[ModelScheduling],
        classes: Mapping[Priority, ClassSettings],
        limits: ProcessLimits,
        devices: Iterable[Device] = (),
    ) -> None:
        super().__init__(classes, limits, devices)
        self._agenda = Agenda()
        self._silent = SilentReplicas(self._bundles, self._models, self._touch)
        self._last_bundle = 0
        # Answered after their deadline; the next `decide` reports them.
        self._late: list[Entry] = []
        # Cannot run any more, since their model was removed; they are RUNNING, in no bundle, until
        # the next `decide` reports them.
        self._removed_entries: list[Entry] = []
        self._refusals: dict[str, Rejection] = {}  # of removed models
        # Made room for other tenants' entries; the next `decide` reports them, too.
        self._displaced: list[Refused] = []
        devices_of = shared_by(self.devices.values())
        for model in models:
            self.add_model(model, devices_of.get(model.name))

    # ---------------------------------------------------------------- models

    def add_model(self, settings: ModelScheduling, device: str | None = None) -> None:
        """Add a model, without replicas and with unknown latency.

        Args:
            settings: Raises ValueError if there is a model of that name.
            device: Name of the device that it shares; ``None``: its replicas are its own. Raises KeyError if it is
                unknown, and ValueError if the device cannot take the model.
        """
        name = settings.name
        if name in self._models:
            raise ValueError(f"model {name} is scheduled already")
        model = ModelState(settings, self._bounds.totals, self._network_s)
        runs_on = DedicatedDevice(model) if device is None else self.devices[device]
        runs_on.join(model)
        self._models[name] = model
        self._device_of[name] = runs_on

    def remove_model(
        self, name: str, now: float, successor: str | None = None, refusal: Rejection | None = None
    ) -> list[int]:
        """Remove a model. One added under its name later is a new one.

        Its queued entries arrive at its successor, or are refused by the next `decide`. Its bundles in flight may still
        be answered or fail, and their entries expire at their deadlines; those of a failed one are refused, too.

        Args:
            name: Raises KeyError if it is unknown.
            successor: Another model that gets the queued entries, except for variants that it does not have. Raises
                KeyError if it is unknown, and ValueError if it is the same.
            refusal: For refused entries; ``None``: that the model was removed.

        Returns:
            The bundles that clients still wait for.
        """
        if successor == name:
            raise ValueError(f"model {name} cannot be its own successor")
        successor_model = None if successor is None else self._models[successor]
        model = self._models.pop(name)
        self._refusals[name] = refusal or removed_model(name)
        device = self._device_of.pop(name)
        for entry in [entry for entry in model.queue.clear() if not entry.left_to_bundle()]:
            self._move_to_successor(entry, successor_model, now)
        detached_bundles = [bundle for bundle in self._bundles.all() if bundle.model == name and not bundle.detached]
        device.leave(model, [bundle.id for bundle in detached_bundles])
        if device.name:
            self._agenda.touched[device] = None
        else:
            self._agenda.forget(device)
        self._silent.forget([*model.slots.replicas.values(), *(bundle.replica for bundle in detached_bundles)])
        for bundle in detached_bundles:
            bundle.detached = True
            bundle.replica.listed = False
            if bundle.replica.name is None:
                for entry in bundle.entries:
                    if entry.state is _RUNNING:
                        self._move_to_successor(entry, successor_model, now)
                self._bundles.abandon(bundle.id)
            else:
                self._bundles.forget_ended(bundle.id)
        return [bundle.id for bundle in detached_bundles if self._bundles.get(bundle.id) is not None]

    def _move_to_successor(self, entry: Entry, successor_model: ModelState | None, now: float) -> None:
        if successor_model is None or (entry.variant and entry.variant not in successor_model.settings.variants):
            self._fail_removed(entry)
            return
        self._end(entry)  # it arrives anew, where there may be no room for it
        entry.model, entry.state, entry.bundles = successor_model.settings.name, _NEW, ()
        entry.attempts, entry.avoid = 0, None
        rejection = self.on_arrival(entry, now)
        if rejection is not None:
            self._displaced.append(Refused(entry, rejection))

    def _fail_removed(self, entry: Entry) -> None:
        entry.state = _RUNNING
        self._removed_entries.append(entry)

    def _touch(self, model: ModelState) -> None:
        self._agenda.touch(self._device_of[model.settings.name], model)

    # ---------------------------------------------------------------- events

    def on_arrival(self, entry: Entry, now: float) -> Rejection | None:
        """Accept an entry, or return the reason for refusing it.

        Args:
            entry: In state NEW (ValueError otherwise). Its class may be lowered by demotion.

        Returns:
            ``None`` if it is QUEUED. Otherwise the reason; the entry is DONE.
        """
        if entry.state is not _NEW:
            raise ValueError(f"{entry!r} has arrived already")
        model = self._models.get(entry.model)
        if model is None:
            rejection: Rejection | None = unknown_model(entry.model)
        elif not entry.deadline > now:
            rejection = already_late()
        elif (breakers := model.breakers) is not None and breakers.tripped and (refused := breakers.admit(entry, now)):
            rejection = refused
        elif not model.slots.replicas and (refusal := self._device_of[entry.model].refusal(model, now)) is not None:
            rejection = refusal
        else:
            bounds = self._bounds
            if bounds.fits(entry.priority, entry.nbytes) or self._displace(entry, now):
                priority: Priority | None = entry.priority
            else:
                priority = bounds.room(entry.priority, entry.nbytes)
            if priority is None:
                model.demand.add(entry, now, turned_away=True)
                rejection = self._queue_full(model, entry.priority, entry.nbytes, now)
            else:
                device = self._device_of[entry.model]
                ready_s = 0.0 if model.slots.replicas else device.ready_s(model, now)
                rejection = too_slow(entry, model, now, ready_s)
                if rejection is None:
                    model.demand.add(entry, now)
                    entry.priority = priority
                    device.arrived(entry, model, now)
                    device.active[model] = self._agenda.touched[device] = None
                    model.queue.fresh[priority - 1].push(entry)
                    entry.state = _QUEUED
                    bounds.nbytes += entry.nbytes
                    return None
                if device.late(model, now):
                    self._agenda.touched[device] = None
        entry.state = _DONE
        return rejection

    def on_cancel(self, entry: Entry, now: float) -> None:  # noqa: ARG002 - every event carries its time
        """Cancel an entry whose client has left.

        A running one is recalled by the next `decide`, and counts until it is answered.
        """
        if entry.state is _QUEUED:
            model = self._models[entry.model]
            model.queue.remove(entry)
            self._touch(model)
            self._bundles.recall(entry)
            self._end(entry)
        elif entry.state is _RUNNING:
            self._bundles.recall(entry)
            self._end(entry)

    def on_replicas(self, model: str, replicas: Collection[str], now: float) -> None:
        """Replace the list of replicas. Bundles at one that vanished may still be answered or fail."""
        known = self._models[model]
        device = self._device_of[model]
        self._agenda.touch(device, known)
        gone = known.slots.set_replicas(replicas, now)
        self._let_go(gone, device)
        if self._silent.replicas:
            self._silent.keep([bundle.replica for bundle in self._bundles.all()])

    def on_device_event(self, device: str, event: object, now: float) -> None:
        """Pass an event to a shared device (`Device.on_event`). Raises KeyError if the device is unknown.

        Bundles at a place that vanished may still be answered or fail.
        """
        shared = self.devices[device]
        change = shared.on_event(event, now)
        for model, refusal in change.refused:
            for entry in [entry for entry in model.queue.clear() if not entry.left_to_bundle()]:
                self._end(entry)
                self._displaced.append(Refused(entry, refusal))
        for model, replicas in change.replicas:
            self._let_go(model.slots.set_replicas(replicas, now), shared)
            shared.active[model] = None
        self._agenda.touched[shared] = None
        for model in change.gained:
            self._silent.try_all_elsewhere(model)

    def on_linked(self, model: str, replica: str, *, linked: bool) -> None:
        """Set whether a replica shares the table of ties; an unknown one is ignored."""
        if (known := self._models[model].slots.replicas.get(replica)) is not None:
            known.linked = linked

    def on_done(
        self,
        bundle_id: int,
        executions: Sequence[tuple[int, int, float, str]],
        now: float,
        waited_s: float = 0.0,
        runs_s: float = 0.0,
        reported_backlog_s: float = 0.0,
        returned: Collection[Entry] = (),
        dropped: Collection[Entry] = (),
    ) -> list[Entry]:
        """Record the answer of a bundle: free its slot and feed the latency models.

        Args:
            bundle_id: Ignored if unknown.
            executions: ``(rows, bucket, seconds, variant)`` of the backend runs that carried it.
            waited_s: Time of the bundle at the replica's gate.
            runs_s: Predicted time until the replica's present run ends.
            reported_backlog_s: Predicted time until the replica is idle, other routers' work included.
            returned: Entries that were not run and come back. Those still awaited that no other replica has are queued
                again, as if they had never been sent.
            dropped: Entries that were not run and will not be.

        Returns:
            The entries to answer, now DONE, without those that expired, were cancelled, or came back.
        """
        bundle = self._bundles.pop(bundle_id)
        if bundle is None:
            return []
        model = None if bundle.detached else self._models[bundle.model]
        if model is not None:
            model.answered(bundle, executions, now, waited_s, runs_s, reported_backlog_s)
            device = self._device_of[bundle.model]
            device.ended(bundle_id)
            device.active[model] = self._agenda.touched[device] = None
        answered: list[Entry] = []
        vain = nbytes = 0
        if bundle.replica in self._silent.replicas:  # it works: its other entries are not sent there again
            self._silent.end(bundle.replica, model)
        # the entry is                      and the replica                         then
        # QUEUED, and still in this bundle  answers it in time                      answered, out of the queue
        # QUEUED, and still in this bundle  gives it back, drops it, or is late     stays queued, not in this bundle
        # DONE, or past its deadline        whatever it says                        waste; RUNNING: expires in `decide`
        # RUNNING, in other bundles too     gives it back or drops it, or another   left to the others
        #                                   one has begun to answer it in parts
        # RUNNING, here alone               gives it back                           queued again
        # RUNNING                           anything else                           answered; recalled from others
        for entry in bundle.entries:
            if entry.state is _QUEUED and bundle_id in entry.bundles:  # its replica was silent: the answer still counts
                if entry.deadline <= now or entry in returned or entry in dropped:
                    entry.drop_carrier(bundle_id)
                    continue
                self._models[entry.model].queue.remove(entry)
            elif entry.state is not _RUNNING or entry.deadline <= now:
                if entry not in returned and entry not in dropped:
                    vain += entry.rows
                if entry.state is _RUNNING:
                    self._late.append(entry)
                continue
            elif (
                len(entry.bundles) > 1
                and entry.begun != bundle_id
                and (entry.begun or entry in returned or entry in dropped)
            ):
                self._leave(entry, bundle_id, tried=False)
                continue
            elif returned and entry in returned and entry.begun != bundle_id:
                if bundle.replica.name is not None:  # wake-up bundles are not counted
                    entry.uncount_attempt()
                self._requeue(entry, model)
                continue
            elif entry.attempts > 1 and len(entry.bundles) > 1:
                self._bundles.recall(entry, but=bundle_id)
            entry.state = _DONE
            nbytes += entry.nbytes
            answered.append(entry)
        self._bounds.nbytes -= nbytes
        if model is not None and vain and executions:
            model.wasted_rows += vain
        return answered

    def on_part(self, bundle_id: int, entry: Entry, now: float) -> bool:
        """Record a part of an entry's answer. With the first it is in time, and may take until its ``answer_by``.

        The next `decide` recalls it from other replicas: one of them may have begun it as well.

        Returns:
            Whether it is still awaited from this bundle.
        """
        if entry.state is not _RUNNING or entry.deadline <= now or bundle_id not in entry.bundles:
            return False
        if not entry.begun:
            entry.begun = bundle_id
            entry.deadline = max(entry.deadline, entry.answer_by)
            for each in entry.bundles:
                if (bundle := self._bundles.get(each)) is not None:
                    bundle.postponed()
            self._bundles.recall(entry, but=bundle_id)
        return entry.begun == bundle_id

    def on_outcome(self, bundle_id: int, variant: str, outcome: BundleOutcome, now: float) -> None:
        """Report an answer to the circuit breaker, before `on_done`, which may forget the bundle.

        Args:
            bundle_id: Ignored if unknown.
            variant: As dispatched.
            outcome: Of all its entries together.
        """
        bundle = self._bundles.get(bundle_id)
        if bundle is not None and not bundle.detached:
            model = self._models[bundle.model]
            if model.breakers is not None:
                model.breakers.observe(variant, outcome, bundle.replica, model.slots, now)
                if model.breakers.changes:
                    self._touch(model)

    def on_failed(self, bundle_id: int, now: float, replica_lost: bool, *, reached: bool | None = None) -> Requeue:
        """Record that a bundle failed as a whole, and free its slot.

        Its entries try once more, each in a bundle of its own. Entries of a bundle that reached no replica are queued
        as if it had never been sent; its destination is not chosen for a while, which prevents a tight loop.

        Args:
            bundle_id: Ignored if unknown.
            replica_lost: Whether the replica is believed dead or unreachable, so that it is not chosen for a while.
            reached: Whether a replica may have begun to run it. ``None``: every bundle reached its replica, and a
                wake-up bundle none.

        Returns:
            The fate of the entries. The caller answers the poisoned and the expired ones.
        """
        bundle = self._bundles.pop(bundle_id)
        if bundle is None:
            return Requeue([], [], [])
        model = None if bundle.detached else self._models[bundle.model]
        if model is not None:
            model.slots.release(bundle.replica, bundle_id, now, answered=False)
            self._device_of[bundle.model].ended(bundle_id)
        self._silent.forget((bundle.replica,))
        counted = bundle.replica.name is not None
        if reached is None:
            reached = counted
        if model is not None and (replica_lost or not reached):
            model.slots.fail(bundle.replica, now)
        if reached is not counted:
            for entry in bundle.entries:
                if len(entry.bundles) > 1:
                    continue
                if reached:
                    entry.attempts += 1
                else:
                    entry.uncount_attempt()
        return self._retry(model, bundle, now, reached=reached)

    def on_timeout(self, bundle_id: int, now: float) -> Requeue:
        """Give up an overdue bundle: quarantine its replica and try its entries elsewhere.

        The bundle stays known without its entries, so that a late `on_done` ends the quarantine.

        Returns:
            As `on_failed`.
        """
        bundle = self._bundles.get(bundle_id)
        if bundle is None:
            return Requeue([], [], [])
        if bundle.replica.listed:
            self.quarantine(bundle.model, bundle.replica.name, now)
        model = None if bundle.detached else self._models[bundle.model]
        result = self._retry(model, bundle, now, reached=True)
        self._bundles.abandon(bundle_id)
        return result

    def quarantine(self, model: str, replica: str | None, now: float) -> None:
        """Hold a wedged replica: it has no slots and is not chosen until it answers a bundle or is listed anew.

        Entries in its bundles may still be answered, and expire at their deadlines; `on_timeout` has them tried
        elsewhere. ``None`` gives up the wake-up bundle.
        """
        known, device = self._models[model], self._device_of[model]
        self._agenda.touch(device, known)
        quarantined = None if replica is None else known.slots.replicas.get(replica)
        if quarantined is not None:
            for bundle_id in quarantined.bundles:
                device.ended(bundle_id)
        abandoned = known.slots.quarantine(replica, now)
        self._let_go(() if abandoned is None else (abandoned,), device)

    def _let_go(self, vanished: Iterable[Replica], device: Device) -> None:
        for replica in vanished:
            for bundle_id in list(replica.bundles):
                device.ended(bundle_id)
                self._bundles.forget_ended(bundle_id)

    def on_unresponsive(self, model: str, replica: str, now: float) -> None:
        """Quarantine an unresponsive replica, and try its entries elsewhere now. Ignored if it is unknown.

        Its answers still count, and `on_responsive` ends the hold. It need not be listed any more.
        """
        for found in self._silent.with_bundles(model, replica):
            if found.listed:
                self.quarantine(model, replica, now)
            self._silent.begin(found)

    def on_responsive(self, model: str, replica: str, now: float) -> None:  # noqa: ARG002 - see `on_cancel`
        """Record that a replica sends data again: it may get work, whether it has answered a bundle or not."""
        known = self._models[model]
        if (listed := known.slots.replicas.get(replica)) is not None:
            known.slots.restore(listed)
            self._touch(known)
        for found in self._silent.with_bundles(model, replica):
            self._silent.end(found, known)

    # ------------------------------------------------------------------ demand

    def on_turned_away(self, model: str, priority: Priority) -> None:
        """Count a request that `precheck` refused. Ignored if its model is unknown."""
        if (known := self._models.get(model)) is not None:
            known.demand.add_unread(priority)
            known.demand.turned_away_rows += 1

    def read_demand(self, model: str, now: float) -> ModelDemand:
        """What was asked of a model since the last call."""
        return self._models[model].read_demand(now)

    # ----------------------------------------------- what is learned of models

    def seed(self, model: str, executions: Iterable[tuple[int, int, float, str]]) -> None:
        """Load a replica's warm-up profile: ``(rows, bucket, seconds, variant)`` as in `on_done`."""
        known = self._models[model]
        known.latencies.seed(executions)
        self._touch(known)

    def set_joins(self, model: str, variant: str, *, joins: bool) -> None:
        """Set whether requests for a variant (``""``: the exact model) may share a batch, from the next decision on."""
        known = self._models[model]
        known.set_joins(variant, joins=joins)
        self._touch(known)

    def set_rows(self, model: str, rows: int) -> None:
        """Set the most rows of a model's batch, from the next decision on."""
        known = self._models[model]
        known.set_rows(rows)
        self._touch(known)

    # ------------------------------------------------------------- decisions

    def decide(self, now: float) -> Decisions:
        """End expired entries, then form bundles while replicas have room.

        It has four parts, in this order:

        1. Entries that ended in flight are collected: answers that came after their deadline (`_late`), and running
        entries whose deadline has passed, from a heap of bundles. No queue is searched for that.

        2. Each device with an event, or whose time has come (`Agenda`), expires the queues of its active models, lets
        circuit breakers take out entries that they refuse, and gives bundles until none goes: no replica has room, or
        the device waits for more rows. A device decides which model is next and how many rows go; this loop only
        launches. So a decision costs as much as has happened since the last one, and not as much as there are models.

        3. Entries are ended, once each. An entry may be found twice: tied to two replicas it is due in two bundles, and
        a refused one may have expired at the same moment. The first list that has it counts, by its state.

        4. Recalls are handed over last: an entry that ended in part 3 is recalled in the same decision.

          | an entry is in | because | its client gets |
          |---|---|---|
          | ``expired`` | its deadline passed, queued or running | 504, or 503 if no replica was within reach |
          | ``given_up`` | it cannot be in time any more, or only at the cost of more others | 504 |
          | ``refused`` | its model is gone or fails, or a tenant with less in the queue has its place | the refusal |
          | ``dispatches`` | it is sent now; one that is tied is in several | its answer |
        """
        expired: list[Entry] = []
        if self._late:
            expired += [entry for entry in self._late if entry.state is _RUNNING]
            self._late.clear()
        due = self._bundles.due
        if due and due[0][0] <= now:
            expired += self._bundles.pop_due(now)
        dispatches: list[Dispatch] = []
        given_up: list[Entry] = []
        refused: list[Refused] = []
        changes: list[Change] = []
        orders: list[Any] = []
        for device in self._agenda.take(now):
            waiting = False
            for model in device.active:
                if model.slots.holding:
                    model.slots.release_holds(now)
                if model.queue.total.rows:
                    model.queue.expire(now, expired)
                    waiting = True
                breakers = model.breakers
                if breakers is not None and (breakers.tripped or breakers.changes):
                    waiting = self._sweep(model, breakers, now, refused, changes) or waiting
            while waiting and (following := device.next_bundle(now, given_up)) is not None:
                dispatches += self._launch(following, now)
                waiting = len(device.active) > 1 or following.model.queue.total.rows > 0
            if not waiting:
                device.recheck_at = inf
            if device.name:  # that of a single model gives no orders
                orders += device.orders(now, given_up)
            wake_at = device.wake_at
            if wake_at < inf or device in self._agenda.due:
                self._agenda.note(device, wake_at)
        if len(expired) > 1:
            expired = list(dict.fromkeys(expired))  # a tied one is due in both of its bundles
        if self._removed_entries:
            removed = [entry for entry in self._removed_entries if entry.state is _RUNNING]
            refused += [Refused(entry, self._refusals[entry.model]) for entry in removed]
            self._removed_entries.clear()
        if expired or given_up or refused:
            refused = self._end_all(expired, given_up, refused)
        if self._displaced:
            refused += self._displaced
            self._displaced = []
        recalls, self._bundles.recalls = self._bundles.recalls, {}
        return Decisions(dispatches, expired, given_up, refused or (), changes or (), recalls, orders or ())

    @property
    def wake_at(self) -> float | None:
        """When `decide` must be called without another event; ``None``: never."""
        agenda = self._agenda
        for device in agenda.touched:
            agenda.note(device, device.wake_at)
        earliest = self._bundles.next_deadline()
        if agenda.due:
            earliest = min(earliest, agenda.next_at())
        for entry in self._late:
            earliest = min(earliest, entry.deadline)
        return None if earliest == inf else earliest

    def _sweep(
        self, model: ModelState, breakers: Breakers, now: float, refused: list[Refused], changes: list[Change]
    ) -> bool:
        """Remove entries that breakers refuse. Returns whether entries came back into the queue."""
        refused += breakers.sweep(model.queue, now)
        closed = bool(breakers.changes) and not breakers.tripped
        if closed:
            self._silent.try_all_elsewhere(model)
        changes += breakers.changes
        breakers.changes.clear()
        return closed and model.queue.total.rows > 0

    def _end_all(self, expired: list[Entry], given_up: list[Entry], refused: list[Refused]) -> list[Refused]:
        """End entries, except those that a bundle still carries. Returns the refused ones."""
        refused = [each for each in refused if not (each[0].state is _QUEUED and each[0].left_to_bundle())]
        for entry in (*expired, *given_up):
            if (model := self._models.get(entry.model)) is not None:
                model.demand.turned_away_rows += entry.rows
        for entry in expired:
            if entry.answer_by:
                self._bundles.recall(entry)  # it runs until it is recalled; any other runs to its end
            self._end(entry)
        for entry in given_up:
            self._end(entry)
        for entry, _ in refused:
            self._end(entry)
        return refused

    def _launch(self, following: NextBundle, now: float) -> list[Dispatch]:
        """Send a bundle to its replica and to those it is tied to: the first free one takes each entry."""
        model, replica, entries, rows, bucket, variant, predicted_s, tied = following
        suspect = entries[0].attempts > 0
        attempt = 1
        if replica.name is None:
            # It only wakes the model up: the variant is decided when its entries are sent again.
            attempt, variant = 0, entries[0].variant
        for entry in entries:
            entry.state = _RUNNING
            entry.attempts += attempt
            if entry.variant != variant:
                entry.variant = entry.batch_key = variant
                if (breaker := model.latencies.limited.get(variant)) is not None:
                    breaker.admit(entry)  # it is a probe: `compose` has left room for it
        exact = entries[0].batch_key != "" or (bool(model.latencies.limited) and model.has_limited_fallbacks)
        overhead_s = model.overhead.at(now)
        high, normal, low = model.queue.fresh
        tenants = high.has_tenants or normal.has_tenants or low.has_tenants
        name, device = model.settings.name, self._device_of[model.settings.name]
        dispatches: list[Dispatch] = []
        for to in (replica, *tied):
            self._last_bundle = bundle_id = self._last_bundle + 1
            for entry in entries:
                entry.bundles += (bundle_id,)
            model.slots.acquire(to, bundle_id, entries, predicted_s, now, suspect=suspect, tenants=tenants)
            self._bundles.add(Bundle(bundle_id, name, to, entries, rows, now))
            device.launched(bundle_id, following, now)
            dispatches.append(
                Dispatch(bundle_id, name, to.name, entries, rows, bucket, predicted_s, variant, exact, overhead_s)
            )
        return dispatches

    def _requeue(self, entry: Entry, model: ModelState | None) -> bool:
        """Queue an entry again. Returns whether its model is still there; otherwise it is refused."""
        if model is None:
            self._fail_removed(entry)
            return False
        entry.state, entry.bundles = _QUEUED, ()
        model.queue.push(entry)
        return True

    def _retry(self, model: ModelState | None, bundle: Bundle, now: float, *, reached: bool) -> Requeue:
        if model is not None:
            self._touch(model)
        result = Requeue([], [], [])
        broken: list[Entry] = []
        for entry in bundle.entries:
            if entry.state is not _RUNNING:
                if entry.state is _QUEUED:
                    entry.drop_carrier(bundle.id)
                continue
            if entry.begun == bundle.id:
                self._end(entry)
                broken.append(entry)
            elif len(entry.bundles) > 1:
                entry.avoid = bundle.replica.name if reached else entry.avoid
                self._leave(entry, bundle.id, tried=reached)
            elif entry.deadline <= now:
                self._end(entry)
                result.expired.append(entry)
            elif entry.attempts >= _MAX_ATTEMPTS:
                self._end(entry)
                result.poisoned.append(entry)
            else:
                if reached and bundle.replica.name is not None:
                    entry.avoid = bundle.replica.name
                if self._requeue(entry, model):
                    result.requeued.append(entry)
        return result._replace(broken=broken) if broken else result

    def _leave(self, entry: Entry, bundle_id: int, *, tried: bool) -> None:
        """Leave an entry to the other replicas that have it. ``tried``: whether this one may have begun it."""
        if not tried and entry.attempts > 1 and bundle_id == entry.bundles[-1]:
            entry.attempts -= 1  # its second try did not take place
        entry.drop_carrier(bundle_id)
        if self._silent.replicas:
            self._silent.try_last_elsewhere(entry)

    def _end(self, entry: Entry) -> None:
        entry.state = _DONE
        self._bounds.nbytes -= entry.nbytes

    def _displace(self, entry: Entry, now: float) -> bool:
        """Remove the newest entries of others in favour of a tenant with less than its part of a full queue.

        Returns:
            Whether there is room now.
        """
        bounds, priority, asker = self._bounds, entry.priority, entry.attributes
        for _ in range(_MOST_DISPLACED):
            largest = largest_tenant_queues(self._models, bounds, priority, entry.nbytes, asker.tenant, asker.weight)
            if largest is None:
                break
            name, queue = max(largest, key=_entries)
            newest = queue.newest()
            queue.remove(newest)
            self._end(newest)
            self._touch(self._models[name])
            self._displaced.append(Refused(newest, self._queue_full(self._models[name], priority, newest.nbytes, now)))
            if bounds.fits(priority, entry.nbytes):
                return True
        return False


def _entries(of: tuple[str, TenantQueue]) -> int:
    return len(of[1])
