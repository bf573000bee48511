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
from serve_app.scheduling.gate import Gate, Ticket
from serve_app.simulation.system import Execution, Request, World

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
    """

    __slots__ = ("at", "behind_s", "dispatch", "done", "due", "executions", "expired", "failed", "left")

    def __init__(
        self,
        dispatch: Dispatch,
        at: float,
        due: float,
        done: Callable[[Sent], None],
        failed: Callable[[Sent], None],
    ) -> None:
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
        self._gate = Gate()
        self._waiting: dict[int, Sent] = {}
        self._tickets = count(1)
        self._busy = False

    def arrive(self, sent: Sent) -> None:
        """A bundle has reached the replica."""
        sent.behind_s = self._world.now - sent.at
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
                expires=max(deadlines) + sent.behind_s,
            )
        )
        self._open_gate()

    def _open_gate(self) -> None:
        while not self._busy:
            grant = self._gate.grant(self._world.now, self._max_rows)
            for ticket in grant.expired:
                sent = self._waiting.pop(ticket)
                sent.expired = sent.dispatch.entries
                self._reply(sent, sent.done)
            if not grant.granted:
                return
            bundles = [self._waiting.pop(ticket) for ticket in grant.granted]
            runs = self._runs(bundles)
            if runs:
                self._busy = True
                self._execute(bundles, runs, 0)
            else:
                for sent in bundles:
                    self._reply(sent, sent.done)

    def _runs(self, bundles: Sequence[Sent]) -> list[_Run]:
        """What a grant executes. Entries that are late already are left out."""
        now = self._world.now
        open_runs: dict[str, _Run] = {}
        runs: list[_Run] = []
        for sent in bundles:
            variant = sent.dispatch.variant
            started = now - sent.behind_s
            for entry in sent.dispatch.entries:
                if entry.deadline <= started:
                    sent.expired.append(entry)
                    continue
                run = open_runs.get(variant)
                if run is None or run.rows + entry.rows > self._max_rows:
                    run = open_runs[variant] = _Run([], 0, 0, variant, {})
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

    def _execute(self, bundles: list[Sent], runs: list[_Run], place: int) -> None:
        run = runs[place]

        def done(execution: Execution) -> None:
            if execution.failed:
                self._died(bundles)
                return
            observed = (run.rows, run.bucket, execution.seconds, run.variant)
            for sent in run.senders:
                sent.executions.append(observed)
            if place + 1 < len(runs):
                self._execute(bundles, runs, place + 1)
                return
            self._busy = False
            self._open_gate()
            for sent in bundles:
                self._reply(sent, sent.done)

        self._world.execute(self._model, self._name, run.requests, run.rows, run.bucket, done, run.variant)

    def _died(self, bundles: list[Sent]) -> None:
        """The replica is gone: what ran and what waited here fails."""
        self._busy = False
        waiting = list(self._waiting.values())
        for ticket in list(self._waiting):
            self._gate.remove(ticket)
        self._waiting.clear()
        for sent in (*bundles, *waiting):
            self._reply(sent, sent.failed)

    def _reply(self, sent: Sent, take: Callable[[Sent], None]) -> None:
        sent.left = self._world.now
        if self._answer_s > 0.0:
            self._world.at(sent.left + self._answer_s, partial(take, sent))
        else:
            take(sent)
