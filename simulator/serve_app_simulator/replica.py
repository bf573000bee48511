"""A simulated replica: one gate, and around it what `serve_app.replica` does in a server.

Entries that reach a busy replica wait at its gate. When the session is free the gate composes a batch of them. Bundles
with entries in it are answered after it; their other entries return to their routers. A batch that raises is run again
entry by entry; then the replica runs an input that is known to be good, at most once a second. While its process hangs,
messages are not read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from math import inf

from serve_app.domain.priority import Priority
from serve_app.errors import RETURNED, DeadlineExceeded, InferenceFailed
from serve_app.scheduling.decisions import Dispatch
from serve_app.scheduling.entry import UNBATCHED, Entry
from serve_app.scheduling.gate import BatchDecision, Gate
from serve_app.scheduling.settings import ModelScheduling
from serve_app_simulator.system import Execution, Timer, World
from serve_app_simulator.ties import SimulatedTies

Observed = tuple[int, int, float, str]
"""Rows, bucket, seconds and variant of one execution, as `Scheduler.on_done` takes it."""

_TRIED_EVERY_S = 1.0


class Sent:
    """A bundle between a router and a replica.

    Attributes:
        dispatch: As decided.
        done: Takes it when its answer is back at the router.
        failed: Takes it when the router learns that it failed with its replica.
        at: When it was sent.
        places: Of its entries in the table of ties; empty where they are not tied.
        waiting: Its entries at the gate, by their ids there.
        runs: Whether any of them are in a batch, so that it is answered after that.
        executions: What ran for it.
        codes: Of entries without an answer, why; see `RouterCore.answered`.
        left: When its answer left the replica.
        reached: Whether its replica took it.
        reaches: When it is at the replica.
        waited_s: How long it was here before its execution began, seconds.
        runs_s: Predicted time until what runs here has ended, seconds.
        reported_backlog_s: Predicted time until all that is here is done, seconds.
        model_works: See `RouterCore.answered`.
    """

    __slots__ = (
        "at",
        "codes",
        "dispatch",
        "done",
        "executions",
        "failed",
        "left",
        "model_works",
        "places",
        "reached",
        "reaches",
        "reported_backlog_s",
        "runs",
        "runs_s",
        "waited_s",
        "waiting",
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
        self.reached = True
        self.runs = False
        self.codes: dict[Entry, str] = {}
        self.model_works: bool | None = None
        self.left = 0.0
        self.reaches = 0.0
        self.runs_s = 0.0
        self.reported_backlog_s = 0.0
        self.waited_s = 0.0


class _Run:
    """Entries that run together, in pieces if they exceed the rows of a batch.

    Attributes:
        left: Rows that have not run.
        bucket: The cost bucket to which they are padded.
    """

    __slots__ = ("bucket", "entries", "left")

    def __init__(self, entries: Sequence[Entry], rows: int, bucket: int) -> None:
        self.entries = entries
        self.left = rows
        self.bucket = bucket


class _Batch:
    """A batch of the gate while it has the session.

    Attributes:
        bundles: Bundles with entries in it.
        runs: Runs that have not ended.
        ran: Executions that did not raise.
        codes: Error codes of entries without an answer.
    """

    __slots__ = ("bundles", "codes", "ran", "runs", "variant")

    def __init__(self, bundles: dict[Sent, None], runs: Iterable[_Run], variant: str) -> None:
        self.bundles = bundles
        self.runs = deque(runs)
        self.variant = variant
        self.ran: list[Observed] = []
        self.codes: dict[Entry, str] = {}


class Turns:
    """The session of a host: one member runs a batch at a time, the one with the most urgent class first."""

    __slots__ = ("_busy", "_waiting", "_world")

    def __init__(self, world: World) -> None:
        self._world = world
        self._busy = False
        self._waiting: dict[SimulatedReplica, None] = {}

    def take(self, replica: SimulatedReplica) -> bool:
        """Whether a member may run a batch now. Otherwise its `open` is called when it is its turn."""
        if self._busy:
            self._waiting[replica] = None
            return False
        self._waiting.pop(replica, None)
        self._busy = True
        return True

    def leave(self, ready_at: float) -> None:
        """End a member's turn; the next one begins at ``ready_at``."""
        self._world.at(ready_at, self._next)

    def _next(self) -> None:
        self._busy = False
        while self._waiting and not self._busy:
            following = min(self._waiting, key=_urgency)
            del self._waiting[following]
            following.open()


