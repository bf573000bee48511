"""The router's core: everything a router does around its `Scheduler`, without a clock and without I/O.

    events (arrive, answered, lost, ...) ──> RouterCore ──> Scheduler
                                                 │
                                                 └──────> Driver: send, recall, fail, set a timer

A server's dispatcher drives it by an event loop, the simulator by its virtual clock, so both behave alike. Decisions
are made once per turn of the driver, so arrivals of one turn go out together.

A driver calls `pump` when asked to (`Driver.pump_soon`) and `fire` when the timer is due. It ends every bundle it sent
by exactly one of `answered`, `refused` and `lost`, and every wake-up by one of `woken` and `refused`. Parts of answers
before that are reported by `part`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Generic

from serve_app.errors import RETURNED, DeadlineExceeded, InferenceFailed
from serve_app.scheduling.decisions import Decisions, Dispatch, Rejection, Requeue
from serve_app.scheduling.driver import CarryOut, Driver, Places, SentT, Why
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.health.breaker import BundleOutcome
from serve_app.scheduling.scheduler import Scheduler

_PATIENCE = 4
"""Beyond the time-out, a bundle may take this many times its predicted execution before its replica is given up."""
_LATE, _FAILED = DeadlineExceeded.code, InferenceFailed.code

Execution = tuple[int, int, float, str]
"""``(rows, bucket, seconds, variant)`` of a run of the backend."""


class _Flight(Generic[SentT]):
    """A bundle in flight.

    Attributes:
        sent: The driver's state.
        due: When it counts as not answered; ``inf`` once it has.
        tied: Whether its entries have places.
    """

    __slots__ = ("dispatch", "due", "sent", "tied")

    def __init__(self, dispatch: Dispatch, sent: SentT, due: float, *, tied: bool) -> None:
        self.dispatch = dispatch
        self.sent = sent
        self.due = due
        self.tied = tied


class RouterCore(Generic[SentT]):
    """Drives one `Scheduler`, and is driven by a `Driver`.

    Args:
        scheduler: Gets its events from here only.
        bundle_timeout_s: After this time without an answer a replica counts as wedged: its bundles' living entries go
            elsewhere once, and it gets no more until it answers.
        places: Of ties; ``None``: replicas cannot agree, and each runs what it has.
        carry_out: Carries out the orders of shared devices. Raises ValueError if it is missing and the scheduler has
            such devices.

    Attributes:
        add_model: `Scheduler.add_model` itself.
        remove_model: `Scheduler.remove_model` itself; refused entries end with the next `pump`.
        on_turned_away: `Scheduler.on_turned_away` itself.
        read_demand: `Scheduler.read_demand` itself.
    """

    __slots__ = (
        "_bundle_timeout_s", "_carry_out", "_driver", "_flights", "_look_at", "_places", "_pump_scheduled", "_tied",
        "_timer_at", "_wake_ups", "add_model", "on_turned_away", "read_demand", "remove_model", "scheduler",
    )  # fmt: skip

    def __init__(
        self,
        scheduler: Scheduler,
        driver: Driver[SentT],
        bundle_timeout_s: float,
        places: Places | None = None,
        carry_out: CarryOut | None = None,
    ) -> None:
        if carry_out is None and scheduler.devices:
            raise ValueError("devices that models share give orders: say what carries them out")
        self.scheduler = scheduler
        self.add_model = scheduler.add_model
        self.remove_model = scheduler.remove_model
        self.on_turned_away, self.read_demand = scheduler.on_turned_away, scheduler.read_demand
        self._carry_out = carry_out
        self._driver = driver
        self._bundle_timeout_s = bundle_timeout_s
        self._places = places
        self._flights: dict[int, _Flight[SentT]] = {}
        self._wake_ups: dict[str, Dispatch] = {}
        self._tied: dict[int, list[int]] = {}  # by id of a tied entry: its place, and the number of bundles with it
        self._pump_scheduled = False
        self._timer_at = inf
        self._look_at = inf  # at or before the earliest time-out of a bundle in flight

    def __len__(self) -> int:
        return len(self._flights)

    # --------------------------------------------------------------- entries

    def arrive(self, entry: Entry, now: float) -> Rejection | None:
        """Accept an entry, or return the reason for refusing it; as `Scheduler.on_arrival`."""
        rejection = self.scheduler.on_arrival(entry, now)
        if rejection is None and not self._pump_scheduled:
            self._pump_scheduled = True
            self._driver.pump_soon()
        return rejection

    def cancel(self, entry: Entry, now: float) -> bool:
        """Cancel an accepted entry whose client has left. Returns whether it had not ended."""
        if entry.state is EntryState.DONE:
            return False
        self.scheduler.on_cancel(entry, now)
        self._pump_soon()
        return True

    def recall(self, entry: Entry) -> None:
        """Recall an entry from replicas that have not begun to run it, without cancelling it."""
        for bundle_id in entry.bundles:
            if (flight := self._flights.get(bundle_id)) is not None:
                self._driver.recall(flight.sent, flight.dispatch, (entry,))

    def unreached(self, entry: Entry) -> bool:
        """Whether an entry that ends late does so because its model has no replica, and gets none from its device."""
        scheduler = self.scheduler
        return entry.attempts == 0 and scheduler.usable(entry.model) == 0 and not scheduler.can_start(entry.model)

    # -------------------------------------------------------------- replicas

    def learn(
        self,
        model: str,
        executions: Iterable[tuple[int, int, float, str]] = (),
        joins: Mapping[str, bool] = MappingProxyType({}),
        max_rows: int = 0,
    ) -> None:
        """Learn from replicas' reports about a model.

        Args:
            executions: Cost of batches, as of `Scheduler.seed`.
            joins: By variant, whether its requests may share a batch.
            max_rows: Most rows of a batch; 0: not reported.
        """
        self.scheduler.seed(model, executions)
        for variant, joined in joins.items():
            self.scheduler.set_joins(model, variant, joins=joined)
        if max_rows:
            self.scheduler.set_rows(model, max_rows)

    def on_replicas(self, model: str, replicas: Collection[str], now: float) -> None:
        """Replace the list of replicas. Entries that wait for a first replica are queued again when there is one."""
        self.scheduler.on_replicas(model, replicas, now)
        if replicas and (wake_up := self._wake_ups.get(model)) is not None:
            self.woken(wake_up, now)
        self._pump_soon()

    def on_linked(self, model: str, replica: str, *, linked: bool) -> None:
        """Set whether a replica shares the places of ties. Unknown ones are ignored."""
        if self.scheduler.serves(model):
            self.scheduler.on_linked(model, replica, linked=linked and self._places is not None)

    def on_unresponsive(self, model: str, replica: str, now: float) -> bool:
        """A replica with requests in flight is unresponsive. Returns whether its model is known."""
        if not self.scheduler.serves(model):
            return False
        self.scheduler.on_unresponsive(model, replica, now)
        self._pump_soon()
        return True

    def on_responsive(self, model: str, replica: str, now: float) -> bool:
        """An unresponsive replica sends data again. Returns whether its model is known."""
        if not self.scheduler.serves(model):
            return False
        self.scheduler.on_responsive(model, replica, now)
        self._pump_soon()
        return True

    def on_device_event(self, device: str, event: object, now: float) -> None:
        """Pass an event to a shared device; as `Scheduler.on_device_event`."""
        self.scheduler.on_device_event(device, event, now)
        self._pump_soon()

    # --------------------------------------------------------------- bundles

    def misfit(self, dispatch: Dispatch, answers: int, executions: Sequence[Execution]) -> str | None:
        """The reason why an answer does not fit its bundle, or ``None``. Such a bundle is to be `refused`."""
        if answers != len(dispatch.entries):
            return f"gave {answers} answers to {len(dispatch.entries)} entries"
        variant = dispatch.variant
        for execution in executions:
            if execution[3] != variant:
                allowed = {variant} if dispatch.exact else {variant, *self.scheduler.fallbacks(dispatch.model)}
                if ran := {other for _, _, _, other in executions} - allowed:
                    return f"ran {', '.join(map(repr, sorted(ran)))} for entries that were to run on {variant!r}"
                break
        return None

    def part(self, dispatch: Dispatch, position: int, now: float) -> bool:
        """Record a part of an entry's answer. Returns whether it is awaited; as `Scheduler.on_part`."""
        entry = dispatch.entries[position]
        if len(entry.bundles) > 1 and not entry.begun:
            self._pump_soon()  # recalls it from the others
        return self.scheduler.on_part(dispatch.bundle_id, entry, now)

    def answered(
        self,
        dispatch: Dispatch,
        codes: Sequence[str | None],
        executions: Sequence[Execution],
        now: float,
        waited_s: float = 0.0,
        runs_s: float = 0.0,
        reported_backlog_s: float = 0.0,
        model_works: bool | None = None,
    ) -> list[Entry]:
        """Record a replica's answer to a bundle.

        Args:
            codes: By entry, ``None`` for an answer, or its error's code: RETURNED if it was not run and comes back,
                `DeadlineExceeded` if it was not run and will not be.
            executions: Runs that carried it; empty if nothing ran.
            model_works: After a failed entry, whether the model runs an input known to be good; ``None``: unknown.

        Returns:
            The entries to answer, each with its code. They are DONE, and name the variant that ran.
        """
        self._end_flight(dispatch)
        variant = executions[0][3] if executions else dispatch.variant
        returned: list[Entry] = []
        dropped: list[Entry] = []
        outcome = BundleOutcome.ANSWERED
        if not codes or any(codes):
            outcome = _outcome(codes, model_works)
            returned = [entry for entry, code in zip(dispatch.entries, codes, strict=True) if code == RETURNED]
            dropped = [entry for entry, code in zip(dispatch.entries, codes, strict=True) if code == _LATE]
        scheduler, bundle_id = self.scheduler, dispatch.bundle_id
        scheduler.on_outcome(bundle_id, variant, outcome, now)
        alive = scheduler.on_done(bundle_id, executions, now, waited_s, runs_s, reported_backlog_s, returned, dropped)
        for entry in alive:
            entry.variant = variant
        return alive

    def refused(self, dispatch: Dispatch, code: str, now: float) -> list[Entry]:
        """Record an error that concerns every entry of a bundle, or a wake-up.

        Returns:
            The entries to answer with it; they are DONE.
        """
        if dispatch.replica is None:
            self._forget_wake_up(dispatch)
        else:
            self._end_flight(dispatch)
        # Only the model's own failure is its fault.
        outcome = BundleOutcome.FAILURE if code == _FAILED else BundleOutcome.NOT_COUNTED
        self.scheduler.on_outcome(dispatch.bundle_id, dispatch.variant, outcome, now)
        self._pump_soon()
        return self.scheduler.on_done(dispatch.bundle_id, (), now)

    def lost(self, dispatch: Dispatch, now: float, *, replica_lost: bool, reached: bool | None = None) -> None:
        """Record a bundle that failed on its way or with its replica; as `Scheduler.on_failed`."""
        self._end_flight(dispatch)
        self._deal_with(self.scheduler.on_failed(dispatch.bundle_id, now, replica_lost, reached=reached))

    def woken(self, dispatch: Dispatch, now: float) -> None:
        """End a wake-up: its entries are queued again, unless they have been."""
        self._forget_wake_up(dispatch)
        scheduler = self.scheduler
        if scheduler.usable(dispatch.model):
            requeue = scheduler.on_timeout(dispatch.bundle_id, now)
        else:
            # Still no replica: the next wake-up is held back, which prevents a tight loop.
            requeue = scheduler.on_failed(dispatch.bundle_id, now, False)
        self._deal_with(requeue)
        self._pump_soon()

    # ------------------------------------------------------------- decisions

    def fire(self, now: float) -> None:
        """Handle the timer, which is due or nearly so."""
        self._timer_at = inf
        self.pump(now)

    def pump(self, now: float) -> None:
        """Decide, and have the driver carry it out."""
        self._pump_scheduled = False
        if self._look_at <= now:
            self._look(now)
        decisions = self.scheduler.decide(now)
        if decisions.expired or decisions.given_up or decisions.refused or decisions.changes:
            self._end_all(decisions)
        for dispatch in decisions.dispatches:
            if dispatch.replica is None:
                self._wake_ups[dispatch.model] = dispatch
                self._driver.wake_up(dispatch)
            else:
                self._send(dispatch, now)
        if decisions.recalls:
            self._recall_all(decisions.recalls)
        if self._carry_out is not None:
            for order in decisions.orders:
                self._carry_out(order)
        wake_at = self.scheduler.wake_at
        at = self._look_at if wake_at is None or wake_at > self._look_at else wake_at
        if at < self._timer_at:  # otherwise it is set again when it fires
            self._timer_at = at
            self._driver.set_timer(at)

    def _pump_soon(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._driver.pump_soon()

    def _end_all(self, decisions: Decisions) -> None:
        fail = self._driver.fail
        for entry in decisions.expired:
            fail(entry, Why.EXPIRED)
        for entry in decisions.given_up:
            fail(entry, Why.GIVEN_UP)
        for entry, refusal in decisions.refused:
            fail(entry, Why.REFUSED, refusal)
        if decisions.changes:
            self._driver.changed(decisions.changes)

    def _send(self, dispatch: Dispatch, now: float) -> None:
        first = dispatch.entries[0]
        # A retry beside a silent replica has no place: that replica may have taken it, and hang.
        tied = self._places is not None and len(first.bundles) > 1 and first.attempts == 1
        places = self._place(dispatch.entries, self._places) if tied and self._places is not None else ()
        sent = self._driver.send(dispatch, now, places)
        # Its own execution, and what runs or waits at the replica before it, are not the replica's silence.
        due = now + self._bundle_timeout_s + _PATIENCE * dispatch.predicted_s
        if first.answer_by:
            due = inf  # answers in parts take as long as they may; a replica that stands still finds that out itself
        self._flights[dispatch.bundle_id] = _Flight(dispatch, sent, due, tied=tied)
        self._look_at = min(self._look_at, due)

    def _place(self, entries: Sequence[Entry], table: Places) -> list[int]:
        places: list[int] = []
        for entry in entries:
            if (place := self._tied.get(entry.id)) is None:
                place = self._tied[entry.id] = [table.place(), 0]
            place[1] += 1
            places.append(place[0])
        return places

    def _end_flight(self, dispatch: Dispatch) -> None:
        flight = self._flights.pop(dispatch.bundle_id)
        if flight.tied and self._places is not None:
            for entry in dispatch.entries:
                place = self._tied[entry.id]
                place[1] -= 1
                if not place[1]:
                    self._places.free(place[0])
                    del self._tied[entry.id]
        if not self._flights:
            self._look_at = inf
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._driver.pump_soon()

    def _forget_wake_up(self, dispatch: Dispatch) -> None:
        if self._wake_ups.get(dispatch.model) is dispatch:
            del self._wake_ups[dispatch.model]

    def _recall_all(self, recalls: Mapping[int, Collection[Entry]]) -> None:
        for bundle_id, entries in recalls.items():
            if (flight := self._flights.get(bundle_id)) is not None:
                self._driver.recall(flight.sent, flight.dispatch, entries)

    def _look(self, now: float) -> None:
        """Give up the replicas of overdue bundles."""
        for flight in list(self._flights.values()):
            if flight.due <= now:
                flight.due = inf
                self._driver.timed_out(flight.dispatch)
                self._deal_with(self.scheduler.on_timeout(flight.dispatch.bundle_id, now))
        self._look_at = min([flight.due for flight in self._flights.values()], default=inf)

    def _deal_with(self, requeue: Requeue) -> None:
        """End entries of a failed bundle that get no other try."""
        for entry in requeue.broken:
            self._driver.fail(entry, Why.BROKEN)
        for entry in requeue.poisoned:
            self._driver.fail(entry, Why.POISONED)
        for entry in requeue.expired:
            self._driver.fail(entry, Why.EXPIRED)


def _outcome(codes: Sequence[str | None], model_works: bool | None) -> BundleOutcome:
    """Summarise an answer for the circuit breaker."""
    if None in codes:
        return BundleOutcome.ANSWERED
    if _FAILED not in codes:
        return BundleOutcome.NOT_COUNTED
    return BundleOutcome.FAILURE if model_works is False else BundleOutcome.SUSPECTED
