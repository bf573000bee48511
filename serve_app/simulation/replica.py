"""A simulated replica: one gate, and around it what `serve_app.replica.session` does in a server.

Entries that reach a busy replica wait at its gate. When the session is free the gate composes a batch of them; bundles
whose entries are in it are answered after it, and what else they brought goes back to their routers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count
from math import inf

from serve_app.errors import DeadlineExceeded
from serve_app.scheduling.decisions import RETURNED, Dispatch
from serve_app.scheduling.entry import ALONE, Entry, Priority
from serve_app.scheduling.gate import Gate, Turn
from serve_app.scheduling.settings import ModelScheduling
from serve_app.simulation.system import Execution, Request, Timer, World
from serve_app.simulation.ties import SimulatedTies

Observed = tuple[int, int, float, str]
"""Rows, bucket, seconds and variant of one execution, as `Scheduler.on_done` takes it."""


class Sent:
    """A bundle between a router and a replica.

    Attributes:
        dispatch: As decided.
        done: Takes it when its answer is back at the router.
        failed: Takes it when the router learns that it failed with its replica.
        at: When it was sent.
        places: Of its entries in the table of ties; empty where they are not tied.
        waiting: Its entries at the gate, by their ids there.
        executions: What ran for it.
        codes: Of entries without an answer, why; see `RouterCore.answered`.
        left: When its answer left the replica.
        reaches: When it is at the replica.
        waited_s: How long it was here before its execution began, seconds.
        runs_s: Predicted time until what runs here has ended, seconds.
        told_s: Predicted time until all that is here is done, seconds.
    """

    __slots__ = (
        "at", "codes", "dispatch", "done", "executions", "failed", "left", "places", "reaches", "runs_s", "told_s",
        "waited_s", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        dispatch: Dispatch,
        at: float,
        places: Sequence[int],
        done: Callable[[Sent], None],
        failed: Callable[[Sent], None],
    ) -> None:
        self.dispatch = dispatch
        self.at = at
        self.places = places
        self.done = done
        self.failed = failed
        self.waiting: dict[int, Entry] = {}
        self.executions: list[Observed] = []
        self.codes: dict[Entry, str] = {}
        self.left = 0.0
        self.reaches = 0.0
        self.runs_s = 0.0
        self.told_s = 0.0
        self.waited_s = 0.0


class SimulatedReplica:
    """One replica: its gate, and what a session does around it."""

    def __init__(
        self,
        world: World,
        settings: ModelScheduling,
        name: str,
        min_share: Mapping[Priority, float],
        ties: SimulatedTies,
        *,
        planned: bool,
    ) -> None:
        self._world = world
        self.model = settings.name
        self._name = name
        self._max_rows = settings.max_rows
        self.gate = Gate(settings, min_share, planned=planned)
        self._ids = count(1)
        self._here: dict[int, Sent] = {}
        self._ties = ties
        self._tied: dict[Entry, int] = {}  # what other replicas have, too, with its place among the ties
        self._busy = False
        self._reopening: Timer | None = None

    def arrive(self, sent: Sent) -> None:
        """A bundle has reached the replica. What travels is the budget left, so that the way does not count."""
        now = self._world.now
        for index, entry in enumerate(sent.dispatch.entries):
            here = Entry(
                next(self._ids),
                entry.model,
                entry.priority,
                now,
                now + entry.deadline - sent.at - sent.dispatch.overhead_s,
                entry.rows,
                entry.bucket,
                0,
                entry,
                entry.variant,
                exact=entry.exact,
                tenant=entry.tenant,
                weight=entry.weight,
            )
            if entry.rows > self._max_rows or entry.attempts > 1:
                here.lane = ALONE
            sent.waiting[here.id] = here
            self._here[here.id] = sent
            if sent.places:
                self._tied[here] = sent.places[index]
            self.gate.add(here, now)
        self._open()

    def recall(self, sent: Sent, entries: Collection[Entry]) -> None:
        """A router does not wait for these entries of a bundle any more; those that wait here do not run."""
        taken = [here for here in sent.waiting.values() if here.payload in entries]
        for here in taken:
            self._take_out(sent, here)
        if taken and not sent.waiting:
            self._reply(sent, sent.done)
        self._open()

    def _take_out(self, sent: Sent, here: Entry, *, elsewhere: bool = False) -> None:
        """An entry goes back to its router."""
        self.gate.remove(here, elsewhere=elsewhere)
        self._tied.pop(here, None)
        del self._here[here.id], sent.waiting[here.id]
        sent.codes[here.payload] = RETURNED

    def _open(self) -> None:
        """Let the next batch begin if the session is free."""
        if self._busy:
            return
        if (ready := self._world.ready_at(self._name)) > self._world.now:
            self._reopen_at(ready)
            return
        ended: dict[Sent, None] = {}
        for here in [here for here, place in self._tied.items() if self._ties.taken(place)]:
            sent = self._here[here.id]
            self._take_out(sent, here, elsewhere=True)
            if not sent.waiting:
                ended[sent] = None
        turn = self.gate.next(self._world.now)
        for here in turn.dropped:
            self._tied.pop(here, None)
            sent = self._here.pop(here.id)
            del sent.waiting[here.id]
            sent.codes[here.payload] = DeadlineExceeded.code
            if not sent.waiting:
                ended[sent] = None
        if turn.entries:
            self._run(turn)
        elif turn.opens < inf:
            self._reopen_at(turn.opens)
        for sent in ended:
            if not sent.waiting and not sent.executions:
                self._reply(sent, sent.done)

    def _reopen_at(self, opens: float) -> None:
        """Ask the gate again at this moment; what has come since may have to go sooner than what was there."""
        if self._reopening is not None:
            self._reopening.cancel()
        self._reopening = self._world.at(opens, self._reopen)

    def _reopen(self) -> None:
        self._reopening = None
        self._open()

    def _run(self, turn: Turn) -> None:
        now = self._world.now
        bundles: dict[Sent, None] = {}
        requests: list[Request] = []
        for here in turn.entries:
            sent = self._here.pop(here.id)
            del sent.waiting[here.id]
            bundles[sent] = None
            requests.append(here.payload.payload)
            if (place := self._tied.pop(here, None)) is not None:
                self._ties.take(place)
        for sent in bundles:
            sent.waited_s = now - sent.reaches
            sent.executions.append((0, 0, 0.0, ""))  # it is answered after the run
            for here in list(sent.waiting.values()):
                self._take_out(sent, here)
        self._busy = True
        whole, rest = divmod(turn.rows, self._max_rows)
        pieces = [turn.rows] if turn.rows <= self._max_rows else [self._max_rows] * whole + ([rest] if rest else [])
        self._run_pieces(turn, list(bundles), requests, pieces, [])

    def _run_pieces(
        self, turn: Turn, bundles: list[Sent], requests: list[Request], pieces: list[int], ran: list[Observed]
    ) -> None:
        if not pieces:
            for sent in bundles:
                sent.executions = ran
            self.gate.ended()
            self._busy = False
            self._open()
            for sent in bundles:
                self._reply(sent, sent.done)
            return
        rows = pieces.pop(0)

        def done(execution: Execution) -> None:
            if execution.failed:
                self._died(bundles)
                return
            observed = (rows, turn.bucket, execution.seconds, turn.variant)
            self.gate.observe(*observed)
            self._run_pieces(turn, bundles, requests, pieces, [*ran, observed])

        self._world.execute(self.model, self._name, requests, rows, turn.bucket, done, turn.variant)

    def _died(self, bundles: list[Sent]) -> None:
        """The replica is gone: what ran and what waited here fails."""
        self._busy = False
        waiting = dict.fromkeys(self._here.values())
        for sent in waiting:
            for here in sent.waiting.values():
                self.gate.remove(here)
            sent.waiting.clear()
        self._here.clear()
        self._tied.clear()
        for sent in (*bundles, *waiting):
            self._reply(sent, sent.failed)

    def _reply(self, sent: Sent, take: Callable[[Sent], None]) -> None:
        sent.left = self._world.now
        sent.runs_s = self.gate.runs_s(sent.left)
        sent.told_s = self.gate.backlog_s(sent.left)
        back_s = self._world.way_s("send")
        if back_s > 0.0:
            self._world.at(sent.left + back_s, partial(take, sent))
        else:
            take(sent)
