"""Devices: which model's entries go to a replica next, and when.

Every model belongs to one device. A model of its own sends its entries ahead, so that its replicas' gates can compose
batches of them (`DedicatedDevice`). Models that share processes have a common device, which is passed to the scheduler:
it decides which model is next, where it runs, and what else happens there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import Any, NamedTuple

from serve_app.domain.priority import Priority
from serve_app.scheduling.batching.composition import execution_s
from serve_app.scheduling.decisions import Rejection
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.model_state import ModelState
from serve_app.scheduling.slots import Replica

_PRIORITIES = tuple(Priority)
_COALESCE_FRACTION = 0.0625
"""Entries that arrive within this fraction of an execution travel together to a busy replica."""
_COALESCE_S = 0.001
"""The same for short executions, where a bundle, a task and a message in two processes cost more."""
_TIED_FROM_S = 0.005
"""Entries are tied if executions take at least this: a copy costs two processes a message, and saves a part of one."""
_APART_S = 0.002
"""Bundles of models whose rows take as long hold no more than share a run; where lengths differ, that is one entry."""
_MAX_PARTS_OF_BATCH = 2
_MIN_ROWS = 2
"""A bundle for a busy replica has at most the rows of a usual batch over the first, and may have the second: what a
batch leaves over of a bundle goes back to its router."""
_BUNDLE_S = 0.005
"""Beside an execution of this length, the cost of a bundle for its two processes is small, so it may have more rows."""


class NextBundle(NamedTuple):
    """A bundle taken from a queue, with its destination."""

    model: ModelState
    replica: Replica
    entries: list[Entry]
    rows: int
    bucket: int
    variant: str
    predicted_s: float
    tied: Sequence[Replica] = ()
    """Other replicas with the same entries: the first free one runs them."""


class DeviceChange(NamedTuple):
    """The effect of a device's event on its models. The scheduler applies it in this order.

    Attributes:
        refused: Models whose entries must not wait now, and why.
        replicas: By model, where it can run from now on.
        gained: Models that can run at one more place, where entries of silent replicas are tried, too.
    """

    refused: Sequence[tuple[ModelState, Rejection]] = ()
    replicas: Sequence[tuple[ModelState, Collection[str]]] = ()
    gained: Sequence[ModelState] = ()


class Device:
    """The place where models compute. Its methods do nothing unless a subclass overrides them.

    Attributes:
        name: Of a shared device; empty for that of one model.
        models: Names of models that share it from the start.
        concurrency: Executions at once over all its models; 0: as many as they have replicas.
        active: Models with queued entries or other pending events.
        recheck_at: When to call `next_bundle` again without another event, seconds; ``inf``: never.
    """

    __slots__ = ("active", "concurrency", "models", "name", "recheck_at")

    def __init__(self, name: str = "", models: Collection[str] = (), concurrency: int = 0) -> None:
        self.name = name
        self.models = models
        self.concurrency = concurrency
        self.active: dict[ModelState, None] = {}
        self.recheck_at = inf

    # ---------------------------------------------------------------- models

    def join(self, model: ModelState) -> None:
        """Add a model. Raises ValueError if it cannot run here."""

    def leave(self, model: ModelState, bundles: Collection[int]) -> None:
        """Remove a model; its bundles no longer count."""

    # ---------------------------------------------------------------- events

    def arrived(self, entry: Entry, model: ModelState, now: float) -> None:
        """Record that an entry of a model was accepted."""

    def late(self, model: ModelState, now: float) -> bool:  # noqa: ARG002 - of devices with more to do
        """Record that an entry was refused since it could not be in time. Returns whether that changes anything."""
        return False

    def launched(self, bundle_id: int, following: NextBundle, now: float) -> None:
        """Record that a bundle was sent."""

    def ended(self, bundle_id: int) -> None:
        """Record that a bundle was answered, failed, or was given up."""

    def on_event(self, event: object, now: float) -> DeviceChange:  # noqa: ARG002 - of devices with events
        """Handle an event of this kind of device."""
        raise TypeError(f"{type(self).__name__} has no event {event!r}")

    # ------------------------------------------------------------- questions

    @property
    def wake_at(self) -> float:
        """When to ask again for the next bundle, or for an event of its own, seconds; ``inf``: never."""
        return self.recheck_at

    def wait_s(self, now: float) -> float:  # noqa: ARG002 - of devices with bundles in flight
        """Predicted time until one more execution has room on the device, seconds."""
        return 0.0

    def ready_s(self, model: ModelState, now: float) -> float:  # noqa: ARG002 - of devices that start models
        """Time until a model without replicas can run, if nothing is ahead of it, seconds."""
        return 0.0

    def refusal(self, model: ModelState, now: float) -> Rejection | None:  # noqa: ARG002 - of devices that start models
        """Why entries must not wait for a model without replicas now."""
        return None

    def can_start(self, model: ModelState) -> bool:  # noqa: ARG002 - of devices that start models
        """Whether the device itself can give a model a place to run."""
        return False

    @property
    def places(self) -> int:
        """Number of reachable processes that its models share."""
        return 0

    def snapshot(self) -> dict[str, Any]:
        """A JSON-able snapshot."""
        return {}

    # ------------------------------------------------------------- decisions

    def wake(self, now: float) -> None:
        """Activate the models with a due event of their own."""

    def next_bundle(self, now: float, given_up: list[Entry]) -> NextBundle | None:
        """Take the next bundle from a queue, for a replica with room; ``None`` if nothing goes now.

        Expired entries must have been taken out before. The caller counts the bundle in.

        Args:
            given_up: Receives the entries that are not worth executing any more. The caller ends them.
        """
        raise NotImplementedError

    def orders(self, now: float, given_up: list[Entry]) -> Sequence[Any]:  # noqa: ARG002 - of devices with orders
        """At the end of a decision, return the orders besides bundles; arguments as of `next_bundle`.

        Called for devices with a name. Models with nothing to do need not be active any more.
        """
        return ()


class DedicatedDevice(Device):
    """A model whose replicas share nothing with other models.

    Entries go to a replica at once while there is room (`Slots`), so that its gate has them when the session is free.
    Those that arrive within a fraction of an execution travel together, unless one is more urgent than everything
    there.
    """

    __slots__ = ("_model",)

    def __init__(self, model: ModelState) -> None:
        super().__init__()
        self._model = model
        self.active[model] = None

    @property
    def wake_at(self) -> float:
        """When to ask again for the next bundle, or for an event of its own, seconds; ``inf``: never."""
        return min(self.recheck_at, self._model.wake_at)

    def next_bundle(self, now: float, given_up: list[Entry]) -> NextBundle | None:  # noqa: ARG002 - a `Device`
        """Take the next bundle from the queue, for a replica with room; ``None`` if nothing goes now."""
        self.recheck_at = inf
        model = self._model
        queue, slots, most = model.queue, model.slots, model.settings.max_rows
        for priority in _PRIORITIES:
            fresh, retry = queue.fresh[priority - 1], queue.retry[priority - 1]
            head = fresh.head() if fresh.rows else None
            again = retry.head() if retry.rows else None
            if again is not None and (head is None or (again.deadline, again.id) <= (head.deadline, head.id)):
                replica = slots.choose(priority, most, now, 0.0, again.avoid, suspect=True)
                if replica is not None:
                    retry.pop()
                    return self._bundle(replica, [again])
            if head is None:
                continue
            if fresh.has_tenants:
                if (following := self._dealt(priority, now)) is not None:
                    return following
                continue
            # One replica needs no comparison.
            replica = slots.choose(priority, most, now, model.per_row_s if len(slots.replicas) > 1 else 0.0)
            if replica is None:
                continue
            if not replica.bundles:
                return self._bundle(replica, self._take(priority, head, replica, most))
            part = min(self._part(), self._together(head))
            if fresh.rows < part and replica.rows_before(priority):
                alone_s = model.latencies.of(head.variant).predict(1, head.bucket)
                light = 0.0 < alone_s < _APART_S
                send_at = replica.sent_at + (_COALESCE_S if light else _COALESCE_FRACTION * alone_s)
                # After the present run, the gate would compose the next batch without them.
                if now < send_at and (light or send_at < replica.free_at):
                    self.recheck_at = send_at
                    return None  # less urgent entries do not go before it
            tied = self._tied(priority, replica, head)
            return self._bundle(replica, self._take(priority, head, replica, part if replica.rows else most), tied)
        return None

    def _tied(self, priority: Priority, replica: Replica, head: Entry) -> Sequence[Replica]:
        """Other replicas for entries that this one cannot begin at once, so that the first free replica runs them."""
        model, copies = self._model, self._model.settings.copies
        if not replica.bundles or not replica.linked or copies == 1 or head.is_cut:
            return ()
        if model.per_row_s * model.run_rows < _TIED_FROM_S:
            return ()
        return model.slots.beside(replica, priority, model.settings.max_rows, copies - 1)

    def _part(self) -> int:
        """Most rows of a bundle for a busy replica."""
        model = self._model
        per_row_s = model.per_row_s
        light = int(_BUNDLE_S / per_row_s) if per_row_s else 0
        return min(model.settings.max_rows, max(_MIN_ROWS, round(model.run_rows / _MAX_PARTS_OF_BATCH), light))

    def _together(self, head: Entry) -> int:
        """Most rows of a bundle with this head: rows that its gate does not run at once return, and are sent again."""
        model = self._model
        if model.per_row_s < _APART_S:
            return model.settings.max_rows
        latency = model.latencies.of(head.variant)
        return 1 if len(latency.buckets) > 1 else latency.enough(head.bucket, model.settings.max_rows)

    def _take(self, priority: Priority, head: Entry, replica: Replica, most: int) -> list[Entry]:
        """Take entries of one batch key as far as there is room, those of the class before less urgent ones."""
        model = self._model
        queue, batch_key = model.queue, head.batch_key
        room = model.slots.window * model.settings.max_rows
        queue.fresh[priority - 1].take_head(batch_key)
        entries, rows = [head], head.rows
        if rows > 1 and head.is_cut:
            return entries
        if queue.total.rows:
            most = min(most, self._together(head))
        for other in _PRIORITIES[priority - 1 :]:
            if rows < most and queue.fresh[other - 1].rows:
                left = min(most, room - replica.rows_before(other)) - rows
                rows += queue.fresh[other - 1].take(entries, left, batch_key)
        return entries

    def _dealt(self, priority: Priority, now: float) -> NextBundle | None:
        """A bundle of several tenants' entries, first of the one with the fewest rows at the replicas for its weight.

        A tenant with less there than its part always finds room: otherwise the gates could choose only from entries of
        a tenant that sends more.
        """
        model = self._model
        slots, most = model.slots, model.settings.max_rows
        waiting = model.queue.fresh[priority - 1].waiting()
        turns = []
        for queue in waiting:
            head = queue.head()
            assert head is not None
            turns.append((slots.rows_of(priority, queue.tenant) / queue.weight, head.deadline, head.id, queue))
        heapify(turns)
        head = turns[0][3].head()
        assert head is not None
        part = slots.window * most * max(1, slots.usable) / sum([queue.weight for queue in waiting])
        replica = slots.choose(priority, most, now, model.per_row_s)
        if replica is None and turns[0][0] < part:
            replica = slots.choose(priority, inf, now, model.per_row_s)
        if replica is None:
            return None
        longest = min(self._part() if replica.rows else most, self._together(head))
        batch_key, rows = head.batch_key, 0
        entries: list[Entry] = []
        room = slots.window * most - replica.rows_before(priority)
        while turns:
            ahead, _, _, queue = turns[0]
            following = queue.head(batch_key)
            if following is None or (rows >= room and ahead >= part):
                heappop(turns)
                continue
            if entries and (rows + following.rows > longest or following.is_cut or entries[0].is_cut):
                break
            queue.take_head(batch_key)
            entries.append(following)
            rows += following.rows
            heapreplace(turns, (ahead + following.rows / queue.weight, following.deadline, following.id, queue))
        return self._bundle(replica, entries, self._tied(priority, replica, entries[0]))

    def _bundle(self, replica: Replica, entries: list[Entry], tied: Sequence[Replica] = ()) -> NextBundle:
        model = self._model
        head = entries[0]
        rows, bucket = head.rows, head.bucket
        if len(entries) > 1:
            rows = sum([entry.rows for entry in entries])
            bucket = max([entry.bucket for entry in entries])
        latencies, most = model.latencies, model.settings.max_rows
        latency = latencies.of(head.variant) if head.variant else latencies.exact
        predicted_s = latency.predict(rows, bucket) if rows <= most else execution_s(latency, rows, bucket, most)
        return NextBundle(model, replica, entries, rows, bucket, head.variant, predicted_s, tied)


def shared_by(devices: Iterable[Device]) -> dict[str, str]:
    """Names of shared devices, by model. Raises ValueError if a model is on two."""
    found: dict[str, str] = {}
    for device in devices:
        for name in device.models:
            if name in found:
                raise ValueError(f"device {device.name}: model {name} is on two devices")
            found[name] = device.name
    return found
