"""The device of a pool: many models, in few processes that have memory for some of them (`pools.policy.residency`).

The router composes the batches of all members, by class and slack (`pools.policy.composing`); a batch goes only to a
host where its model is resident. Waiting entries of another member are a reason to load it, if any of them can be in
time after the load and its run. The others are given up at once. So a load stands on the same clock as deadlines, as an
action of Clockwork's (Gujarati et al., OSDI 2020).

    loads at a free host   the member with the most urgent class; among equals, the most rows per second of loading,
                           with those likely to arrive while it is resident
    makes room             the least value per byte, as of `pools.policy.residency`; never a member in use, nor one
                           with as many waiting rows that are as urgent
    drains                 a member in use that must make room for one that cannot wait gets no more until it is evicted
    not at once            evicting a member loaded only just now, unless an entry would otherwise be too late
    one more copy          of a member whose entries wait longer for its hosts than a load takes, at an idle host, if
                           that is worth more than the members it evicts
    fair                   a part of the loads is of the member requested longest ago, whatever else waits
    not beside `high`      a load for less urgent entries, where `high` runs, unless an entry would be too late
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any, NamedTuple

from serve_app.domain.priority import Priority
from serve_app.pools.policy.composing import Candidate, ComposingDevice
from serve_app.pools.policy.messages import HostsListed, LoadFailed, MemberLoaded, MemberMissing, Order
from serve_app.pools.policy.residency import Host, Residency
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.decisions import Rejection
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.model_state import ModelState
from serve_app.scheduling.placement.devices import DeviceChange, NextBundle
from serve_app.scheduling.settings import ClassSettings
from serve_app.scheduling.slots import Replica

_FAIR_PART = 0.05
_FAIR_AFTER_S = 1.0
"""That part of the loaders' time goes to the member that has waited longest for a load, if at least this long, seconds:
none is starved by others with more requests. Its clients may have given up meanwhile, and others come.
"""
_FUTURE = 0.5
"""Expected requests per remembered request while a member is resident."""
_PRIORITIES = tuple(Priority)
_HIGH = Priority.HIGH


class _Want(NamedTuple):
    """A member to load.

    Attributes:
        priority: The most urgent class that waits for it.
        latest: When the load must begin for its most urgent entry, seconds.
        worth: Waiting and expected rows per second of loading.
    """

    model: ModelState
    priority: Priority
    latest: float
    worth: float


class _InFlight(NamedTuple):
    """A bundle at a host, with its predicted end."""

    model: str
    host: str
    priority: Priority
    end: float


class PoolDevice(ComposingDevice):
    """The hosts of a pool, and its members.

    Args:
        pool: Models join one by one, and hosts come with `HostsListed`.
        classes: Limits of every class.

    Attributes:
        residency: Where its members are loaded.
        waiting: Members with waiting entries that are not resident. They are `active` only after an event, so a
            decision costs nothing for them, unless a loader is free.
        load_at: When to call `orders` again without another event, seconds; ``inf``: never.
    """

    __slots__ = (
        "_ahead",
        "_at",
        "_bundles",
        "_draining",
        "_due",
        "_fair_at",
        "_models",
        "_pending",
        "_pool",
        "_wanted",
        "load_at",
        "residency",
        "waiting",
    )

    def __init__(self, pool: Pool, classes: Mapping[Priority, ClassSettings]) -> None:
        super().__init__(pool, classes)
        self.residency = Residency(pool)
        self.load_at = inf
        self.waiting: dict[ModelState, float] = {}
        # Events of waiting members' own; stale ones are dropped when they come up.
        self._due: list[tuple[float, str, ModelState]] = []
        # Cached findings about waiting members, until their next event.
        self._wanted: dict[ModelState, _Want] = {}
        self._pool = pool
        self._models: dict[str, ModelState] = {}
        self._bundles: dict[int, _InFlight] = {}
        self._at: dict[str, dict[int, _InFlight]] = {}
        # By host, bundles there of each class and those above it.
        self._ahead: dict[str, list[int]] = {}
        self._pending: list[Order] = []
        self._fair_at = -inf
        # By host, members in use that are to be evicted.
        self._draining: dict[str, set[str]] = {}

    # ---------------------------------------------------------------- models

    def join(self, model: ModelState) -> None:
        """Add a member. Raises ValueError if its memory is not declared, or no host could ever hold it."""
        self.residency.join(model.settings.name, model.settings.resident_bytes)
        self._models[model.settings.name] = model

    def leave(self, model: ModelState, bundles: Collection[int]) -> None:
        """Remove a member, and unload it everywhere."""
        for bundle_id in bundles:
            self.ended(bundle_id)
        self.active.pop(model, None)
        self.waiting.pop(model, None)
        self._wanted.pop(model, None)
        del self._models[model.settings.name]
        self._pending += self.residency.leave(model.settings.name)

    # ---------------------------------------------------------------- events

    def on_event(self, event: object, now: float) -> DeviceChange:
        """Handle an event of the hosts. Raises TypeError for one of another kind."""
        match event:
            case HostsListed(hosts):
                lost = self._set_hosts(hosts)
                return DeviceChange(replicas=[(model, self._hosts_of(model)) for model in lost])
            case MemberLoaded(name, host, seconds, nbytes):
                self._pending += self.residency.loaded(name, host, seconds, nbytes, now)
                change = self._changed(name)
                return change._replace(gained=[model for model, _ in change.replicas])
            case LoadFailed(name, host, refusal):
                self.residency.failed(name, host, now, refusal)
                change = self._changed(name)
                refusals = [(model, self.refusal(model, now)) for model, _ in change.replicas]
                return change._replace(refused=[(model, why) for model, why in refusals if why is not None])
            case MemberMissing(name, host):
                self.residency.unloaded(name, host)
                return self._changed(name)
        return super().on_event(event, now)

    def _set_hosts(self, names: Collection[str]) -> list[ModelState]:
        """Replace the list of hosts. Returns the members that lost one."""
        lost = self.residency.set_hosts(names)
        self._at = {name: self._at.get(name, {}) for name in names}
        self._ahead = {name: self._ahead.get(name) or [0] * len(_PRIORITIES) for name in names}
        self.concurrency = self._pool.concurrency * max(1, len(names))
        return [self._models[name] for name in lost if name in self._models]

    def _changed(self, name: str) -> DeviceChange:
        """The effect of a load, or of a loss, on a member."""
        model = self._models.get(name)
        return DeviceChange() if model is None else DeviceChange(replicas=[(model, self._hosts_of(model))])

    def arrived(self, entry: Entry, model: ModelState, now: float) -> None:
        """Record an accepted entry."""
        super().arrived(entry, model, now)
        self.residency.requested(model.settings.name, now)

    def late(self, model: ModelState, now: float) -> bool:
        """Count a refused late entry in the value of its member."""
        self.residency.requested(model.settings.name, now)
        return True

    def launched(self, bundle_id: int, following: NextBundle, now: float) -> None:
        """Record a sent bundle, unless its host is gone."""
        host, name = str(following.replica.name), following.model.settings.name
        if host not in self._at:
            return
        priority = following.entries[0].priority
        ahead = [other.end for other in self._at[host].values() if other.priority <= priority]
        sent = _InFlight(name, host, priority, max([now, *ahead]) + following.predicted_s)
        self._bundles[bundle_id] = self._at[host][bundle_id] = sent
        for place in range(priority - 1, len(_PRIORITIES)):
            self._ahead[host][place] += 1
        in_use = self.residency.hosts[host].in_use
        in_use[name] = in_use.get(name, 0) + 1

    def ended(self, bundle_id: int) -> None:
        """Record that a bundle was answered, failed, or was given up."""
        sent = self._bundles.pop(bundle_id, None)
        if sent is None:
            return
        if self._at.get(sent.host, {}).pop(bundle_id, None) is None:
            return
        for place in range(sent.priority - 1, len(_PRIORITIES)):
            self._ahead[sent.host][place] -= 1
        if (host := self.residency.hosts.get(sent.host)) is not None and sent.model in host.in_use:
            host.in_use[sent.model] -= 1
            if not host.in_use[sent.model]:
                del host.in_use[sent.model]

    # ------------------------------------------------------------- questions

    @property
    def wake_at(self) -> float:
        """When a member has an event of its own, or a load may begin, seconds; ``inf``: never."""
        due = self._due
        while due and self.waiting.get(due[0][2]) != due[0][0]:
            heappop(due)
        busy = [model.wake_at for model in self.active]
        return min([self.recheck_at, self.load_at, due[0][0] if due else inf, *busy])

    def wake(self, now: float) -> None:
        """Activate waiting members with a due event of their own."""
        due = self._due
        while due and due[0][0] <= now:
            at, _, model = heappop(due)
            if self.waiting.get(model) == at:
                self.active[model] = None

    def ready_s(self, model: ModelState, now: float) -> float:
        """Time until a member is loaded somewhere, seconds: 0.0 if it is resident."""
        return self.residency.ready_s(model.settings.name, now)

    def refusal(self, model: ModelState, now: float) -> Rejection | None:
        """Why entries must not wait for a member now: its last load has failed, and another would as well."""
        return self.residency.refusal(model.settings.name, now)

    def can_start(self, model: ModelState) -> bool:
        """Whether there is a host, and the member can be loaded there as far as known."""
        return bool(self.residency.hosts) and self.residency.members[model.settings.name].refusal is None

    def wait_s(self, now: float) -> float:
        """Predicted time until the first host is idle, seconds."""
        ends = [max([sent.end for sent in sent_there.values()], default=now) for sent_there in self._at.values()]
        return max(0.0, min(ends, default=now) - now)

    @property
    def places(self) -> int:
        """Number of reachable hosts."""
        return len(self.residency.hosts)

    def snapshot(self) -> dict[str, Any]:
        """A JSON-able snapshot: what its hosts have loaded, and counts of loads and evictions."""
        return self.residency.snapshot()

    def in_use(self, host: str) -> Sequence[str]:
        """The members with a bundle in flight at a host; none if that is unknown."""
        found = self.residency.hosts.get(host)
        return () if found is None else tuple(found.in_use)

    def resident(self, host: str) -> Sequence[str]:
        """The members that a host has loaded; none if that is unknown."""
        found = self.residency.hosts.get(host)
        return () if found is None else tuple(member.name for member in found.residents)

    def _hosts_of(self, model: ModelState) -> Collection[str]:
        return self.residency.members[model.settings.name].hosts

    # ------------------------------------------------------------- decisions

    def orders(self, now: float, given_up: list[Entry]) -> list[Order]:
        """Loads and evictions to order now, in this order; entries that no load can serve in time are given up."""
        self._rest()
        orders = self._orders(now, given_up)
        self._rest()
        return orders

    def _rest(self) -> None:
        """Deactivate members with nothing to do, and put those aside that only wait for a load."""
        for model in list(self.active):
            self._wanted.pop(model, None)
            if model.slots.replicas or not model.queue.total.rows:
                self.waiting.pop(model, None)
                continue
            del self.active[model]
            at = model.wake_at
            if self.waiting.get(model) != at:
                self.waiting[model] = at
                heappush(self._due, (at, model.settings.name, model))
        for model in [model for model in self.active if not model.queue and model.wake_at == inf]:
            del self.active[model]

    def _orders(self, now: float, given_up: list[Entry]) -> list[Order]:
        orders, self._pending = self._pending, []
        self.load_at = inf
        self._draining.clear()
        residency = self.residency
        for member, eviction in residency.trim():
            orders.append(eviction)
            self._unlist(member.name, now)
        free = residency.free_hosts()
        if not free:
            return orders
        wants = sorted(self._wants(now, given_up), key=_order) + self._copies(free, now)
        fair = wants and self._fair_at <= now and self._starved(wants, now)
        for want in [fair, *wants] if fair else wants:
            if self.residency.members[want.model.settings.name].loading:
                continue  # in its fair turn
            made = self._load(want, free, now, fair=want is fair)
            if made:
                if want is fair:
                    load_s = self.residency.load_s(self.residency.members[want.model.settings.name])
                    self._fair_at = now + load_s / (_FAIR_PART * len(self.residency.hosts))
                orders += made
                free = residency.free_hosts()
                if not free:
                    break
        return orders

    def _wants(self, now: float, given_up: list[Entry]) -> list[_Want]:
        """Members with entries that a load which begins now would serve in time."""
        wants = []
        for model in self.waiting:
            member = self.residency.members[model.settings.name]
            if member.loading:
                continue
            if member.held_until > now:
                self.load_at = min(self.load_at, member.held_until)
                continue
            if (want := self._wanted.get(model)) is not None and want.latest >= now:
                wants.append(want)
                continue
            load_s = self.residency.load_s(member)
            around_s = load_s + model.overhead.at(now)
            head = self._head_in_time(model, now + around_s, given_up)
            if head is not None:
                latest = head.deadline - around_s - model.solo_s(head)
                # Probes go before no other entry.
                priority = Priority.LOW if head.probe else head.priority
                rows = model.queue.total.rows + _FUTURE * member.requests(now, self._pool.memory_s)
                want = _Want(model, priority, latest, rows / max(1e-9, load_s))
                self._wanted[model] = want
                wants.append(want)
        return wants

    def _copies(self, free: Iterable[Host], now: float) -> list[_Want]:
        """Members whose entries wait longer for their hosts than a load takes, while another host idles."""
        idle = [host.name for host in free if not self._at[host.name]]
        if not idle or len(self._at) < 2:
            return []
        wants = []
        for model in self.active:
            member = self.residency.members[model.settings.name]
            if not model.queue.total.rows or not member.hosts or member.loading or member.held_until > now:
                continue
            if all(name in member.hosts for name in idle):
                continue
            ends = [max([sent.end for sent in self._at[name].values()], default=now) for name in member.hosts]
            if min(ends) - now > self.residency.load_s(member):
                wants.append(_Want(model, Priority.LOW, inf, model.queue.total.rows))
        return sorted(wants, key=_order)

    def _head_in_time(self, model: ModelState, begins: float, given_up: list[Entry]) -> Entry | None:
        """The most urgent entry of a member that is in time if it begins then. Late ones are given up."""
        first: Entry | None = None
        late: list[Entry] = []
        for priority in _PRIORITIES:
            for queue in (model.queue.fresh[priority - 1], model.queue.retry[priority - 1]):
                while queue.rows and (head := queue.head()) is not None:
                    if head.probe or begins + model.solo_s(head) <= head.deadline:
                        if first is None:
                            first = head
                        break
                    late.append(queue.pop())
        if late:
            model.queue.ended([entry for entry in late if not entry.attempts], ran=False)
            given_up += late
            self.active[model] = None
        return first

    def _starved(self, wants: Iterable[_Want], now: float) -> _Want | None:
        """The member that has waited longest for a load, if that is long."""
        members = self.residency.members

        def since(want: _Want) -> tuple[float, str]:
            name = want.model.settings.name
            return members[name].wanted_since, name

        longest = min(wants, key=since)
        return longest if since(longest)[0] < now - _FAIR_AFTER_S else None

    def _load(self, want: _Want, free: Iterable[Host], now: float, *, fair: bool) -> list[Order]:
        """Load a member at the lowest cost; no orders if it has to wait."""
        member = self.residency.members[want.model.settings.name]
        # One more load may come before it.
        urgent_at = want.latest - self.residency.load_s(member)
        urgent = urgent_at <= now
        best: tuple[float, int, Host, list[str]] | None = None
        for host in free:
            if host.name in member.hosts:
                continue
            if want.priority is not _HIGH and not urgent and self._runs_high(host):
                self.load_at = min(self.load_at, urgent_at)
                continue
            room = self.residency.room(
                member, host, now, lambda name: not fair and self._keeps(name, want), urgent=urgent or fair
            )
            if room.victims is None:
                if urgent or fair:
                    self._drain(want, host, now, fair=fair)
                self.load_at = min(self.load_at, max(now, min(room.again_at, urgent_at)) if not urgent else inf)
                continue
            if member.hosts and room.worth >= self.residency.value(member, len(member.hosts) + 1):
                continue  # the victim must be worth less than the copy
            cost = (room.worth, host.used_bytes, host, [victim.name for victim in room.victims])
            if best is None or cost[:2] < best[:2]:
                best = cost
        if best is None:
            return []
        _, _, host, names = best
        victims = [self.residency.members[name] for name in names]
        orders = self.residency.begin(member, host, victims, now, urgent=want.priority is _HIGH)
        for name in names:
            self._unlist(name, now)
        return orders

    def _drain(self, want: _Want, host: Host, now: float, *, fair: bool) -> None:
        """Stop sending to members at a host that are to be evicted for another once they are not in use."""
        room = self.residency.room(
            self.residency.members[want.model.settings.name],
            host,
            now,
            lambda name: not fair and self._keeps(name, want),
            urgent=True,
            when_idle=True,
        )
        if room.victims is not None and host.name not in self._draining:
            self._draining[host.name] = {victim.name for victim in room.victims if victim.name in host.in_use}

    def _keeps(self, name: str, want: _Want) -> bool:
        """Whether a resident has as many waiting rows that are as urgent."""
        queue = self._models[name].queue
        if not queue.total.rows:
            return False
        return queue.ahead(want.priority)[0] >= want.model.queue.ahead(want.priority)[0]

    def _runs_high(self, host: Host) -> bool:
        return self._ahead[host.name][_HIGH - 1] > 0

    def _unlist(self, name: str, now: float) -> None:
        """Remove one host of a resident member."""
        self._models[name].slots.set_replicas(self.residency.members[name].hosts, now)

    # ------------------------------------------------- hooks of `ComposingDevice`

    def _candidate(self, model: ModelState, now: float) -> Candidate | None:
        queue = model.queue
        for fresh, retry, place in zip(queue.fresh, queue.retry, range(len(_PRIORITIES)), strict=True):
            if fresh.rows or retry.rows:
                # Where there is no room for this class, there is none for those below it.
                most = self._pool.concurrency
                for name in model.slots.replicas:
                    if self._ahead[name][place] < most:
                        return super()._candidate(model, now)
                return None
        return None

    def _is_full(self) -> bool:
        return all(ahead[_HIGH - 1] >= self._pool.concurrency for ahead in self._ahead.values())

    def _choose(self, model: ModelState, priority: Priority, again: Entry | None = None) -> Replica | None:
        slots = model.slots
        if not slots.replicas:
            return None
        avoid = None if again is None or slots.usable <= 1 else again.avoid
        best: Replica | None = None
        least = (inf, inf)
        for replica in slots.replicas.values():
            if replica.held_until is not None or replica.name == avoid or (again is not None and replica.suspects):
                continue
            if self._draining and model.settings.name in self._draining.get(str(replica.name), ()):
                continue
            cost = (self._ahead[str(replica.name)][priority - 1], replica.sent_at)
            if cost < least:
                best, least = replica, cost
        return best

    def _has_room(self, replica: Replica, priority: Priority) -> bool:
        return self._ahead[str(replica.name)][priority - 1] < self._pool.concurrency

    def _begins(self, candidate: Candidate, now: float) -> float:
        there = self._at[str(candidate.replica.name)].values()
        if not there:
            return now
        ahead = [sent.end for sent in there if sent.priority <= candidate.priority]
        # Even with none as urgent ahead, the present run has to end.
        return max([now, *ahead]) if ahead else max(now, min([sent.end for sent in there]))


def _order(want: _Want) -> tuple[Priority, float, float, str]:
    return want.priority, -want.worth, want.latest, want.model.settings.name
