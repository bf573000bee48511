"""A simulated router: one scheduler, and around it what `serve_app.router.dispatcher` does in a server.

One decision per instant, however many events it has; a timer at the scheduler's next moment; a time-out per bundle.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count

from serve_app.scheduling.breaker import Verdict
from serve_app.scheduling.decisions import Dispatch, Requeue
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.scheduler import Scheduler
from serve_app.simulation.replica import Sent, SimulatedReplica
from serve_app.simulation.system import Request, Timer, World
from serve_app.simulation.ways import Serial

_NUMBERS = count(1)
_PATIENCE = 4
"""As the dispatcher's: a bundle may take this many times its predicted execution on top of the time-out."""


class SimulatedRouter:
    """One router: its scheduler, and what a dispatcher does around it."""

    def __init__(
        self,
        world: World,
        scheduler: Scheduler,
        replicas: dict[str, SimulatedReplica],
        bundle_timeout_s: float,
        newest_frame_wins: bool,
        taken: set[Entry],
    ) -> None:
        self.name = f"router-{next(_NUMBERS)}"
        self.scheduler = scheduler
        self._world = world
        self._replicas = replicas
        self._bundle_timeout_s = bundle_timeout_s
        self._newest_frame_wins = newest_frame_wins
        self._processor = Serial(world, world.overheads.router_s)
        self._wake_ups: dict[str, Dispatch] = {}
        self._in_flight: dict[int, Sent] = {}
        self._watchdog: Timer | None = None
        self._watched_until = 0.0
        self._frames: dict[int, Entry] = {}
        self._taken = taken
        self._pump_scheduled = False
        self._timer: Timer | None = None
        self._timer_at = 0.0

    def arrive(self, request: Request) -> None:
        """A request has reached this router, whose processor takes one after the other."""
        self._processor.take(partial(self._arrived, request))

    def _arrived(self, request: Request) -> None:
        now = self._world.now
        entry = Entry(
            request.id,
            request.model,
            request.priority,
            now,
            request.deadline,
            request.rows,
            request.bucket,
            0,
            request,
            tenant=request.tenant,
        )
        if request.stream >= 0 and self._newest_frame_wins:
            self._replace(entry, request.stream)
        if self.scheduler.on_arrival(entry, now) is not None:
            self._world.drop(request)
        else:
            self._schedule_pump()

    def _replace(self, entry: Entry, stream: int) -> None:
        """A new frame of a stream makes the one that still waits worthless, here or at a gate."""
        older = self._frames.get(stream)
        if older is not None:
            older.payload.replaced = True
            if older.state is EntryState.QUEUED:
                self._drop_replaced(older)
            for bundle_id in older.bundles:
                if (sent := self._in_flight.get(bundle_id)) is not None:
                    self._recall(sent, [older])
        self._frames[stream] = entry

    def _drop_replaced(self, entry: Entry) -> None:
        self.scheduler.on_cancel(entry, self._world.now)
        self._world.drop(entry.payload)
        self._schedule_pump()

    def on_replicas(self, model: str, names: Sequence[str]) -> None:
        """The list of a model's replicas has changed. What waits for a first one is queued again when there is one."""
        self.scheduler.on_replicas(model, names, self._world.now)
        for name in names:
            self.scheduler.on_linked(model, name, linked=True)
        if names and (wake_up := self._wake_ups.pop(model, None)) is not None:
            self._deal_with(self.scheduler.on_timeout(wake_up.bundle_id, self._world.now))
        self._schedule_pump()

    # ------------------------------------------------------------------ as the dispatcher

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._world.at(self._world.now, self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        now = self._world.now
        decisions = self.scheduler.decide(now)
        for entry in decisions.expired:
            self._world.drop(entry.payload)
        for entry in decisions.given_up:
            self._world.drop(entry.payload)
        for entry, _ in decisions.refused:
            self._world.drop(entry.payload)
        for dispatch in decisions.dispatches:
            self._send(dispatch, now)
        for bundle_id, entries in decisions.recalls.items():
            if (sent := self._in_flight.get(bundle_id)) is not None:
                self._recall(sent, entries)
        self._set_timer()

    def _set_timer(self) -> None:
        wake_at = self.scheduler.wake_at
        if wake_at is None:
            return
        if self._timer is not None:
            if self._timer_at <= wake_at:
                return
            self._timer.cancel()
        self._timer_at = wake_at
        self._timer = self._world.at(wake_at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    def _send(self, dispatch: Dispatch, now: float) -> None:
        if dispatch.replica is None:  # its entries wait here; the world starts replicas by what is queued
            self._wake_ups[dispatch.model] = dispatch
            return
        if dispatch.entries[0].attempts > 1:
            self._taken.difference_update(dispatch.entries)
        due = now + self._bundle_timeout_s + _PATIENCE * dispatch.predicted_s
        sent = Sent(dispatch, now, due, self.done, self.failed)
        self._in_flight[dispatch.bundle_id] = sent
        if self._watchdog is None or sent.due < self._watched_until:
            self._watch(sent.due)
        self._travel(sent, dispatch.replica)

    def _travel(self, sent: Sent, replica: str) -> None:
        to = self._replicas[replica]
        way_s = self._world.way_s("send")
        sent.reaches = self._world.now + way_s
        if way_s > 0.0:
            self._world.at(sent.reaches, partial(to.arrive, sent))
        else:
            to.arrive(sent)

    def _recall(self, sent: Sent, entries: Sequence[Entry]) -> None:
        """Ask for entries back. Messages do not overtake each other on their way."""
        to = self._replicas[str(sent.dispatch.replica)]
        way_s = self._world.way_s("send")
        reaches = max(sent.reaches, self._world.now + way_s)
        if reaches > self._world.now:
            self._world.at(reaches, partial(to.recall, sent, entries))
        else:
            to.recall(sent, entries)

    def _watch(self, until: float) -> None:
        """Look at `until` for bundles that are not answered: one timer for all of them."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._watched_until = until
        self._watchdog = self._world.at(until, self._look)

    def _look(self) -> None:
        self._watchdog = None
        now = self._world.now
        for sent in [sent for sent in self._in_flight.values() if sent.due <= now]:
            del self._in_flight[sent.dispatch.bundle_id]
            self._deal_with(self.scheduler.on_timeout(sent.dispatch.bundle_id, now))
            self._schedule_pump()
        if self._in_flight:
            self._watch(min(sent.due for sent in self._in_flight.values()))

    def done(self, sent: Sent) -> None:
        """A bundle's answer has come back."""
        self._in_flight.pop(sent.dispatch.bundle_id, None)
        if sent.executions:
            self.scheduler.on_verdict(sent.dispatch.bundle_id, sent.dispatch.variant, Verdict.ANSWERED, self._world.now)
        alive = self.scheduler.on_done(
            sent.dispatch.bundle_id,
            sent.executions,
            self._world.now,
            sent.waited_s,
            sent.runs_s,
            sent.told_s,
            sent.returned,
            sent.dropped,
        )
        for entry in alive:
            if sent.dropped and entry in sent.dropped:
                self._world.drop(entry.payload)
            else:
                self._world.answer(entry.payload, way="direct")
        for entry in sent.returned:
            if entry.payload.replaced and entry.state is EntryState.QUEUED:
                self._drop_replaced(entry)
        self._schedule_pump()

    def failed(self, sent: Sent) -> None:
        """A bundle failed with its replica."""
        self._in_flight.pop(sent.dispatch.bundle_id, None)
        self._deal_with(self.scheduler.on_failed(sent.dispatch.bundle_id, self._world.now, True, reached=True))
        self._schedule_pump()

    def _deal_with(self, requeue: Requeue) -> None:
        for entry in (*requeue.poisoned, *requeue.expired):
            self._world.drop(entry.payload)
