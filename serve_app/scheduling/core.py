"""The router's core: what a router does around its `Scheduler`, without a clock and without I/O.

    events (arrive, answered, lost, ...) ──> RouterCore ──> Scheduler
                                                 │
                                                 └──────> Driver: send, recall, fail, set a timer

A server's dispatcher drives it by an event loop, the simulator by its virtual clock; so both do the same. Decisions are
taken once per turn of the driver, however many events that had: arrivals of one turn go out together.

A driver calls `pump` as it was asked to (`Driver.pump_soon`) and `fire` when the timer is due. It ends every bundle
that it was asked to send by exactly one of `answered`, `refused` and `lost`, and every wake-up by one of `woken` and
`refused`. Parts of answers that it brings before that are told by `part`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from math import inf
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from serve_app.errors import DeadlineExceeded, InferenceFailed
from serve_app.scheduling.decisions import RETURNED, Change, Decisions, Dispatch, Rejection, Requeue
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.health.breaker import BundleOutcome
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ModelScheduling

_PATIENCE = 4
"""A bundle may take this many times its predicted execution on top of the time-out before its replica is given up."""
_LATE, _FAILED = DeadlineExceeded.code, InferenceFailed.code

SentT = TypeVar("SentT")
"""What a driver keeps of a bundle in flight."""

Execution = tuple[int, int, float, str]
"""``(rows, bucket, seconds, variant)`` of a run of the backend, as in `Scheduler.on_done`."""


class Why(Enum):
    """Why an accepted entry ends without an answer."""

    EXPIRED = "its deadline has passed"
    GIVEN_UP = "it cannot be in time any more, or only at the cost of more others"
    REFUSED = "its model was removed, or fails; or another tenant's entry has its place"
    POISONED = "two replicas failed while they ran it"
    BROKEN = "its replica was lost when a part of the answer had come"


class Places(Protocol):
    """Where replicas agree on who runs what several of them have. What is tied has a place there."""

    def place(self) -> int:
        """A place; 0 when there is none."""

    def free(self, place: int) -> None:
        """No entry has this tie index any more. 0 is ignored."""


class Driver(Protocol[SentT]):
    """Does what the core says. None of it may call the core back before it returns."""

    def pump_soon(self) -> None:
        """Call `RouterCore.pump` once after the events of this turn."""

    def set_timer(self, at: float) -> None:
        """Call `RouterCore.fire` then, instead of when it was asked to before."""

    def send(self, dispatch: Dispatch, now: float, places: Sequence[int]) -> SentT:
        """Send a bundle to its replica.

        Args:
            dispatch: The bundle; it names a replica.
            now: When it is sent, seconds.
            places: Of its entries, where they are tied; else empty.
        """

    def wake_up(self, dispatch: Dispatch) -> None:
        """Ask for a replica of a model that has none. The entries of this dispatch wait in the router."""

    def recall(self, sent: SentT, dispatch: Dispatch, entries: Collection[Entry]) -> None:
        """Ask a replica for entries of a bundle back."""

    def fail(self, entry: Entry, why: Why, refusal: Rejection | None = None) -> None:
        """End an entry without an answer; ``refusal`` is what to tell its client, where ``why`` is REFUSED."""

    def timed_out(self, dispatch: Dispatch) -> None:
        """A replica did not answer a bundle in time, and gets no more work until it does: for the log."""

    def changed(self, changes: Sequence[Change]) -> None:
        """Circuit breakers have moved, or replicas were ejected: for the log."""


CarryOut = Callable[[Any], None]
"""Carries out an order of a device (`Device.orders`). It may not call the core back before it returns."""


class _Flight(Generic[SentT]):
    """A bundle in flight.

    Attributes:
        dispatch: As decided.
        sent: What the driver keeps of it.
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
    """Drives one `Scheduler`, and is driven itself.

    Args:
        scheduler: Decides. Its events come from here only.
        driver: Does.
        bundle_timeout_s: After this long without an answer a replica counts as wedged: its bundles' living entries
            go elsewhere once, and it gets no more until it answers.
        places: Where ties have their places; ``None``: replicas cannot agree, and each runs what it has.
        carry_out: Carries out the orders of devices that models share. Raises ValueError where it is left out and the
            scheduler has such devices.
    """

    __slots__ = (
        "_bundle_timeout_s", "_carry_out", "_driver", "_flights", "_look_at", "_places", "_pump_scheduled", "_tied",
        "_timer_at", "_wake_ups", "scheduler",
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
        self._carry_out = carry_out
        self._driver = driver
        self._bundle_timeout_s = bundle_timeout_s
        self._places = places
        self._flights: dict[int, _Flight[SentT]] = {}
        self._wake_ups: dict[str, Dispatch] = {}
        self._tied: dict[int, list[int]] = {}  # of a tied entry, by id, its place, and how many bundles carry it
        self._pump_scheduled = False
        self._timer_at = inf
        self._look_at = inf  # the earliest time-out of a bundle in flight, or before it

    def __len__(self) -> int:
        return len(self._flights)

    # --------------------------------------------------------------- entries

    def arrive(self, entry: Entry, now: float) -> Rejection | None:
        """See `Scheduler.on_arrival`."""
        rejection = self.scheduler.on_arrival(entry, now)
        if rejection is None and not self._pump_scheduled:
            self._pump_scheduled = True
            self._driver.pump_soon()
        return rejection

    def cancel(self, entry: Entry, now: float) -> bool:
        """The client of an accepted entry has left. Returns whether it had not ended."""
        if entry.state is EntryState.DONE:
            return False
        self.scheduler.on_cancel(entry, now)
        self._pump_soon()
        return True

    def recall(self, entry: Entry) -> None:
        """Have an entry back from the replicas that have it and have not begun to run it, without cancelling it."""
        for bundle_id in entry.bundles:
            if (flight := self._flights.get(bundle_id)) is not None:
                self._driver.recall(flight.sent, flight.dispatch, (entry,))

    def unreached(self, entry: Entry) -> bool:
        """Whether an entry that ends late does so because its model had no replica, and gets none from its device."""
        scheduler = self.scheduler
        return entry.attempts == 0 and scheduler.usable(entry.model) == 0 and not scheduler.can_start(entry.model)

    # ---------------------------------------------------------------- models

    def add_model(self, settings: ModelScheduling, device: str | None = None) -> None:
        """See `Scheduler.add_model`."""
        self.scheduler.add_model(settings, device)

    def remove_model(
        self, model: str, now: float, successor: str | None = None, refusal: Rejection | None = None
    ) -> None:
        """See `Scheduler.remove_model`. What is refused by it ends with the next `pump`."""
        self.scheduler.remove_model(model, now, successor, refusal)

    # -------------------------------------------------------------- replicas

    def learn(
        self,
        model: str,
        executions: Iterable[tuple[int, int, float, str]] = (),
        joins: Mapping[str, bool] = MappingProxyType({}),
        max_rows: int = 0,
    ) -> None:
        """Take what replicas tell of a model.

        Args:
            executions: What batches cost; see `Scheduler.seed`.
            joins: By variant, whether its requests may share a batch.
            max_rows: Most rows of a batch; 0: nothing was told.
        """
        self.scheduler.seed(model, executions)
        for variant, joined in joins.items():
            self.scheduler.set_joins(model, variant, joins=joined)
        if max_rows:
            self.scheduler.set_rows(model, max_rows)

    def on_replicas(self, model: str, replicas: Collection[str], now: float) -> None:
        """See `Scheduler.on_replicas`. What waits for a first replica is queued again when there is one."""
        self.scheduler.on_replicas(model, replicas, now)
        if replicas and (wake_up := self._wake_ups.get(model)) is not None:
            self.woken(wake_up, now)
        self._pump_soon()

    def on_linked(self, model: str, replica: str, *, linked: bool) -> None:
        """Say whether a replica can see the places of ties. Unknown ones are ignored."""
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
        """Something has happened on a device that models share; see `Scheduler.on_device_event`."""
        self.scheduler.on_device_event(device, event, now)
        self._pump_soon()

    # --------------------------------------------------------------- bundles

    def misfit(self, dispatch: Dispatch, answers: int, executions: Sequence[Execution]) -> str | None:
        """Why an answer cannot be one to this bundle, or ``None``. Such a bundle is to be `refused`."""
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
        """A part of an entry's answer has come. Returns whether it is waited for; see `Scheduler.on_part`."""
        entry = dispatch.entries[position]
        if len(entry.bundles) > 1 and not entry.begun:
            self._pump_soon()  # which recalls it from the others
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
        """A replica answered a bundle.

        Args:
            dispatch: The bundle.
            codes: By entry, ``None`` for an answer, or the code of its error: RETURNED where it was not run and comes
                back, `DeadlineExceeded` where it was not run and will not be.
            executions: The runs that carried it; empty where nothing of it ran.
            now: Seconds.
            waited_s: See `Scheduler.on_done`, as the next two.
            runs_s: As there.
            reported_backlog_s: As there.
            model_works: Whether the model runs an input that is known to be good, after an entry has failed; ``None``:
                unknown.

        Returns:
            The entries to answer, with what their code says. They are DONE, and have the variant that they ran on.
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
        """A replica answered a bundle, or a wake-up, with an error that concerns every entry.

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
        """A bundle has failed on its way or with its replica; see `Scheduler.on_failed`."""
        self._end_flight(dispatch)
        self._deal_with(self.scheduler.on_failed(dispatch.bundle_id, now, replica_lost, reached=reached))

    def woken(self, dispatch: Dispatch, now: float) -> None:
        """A wake-up has ended: its entries are queued again, if that has not been done yet."""
        self._forget_wake_up(dispatch)
        scheduler = self.scheduler
        if scheduler.usable(dispatch.model):
            requeue = scheduler.on_timeout(dispatch.bundle_id, now)
        else:
            # There is still none: the next wake-up is held back for a while, so that this is no tight loop.
            requeue = scheduler.on_failed(dispatch.bundle_id, now, False)
        self._deal_with(requeue)
        self._pump_soon()

    # ------------------------------------------------------------- decisions

    def fire(self, now: float) -> None:
        """The timer is due, or nearly."""
        self._timer_at = inf
        self.pump(now)

    def pump(self, now: float) -> None:
        """Decide, and have it done."""
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
        if at < self._timer_at:  # else it will be set again when it fires
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
        """The places of tied entries in one more bundle."""
        places: list[int] = []
        for entry in entries:
            if (place := self._tied.get(entry.id)) is None:
                place = self._tied[entry.id] = [table.place(), 0]
            place[1] += 1
            places.append(place[0])
        return places

    def _end_flight(self, dispatch: Dispatch) -> None:
        """A bundle is in flight no more, and something is to be decided."""
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
        """Give up the replicas of bundles that are not answered."""
        for flight in list(self._flights.values()):
            if flight.due <= now:
                flight.due = inf
                self._driver.timed_out(flight.dispatch)
                self._deal_with(self.scheduler.on_timeout(flight.dispatch.bundle_id, now))
        self._look_at = min([flight.due for flight in self._flights.values()], default=inf)

    def _deal_with(self, requeue: Requeue) -> None:
        """End those entries of a failed bundle that do not get another try."""
        for entry in requeue.broken:
            self._driver.fail(entry, Why.BROKEN)
        for entry in requeue.poisoned:
            self._driver.fail(entry, Why.POISONED)
        for entry in requeue.expired:
            self._driver.fail(entry, Why.EXPIRED)


def _outcome(codes: Sequence[str | None], model_works: bool | None) -> BundleOutcome:
    """What an answer says of its model: whether any entry was answered, else what failed, and whether it works."""
    if None in codes:
        return BundleOutcome.ANSWERED
    if _FAILED not in codes:
        return BundleOutcome.NOT_COUNTED
    return BundleOutcome.FAILURE if model_works is False else BundleOutcome.SUSPECTED
