"""A simulated router: drives the core by the virtual clock, as `serve_app.router.dispatcher` does by an event loop.

One decision per instant, however many events it has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

from serve_app.errors import RETURNED
from serve_app.payloads import RequestAttributes
from serve_app.pools.policy.messages import HostsListed, Order
from serve_app.scheduling.core import RouterCore
from serve_app.scheduling.decisions import Change, Dispatch, Rejection
from serve_app.scheduling.driver import Why
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.health.liveness import Liveness
from serve_app.scheduling.scheduler import Scheduler
from serve_app_simulator.members import Members
from serve_app_simulator.processor import Processor
from serve_app_simulator.replica import Sent, SimulatedReplica
from serve_app_simulator.system import Request, Timer, World
from serve_app_simulator.ties import SimulatedTies

_NUMBERS = count(1)


class Patience(NamedTuple):
    """How a router deals with replicas that do not answer.

    Attributes:
        bundle_timeout_s: See `RouterCore`.
        silence_s: After so long without data a replica is unresponsive, seconds.
        kill_s: After so long it is killed, seconds; ``None``: never.
    """

    bundle_timeout_s: float
    silence_s: float
    kill_s: float | None


class _Watched:
    """A replica with requests of a router in flight.

    Attributes:
        bundles: Bundles in flight.
        data_received: Whether any data has come since the last look.
    """

    __slots__ = ("bundles", "data_received", "liveness")

    def __init__(
        self,
        world: World,
        core: RouterCore[Sent],
        model: str,
        name: str,
        patience: Patience,
        ask: Callable[[], None],
    ) -> None:
        self.bundles = 0
        self.data_received = False
        self.liveness = Liveness(
            patience.silence_s,
            patience.kill_s,
            call_later=lambda seconds, action: world.at(world.now + seconds, action),
            in_flight=lambda: self.bundles > 0,
            data_received=self._take_received,
            ask=ask,
            on_unresponsive=lambda: core.on_unresponsive(model, name, world.now),
            on_responsive=lambda: core.on_responsive(model, name, world.now),
            on_given_up=lambda: world.kill(name),
        )

    def _take_received(self) -> bool:
        data_received, self.data_received = self.data_received, False
        return data_received


class SimulatedRouter:
    """One router: its core, and the `serve_app.scheduling.core.Driver` of it.

    Args:
        world: Its clock and its clients.
        scheduler: Decides.
        replicas: By name, those of all models; they come and go.
        settings: How it deals with replicas that do not answer.
        newest_frame_wins: Whether a video stream's new frame takes the place of its waiting one.
        ties: Where replicas agree on who runs what several have.
        members: Has the hosts of pools do what they are told.
    """

    def __init__(
        self,
        world: World,
        scheduler: Scheduler,
        replicas: dict[str, SimulatedReplica],
        settings: Patience,
        newest_frame_wins: bool,
        ties: SimulatedTies,
        members: Members,
    ) -> None:
        self.name = f"router-{next(_NUMBERS)}"
        self.scheduler = scheduler
        self._core: RouterCore[Sent] = RouterCore(scheduler, self, settings.bundle_timeout_s, ties, self._order)
        self._members = members
        self._world = world
        self._replicas = replicas
        self._patience = settings
        # Only where something hangs: elsewhere no replica is ever unresponsive.
        self._watches = any(failure.kind == "hang" for failure in world.scenario.failures)
        self._watched: dict[str, _Watched] = {}
        self._newest_frame_wins = newest_frame_wins
        shares = {priority: settings.min_share for priority, settings in world.scenario.classes.items()}
        self._processor = Processor(world, shares, self._arrived, world.drop)
        self._frames: dict[int, Entry] = {}
        self._timer: Timer | None = None

    def arrive(self, request: Request) -> None:
        """Queue a request for the processor."""
        self._processor.arrive(request)

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
            attributes=RequestAttributes(request.tenant),
        )
        if request.stream >= 0 and self._newest_frame_wins:
            self._replace(entry, request.stream)
        if self._core.arrive(entry, now) is not None:
            self._world.drop(request)

    def _replace(self, entry: Entry, stream: int) -> None:
        """Drop the frame of a stream that still waits, here or at a gate, for a newer one."""
        older = self._frames.get(stream)
        if older is not None:
            older.payload.replaced = True
            if older.state is EntryState.QUEUED:
                self._drop_replaced(older)
            self._core.recall(older)
        self._frames[stream] = entry

    def _drop_replaced(self, entry: Entry) -> None:
        self._core.cancel(entry, self._world.now)
        self._world.drop(entry.payload)

    def on_replicas(self, model: str, names: Sequence[str]) -> None:
        """Take over a changed list of a model's replicas."""
        self._core.on_replicas(model, names, self._world.now)
        for name in names:
            self._core.on_linked(model, name, linked=True)

    def on_hosts(self, pool: str, names: Sequence[str]) -> None:
        """Take over the list of a pool's hosts."""
        self._on_device_event(pool, HostsListed(names))

    def done(self, sent: Sent) -> None:
        """Answer the clients of a bundle once the processor has encoded the answers."""
        self._processor.answer(len(sent.dispatch.entries), partial(self._answered_by, sent))

    def _answered_by(self, sent: Sent) -> None:
        dispatch = sent.dispatch
        self._data_received(dispatch)
        codes = [sent.codes.get(entry) for entry in dispatch.entries]
        alive = self._core.answered(
            dispatch,
            codes,
            sent.executions,
            self._world.now,
            sent.waited_s,
            sent.runs_s,
            sent.reported_backlog_s,
            sent.model_works,
        )
        for entry in alive:
            if sent.codes and entry in sent.codes:
                self._world.drop(entry.payload)
            else:
                self._world.answer(entry.payload, hop="direct")
        for entry, code in sent.codes.items():
            if code == RETURNED and entry.payload.replaced and entry.state is EntryState.QUEUED:
                self._drop_replaced(entry)

    def failed(self, sent: Sent) -> None:
        """Give up a bundle that failed with its replica."""
        if (watched := self._watched.pop(str(sent.dispatch.replica), None)) is not None:
            watched.liveness.end()
        self._core.lost(sent.dispatch, self._world.now, replica_lost=True, reached=sent.reached)

    def _watch(self, dispatch: Dispatch) -> None:
        """Watch the replica of a bundle, which may become unresponsive."""
        name = str(dispatch.replica)
        if (watched := self._watched.get(name)) is None:
            ask = partial(self._ask, name)
            watched = self._watched[name] = _Watched(self._world, self._core, dispatch.model, name, self._patience, ask)
        watched.bundles += 1
        watched.liveness.begin()

    def _ask(self, name: str) -> None:
        """Probe a replica. Probe and answer travel as long as a message usually does."""
        hop_s, at = self._world.overheads.send_s, self._world.at

        def answered() -> None:
            at(self._world.now + hop_s, partial(self._answered, name))

        at(self._world.now + hop_s, partial(self._replicas[name].probe, answered))

    def _answered(self, name: str) -> None:
        if (watched := self._watched.get(name)) is not None:
            watched.data_received = True

    def _data_received(self, dispatch: Dispatch) -> None:
        if (watched := self._watched.get(str(dispatch.replica))) is not None:
            watched.bundles -= 1
            watched.data_received = True

    # ------------------------------------------------------------ as `Driver`

    def pump_soon(self) -> None:
        """See `Driver.pump_soon`."""
        self._world.at(self._world.now, self._pump)

    def _pump(self) -> None:
        self._core.pump(self._world.now)

    def set_timer(self, at: float) -> None:
        """See `Driver.set_timer`."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._world.at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._core.fire(self._world.now)

    def wake_up(self, dispatch: Dispatch) -> None:
        """See `Driver.wake_up`. The world starts replicas by what is queued."""

    def send(self, dispatch: Dispatch, now: float, places: Sequence[int]) -> Sent:
        """See `Driver.send`."""
        sent = Sent(dispatch, now, places, self.done, self.failed)
        if self._watches:
            self._watch(dispatch)
        to = self._replica_of(dispatch)
        hop_s = self._world.hop_s("send")
        sent.reaches = now + hop_s
        self._world.at(sent.reaches, partial(to.arrive, sent))
        return sent

    def recall(self, sent: Sent, dispatch: Dispatch, entries: Collection[Entry]) -> None:
        """See `Driver.recall`. Messages do not overtake each other on their way."""
        to = self._replica_of(dispatch)
        reaches = max(sent.reaches, self._world.now + self._world.hop_s("send"))
        self._world.at(reaches, partial(to.recall, sent, entries))

    def _replica_of(self, dispatch: Dispatch) -> SimulatedReplica:
        return self._replicas[self._members.replica_of(dispatch.model, str(dispatch.replica))]

    def fail(self, entry: Entry, why: Why, refusal: Rejection | None = None) -> None:  # noqa: ARG002 - a `Driver`
        """See `Driver.fail`."""
        self._world.drop(entry.payload)

    def timed_out(self, dispatch: Dispatch) -> None:
        """See `Driver.timed_out`. There is no log."""

    def changed(self, changes: Sequence[Change]) -> None:
        """See `Driver.changed`. There is no log."""

    # ---------------------------------------------------------------- pools

    def _order(self, order: Order) -> None:
        self._members.carry_out(order, self._on_device_event)

    def _on_device_event(self, pool: str, event: object) -> None:
        self._core.on_device_event(pool, event, self._world.now)