class SimulatedReplica:
    """One replica: its gate, and what a session does around it.

    Args:
        world: Its clock, and where it executes.
        settings: Of the model.
        name: Its name.
        min_share: Guaranteed share per class.
        ties: Where replicas agree on who runs what several have.
        planned: Whether routers compose the batches; see `Gate`.
        protect: See `Gate`.
        pads: Whether entries of several cost buckets run together; see `SimulatedModel`.
        turns: The session that it shares with other members of a pool at its host; ``None``: it has its own.
    """

    def __init__(
        self,
        world: World,
        settings: ModelScheduling,
        name: str,
        min_share: Mapping[Priority, float],
        ties: SimulatedTies,
        *,
        planned: bool,
        protect: float = 0.0,
        pads: bool = True,
        turns: Turns | None = None,
    ) -> None:
        self._turns = turns
        self._world = world
        self.model = settings.name
        self._name = name
        self._max_rows = settings.max_rows
        self.gate = Gate(settings, min_share, planned=planned, protect=protect)
        self._ids = count(1)
        self._here: dict[int, Sent] = {}
        self._ties = ties
        self._tied: dict[Entry, int] = {}  # what other replicas have, too, with its place among the ties
        self._pads = pads
        self._busy = False
        self._reopening: Timer | None = None
        self._unread: list[Callable[[], None]] = []
        self._tried: tuple[float, bool] | None = None  # when the known good input was run, and whether it did
        world.watch(name, self._changed)

    def arrive(self, sent: Sent) -> None:
        """Take in a bundle. Entries keep the budget they had left when it was sent: the way does not count."""
        if (status := self._world.status(self._name)) != "works":
            if status == "dead":
                sent.reached = False
                self._reply(sent, sent.failed)
            else:
                self._unread.append(partial(self.arrive, sent))
            return
        now, dispatch = self._world.now, sent.dispatch
        for index, entry in enumerate(dispatch.entries):
            here = Entry(
                next(self._ids),
                entry.model,
                entry.priority,
                now,
                now + entry.deadline - sent.at - (0.0 if entry.probe else dispatch.overhead_s),
                entry.rows,
                entry.bucket,
                0,
                entry,
                dispatch.variant,
                exact=entry.exact or dispatch.exact,
                attributes=entry.attributes,
            )
            here.probe = entry.probe
            if entry.rows > self._max_rows or entry.attempts > 1:
                here.batch_key = UNBATCHED
            sent.waiting[here.id] = here
            self._here[here.id] = sent
            if sent.places:
                self._tied[here] = sent.places[index]
            self.gate.add(here, now)
        self.open()

    def recall(self, sent: Sent, entries: Collection[Entry]) -> None:
        """Return those of a bundle's entries that wait here; their router needs no answer any more."""
        if self._world.status(self._name) == "hangs":
            self._unread.append(partial(self.recall, sent, entries))
            return
        taken = [here for here in sent.waiting.values() if here.payload in entries]
        for here in taken:
            self._take_out(sent, here)
        if taken and not sent.waiting:
            self._reply(sent, sent.done)
        self.open()

    def retire(self) -> None:
        """Stop: the member is unloaded, with nothing at the gate."""
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None

    def probe(self, answer: Callable[[], None]) -> None:
        """Answer a router's liveness probe, also while the session runs, but not while the process hangs."""
        status = self._world.status(self._name)
        if status == "works":
            answer()
        elif status == "hangs":
            self._unread.append(partial(self.probe, answer))

    def _changed(self) -> None:
        """React to the process: it went on, or died and everything here fails."""
        if self._world.status(self._name) == "dead":
            self._died(())
        unread, self._unread = self._unread, []
        for read in unread:
            read()
        if self._world.status(self._name) == "works":
            self.open()

    def _take_out(self, sent: Sent, here: Entry, *, elsewhere: bool = False) -> None:
        """Return an entry to its router."""
        self.gate.remove(here, elsewhere=elsewhere)
        self._tied.pop(here, None)
        del self._here[here.id], sent.waiting[here.id]
        sent.codes[here.payload] = RETURNED

    @property
    def urgency(self) -> Priority:
        """The most urgent class that waits here."""
        return min([sent.dispatch.entries[0].priority for sent in self._here.values()], default=Priority.LOW)

    def open(self) -> None:
        """Let the next batch begin if the session is free."""
        if self._busy or self._world.status(self._name) != "works":
            return
        if (ready := self._world.ready_at(self._name)) > self._world.now:
            self._reopen_at(ready)
            return
        if self._turns is not None and (not self.gate or not self._turns.take(self)):
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
        else:
            if self._turns is not None:
                self._turns.leave(self._world.now)
            if turn.recheck_at < inf:
                self._reopen_at(turn.recheck_at + self._world.hop_s("timer"))
        for sent in ended:
            if not sent.waiting and not sent.runs:
                self._reply(sent, sent.done)

    def _reopen_at(self, recheck_at: float) -> None:
        """Ask the gate again then, instead of when it said before."""
        if self._reopening is not None:
            self._reopening.cancel()
        self._reopening = self._world.at(recheck_at, self._reopen)

    def _reopen(self) -> None:
        self._reopening = None
        self.open()

    def _run(self, turn: BatchDecision) -> None:
        now = self._world.now
        bundles: dict[Sent, None] = {}
        for here in turn.entries:
            sent = self._here.pop(here.id)
            del sent.waiting[here.id]
            bundles[sent] = None
            if (place := self._tied.pop(here, None)) is not None:
                self._ties.take(place)
        for sent in bundles:
            sent.waited_s = now - sent.reaches
            sent.runs = True
            for here in list(sent.waiting.values()):
                self._take_out(sent, here)
        self._busy = True
        self._step(_Batch(bundles, self._runs_of(turn), turn.variant))

    def _runs_of(self, turn: BatchDecision) -> list[_Run]:
        """One run, padded to the largest cost bucket; one per bucket where padding would change answers."""
        if self._pads:
            return [_Run(turn.entries, turn.rows, turn.bucket)]
        of_bucket: dict[int, list[Entry]] = {}
        for here in turn.entries:
            of_bucket.setdefault(here.bucket, []).append(here)
        return [_Run(members, sum([here.rows for here in members]), bucket) for bucket, members in of_bucket.items()]

    def _step(self, batch: _Batch) -> None:
        """Begin the next execution of a batch, or answer it."""
        if not batch.runs:
            self._answer(batch)
            return
        run = batch.runs[0]
        rows = min(run.left, self._max_rows)
        requests = [here.payload.payload for here in run.entries]
        done = partial(self._executed, batch, run, rows)
        self._world.execute(self.model, self._name, requests, rows, run.bucket, done, batch.variant)

    def _executed(self, batch: _Batch, run: _Run, rows: int, execution: Execution) -> None:
        if execution.failed:
            self._died(batch.bundles)
            return
        if execution.raised:
            batch.runs.popleft()
            self._run_alone(batch, run)
        else:
            observed = (rows, run.bucket, execution.seconds, batch.variant)
            self.gate.observe(*observed)
            batch.ran.append(observed)
            run.left -= rows
            if not run.left:
                batch.runs.popleft()
        self._step(batch)

    def _run_alone(self, batch: _Batch, run: _Run) -> None:
        """Run the entries of a run that raised each by itself. An entry that was alone has failed."""
        now = self._world.now
        if len(run.entries) == 1:
            batch.codes[run.entries[0].payload] = InferenceFailed.code
            return
        for here in reversed(run.entries):
            if here.deadline > now:
                batch.runs.appendleft(_Run([here], here.rows, run.bucket))
            else:
                batch.codes[here.payload] = DeadlineExceeded.code

    def _answer(self, batch: _Batch) -> None:
        """Free the session, and answer the bundles of a batch."""
        works: bool | None = None
        if InferenceFailed.code in batch.codes.values():
            works = self._works()
        elif batch.ran and self._tried is not None and not self._tried[1]:
            self._tried = None  # what failed before was not for good
        for sent in batch.bundles:
            sent.executions = batch.ran
            sent.model_works = works
            for entry in sent.dispatch.entries if batch.codes else ():
                if entry in batch.codes:
                    sent.codes[entry] = batch.codes[entry]
        self.gate.ended()
        self._busy = False
        if self._turns is not None:
            self._turns.leave(self._world.ready_at(self._name))
        self.open()
        for sent in batch.bundles:
            self._reply(sent, sent.done)

    def _works(self) -> bool:
        """Whether the model runs an input that is known to be good, tried at most once a second."""
        now = self._world.now
        if self._tried is None or now - self._tried[0] >= _TRIED_EVERY_S:
            self._tried = now, self._world.example_runs(self._name)
        return self._tried[1]

    def _died(self, bundles: Iterable[Sent]) -> None:
        """Fail everything that ran and waited here."""
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
        sent.reported_backlog_s = self.gate.backlog_s(sent.left)
        back_s = self._world.hop_s("send")
        if back_s > 0.0:
            self._world.at(sent.left + back_s, partial(take, sent))
        else:
            take(sent)


def _urgency(replica: SimulatedReplica) -> Priority:
    return replica.urgency
