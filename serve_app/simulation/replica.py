"""A simulated replica: one gate, and around it what `serve_app.runtime.worker` does in a server.

Bundles that reach a busy replica wait at its gate. Those that it grants together run as one batch per variant, without
the entries that are late by then, and are answered together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

from serve_app.scheduling.decisions import Dispatch
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.foresight import Due, Foresight
from serve_app.scheduling.gate import Gate, Outlook, Ticket
from serve_app.simulation.system import Execution, Request, Timer, World

Observed = tuple[int, int, float, str]
"""Rows, bucket, seconds and variant of one execution, as `Scheduler.on_done` takes it."""


class Sent:
    """A bundle between a router and a replica.

    Attributes:
        dispatch: As decided.
        done: Takes it when its answer is back at the router.
        failed: Takes it when the router learns that it failed with its replica.
        at: When it was sent.
        due: When it counts as not answered.
        behind_s: How much later its deadlines are at the replica: what travels is the budget left, so that the way
            there does not count.
        executions: What ran for it.
        expired: Entries that were too late to run.
        left: When its answer left the replica.
        sender: Name of the router that sent it.
        reached_at: When it was at the gate.
        waited_s: How long it was here before its execution began, seconds.
        behind_others: Whether other routers' work ran meanwhile.
        outlook: What the replica tells its router with the answer.
    """

    __slots__ = (
        "at",
        "behind_others",
        "behind_s",
        "dispatch",
        "done",
        "due",
        "executions",
        "expired",
        "failed",
        "left",
        "outlook",
        "reached_at",
        "sender",
        "waited_s",
    )  # fmt: skip

    def __init__(
        self,
        dispatch: Dispatch,
        at: float,
        due: float,
        done: Callable[[Sent], None],
        failed: Callable[[Sent], None],
        sender: str = "",
    ) -> None:
        self.sender = sender
        self.reached_at = 0.0
        self.waited_s = 0.0
        self.behind_others = False
        self.outlook: Outlook | None = None
        self.done = done
        self.failed = failed
        self.dispatch = dispatch
        self.at = at
        self.due = due
        self.behind_s = 0.0
        self.executions: list[Observed] = []
        self.expired: list[Entry] = []
        self.left = 0.0


class _Run:
    """One execution of a grant: entries of one variant, at most a full batch, or a piece of a larger entry."""

    __slots__ = ("bucket", "requests", "rows", "senders", "variant")

    def __init__(
        self, requests: list[Request], rows: int, bucket: int, variant: str, senders: dict[Sent, None]
    ) -> None:
        self.requests = requests
        self.rows = rows
        self.bucket = bucket
        self.variant = variant
        self.senders = senders


class SimulatedReplica:
    """One replica: its gate, and what a worker does around it."""

    def __init__(self, world: World, model: str, name: str, max_rows: int) -> None:
        self._world = world
        self._model = model
        self._name = name
        self._max_rows = max_rows
        self._answer_s = world.overheads.answer_s
        self._foresight = Foresight(max_rows)
        self._gate = Gate(self._foresight)
        self._waiting: dict[int, Sent] = {}
        self._tickets = count(1)
        self._busy = False
        self._reopening: Timer | None = None

    def arrive(self, sent: Sent) -> None:
        """A bundle has reached the replica."""
        sent.reached_at = self._world.now
        sent.behind_s = sent.reached_at - sent.at
        entries = sent.dispatch.entries
        deadlines = [entry.deadline for entry in entries]
        ticket = next(self._tickets)
        self._waiting[ticket] = sent
        self._gate.add(
            Ticket(
                ticket,
                min([entry.priority for entry in entries]),
                min(deadlines) + sent.behind_s,
                sent.dispatch.rows,
                sent.dispatch.bucket,
                max(deadlines) + sent.behind_s,
                sent.sender,
                sent.dispatch.variant,
            )
        )
        self._open_gate()

    def _open_gate(self) -> None:
        while not self._busy:
            if (opens := self._gate.opens_at(self._world.now, self._max_rows)) > self._world.now:
                if self._reopening is None:
                    self._reopening = self._world.at(opens, self._reopen)
                return
            grant = self._gate.grant(self._world.now, self._max_rows)
            for ticket in grant.expired:
                sent = self._waiting.pop(ticket)
                sent.expired = sent.dispatch.entries
                self._reply(sent, sent.done)
            if not grant.granted:
                return
            bundles = [self._waiting.pop(ticket) for ticket in grant.granted]
            for sent in bundles:
                sent.behind_others = self._gate.others_since(sent.sender, sent.reached_at)
            self._busy = True
            self._run_next(bundles, self._lots(bundles), [], 0)

    def _reopen(self) -> None:
        self._reopening = None
        self._open_gate()

    def _lots(self, bundles: Sequence[Sent]) -> list[tuple[str, list[tuple[Sent, Entry]]]]:
        """What a grant executes, by variant. Entries that are late already are left out."""
        now = self._world.now
        lots: dict[str, list[tuple[Sent, Entry]]] = {}
        for sent in bundles:
            started = now - sent.behind_s
            for entry in sent.dispatch.entries:
                if entry.deadline <= started:
                    sent.expired.append(entry)
                else:
                    lots.setdefault(sent.dispatch.variant, []).append((sent, entry))
        return list(lots.items())

    def _runs(self, variant: str, lot: Sequence[tuple[Sent, Entry]]) -> list[_Run]:
        """The runs of one variant, without the entries that could not end in time."""
        largest = max(entry.bucket for _, entry in lot)
        due = [Due(entry.deadline + sent.behind_s, entry.rows, largest) for sent, entry in lot]
        late = set(self._foresight.late(due, variant, self._world.now))
        runs: list[_Run] = []
        run: _Run | None = None
        for place, (sent, entry) in enumerate(lot):
            if place in late:
                sent.expired.append(entry)
                continue
            if run is None or run.rows + entry.rows > self._max_rows:
                run = _Run([], 0, 0, variant, {})
                runs.append(run)
            run.requests.append(entry.payload)
            run.rows += entry.rows
            run.senders[sent] = None
            run.bucket = max(run.bucket, entry.bucket)
        if len(runs) == 1 and runs[0].rows <= self._max_rows:
            return runs
        return [piece for run in runs for piece in self._pieces(run)]

    def _pieces(self, run: _Run) -> list[_Run]:
        if run.rows <= self._max_rows:
            return [run]
        whole, rest = divmod(run.rows, self._max_rows)
        sizes = [self._max_rows] * whole + ([rest] if rest else [])
        return [_Run(run.requests, size, run.bucket, run.variant, run.senders) for size in sizes]

    def _run_next(
        self, bundles: list[Sent], lots: list[tuple[str, list[tuple[Sent, Entry]]]], runs: list[_Run], place: int
    ) -> None:
        """Execute the next run of a grant, or end it."""
        while place == len(runs) and lots:
            variant, lot = lots.pop(0)
            runs, place = self._runs(variant, lot), 0
        if place == len(runs):
            self._gate.ended(self._world.now)
            self._busy = False
            self._open_gate()
            for sent in bundles:
                self._reply(sent, sent.done)
            return
        run = runs[place]

        def done(execution: Execution) -> None:
            if execution.failed:
                self._died(bundles)
                return
            observed = (run.rows, run.bucket, execution.seconds, run.variant)
            self._foresight.observe(*observed)
            began = self._world.now - execution.seconds
            for sent in run.senders:
                if not sent.executions:
                    sent.waited_s = began - sent.reached_at
                sent.executions.append(observed)
            self._run_next(bundles, lots, runs, place + 1)

        predicted_s = self._foresight.seconds(run.rows, run.bucket, run.variant)
        self._gate.begun(predicted_s, self._world.now)
        self._world.execute(self._model, self._name, run.requests, run.rows, run.bucket, done, run.variant)

    def _died(self, bundles: list[Sent]) -> None:
        """The replica is gone: what ran and what waited here fails."""
        self._gate.ended(self._world.now)
        self._busy = False
        waiting = list(self._waiting.values())
        for ticket in list(self._waiting):
            self._gate.remove(ticket)
        self._waiting.clear()
        for sent in (*bundles, *waiting):
            self._reply(sent, sent.failed)

    def _reply(self, sent: Sent, take: Callable[[Sent], None]) -> None:
        sent.left = self._world.now
        sent.outlook = self._gate.outlook(sent.sender, sent.left, sent.waited_s if sent.behind_others else 0.0)
        if self._answer_s > 0.0:
            self._world.at(sent.left + self._answer_s, partial(take, sent))
        else:
            take(sent)
