"""Residency: which members of a pool are loaded in which of its hosts, and which are evicted for others.

A pool has more models than its hosts have memory for. This module keeps the books on the router's clock and issues
orders; hosts only carry them out. `pools.policy.device`, which knows the queues, decides which entry is worth a load.

Theory of operation. A member has one state per host:

    absent ──begin──> loading ──loaded──> resident ──evict, unloaded──> absent
                         └──failed──> absent, and held: loaded nowhere for 1 s, doubled per failure in a row up to 30 s

`room` finds victims for a load: the residents of least value, one after the other, until the member fits. It passes
over members in use, those that the device keeps, and, unless the load is urgent, those loaded less than ``hold`` loads
ago. The value of a member is what is expected to be lost per byte without it, ``requests x load time / (bytes x
copies)``. This is GreedyDual-Size (Cao and Irani, *Cost-aware WWW proxy caching algorithms*, USITS 1997) with
frequencies (GDSF: Cherkasova, *Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy*, HP
Labs 1998). Their clock, which ages entries, is a decay of the counts here, as in LRFU (Lee et al., IEEE Trans.
Computers 50(12), 2001): between least recently and least frequently used, by how long a request is remembered. All
counts decay alike, so the order of two members changes only on a request. Hence a heap finds the least: a member whose
value has risen since it was put there is put back when it comes up. Loads planned by their measured time are
Clockwork's (Gujarati et al., OSDI 2020).

Invariants:

    memory     ``used_bytes`` of a host is the sum over resident and loading members. A load reserves its bytes, as
               declared or last measured, and starts only if they fit. If measurement shows more, `trim` evicts.
    in use     a member with a bundle in flight at a host is not evicted there, unless it has left the pool
    books      ``member.hosts`` and ``host.residents`` agree, and so do both ``loading``
    unknown    reports about members or hosts that are gone change nothing, except that a load that has ended for a
               member that has left is unloaded again
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from heapq import heapify, heappop, heappush
from math import exp, inf, log
from typing import Any, NamedTuple

from serve_app.pools.policy.messages import Eviction, Load, Order
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.batching.overhead import QuantileWindow
from serve_app.scheduling.decisions import Rejection

_RECENT = 0.3
"""Weight of one load in a member's mean load time."""
_CAREFUL = 0.9
"""The quantile of recent loads that counts, as multiples of the expected time."""
_LOADS = 32
_FEW = 4
_HOLD_S, _LONGEST_HOLD_S = 1.0, 30.0
"""How long a member that could not be loaded is left alone, seconds: doubled at every failure in a row."""
_STALE_ALLOWED = 64
_FORGOTTEN = 1e-9


class Member:
    """One model of a pool.

    Attributes:
        nbytes: Memory as declared, then as measured.
        load_s: Mean load time; ``None`` before the first.
        hosts: By name of each host where it is resident, since when.
        loading: By name of each host that loads it, the predicted end.
        wanted_since: The first request since it was last loaded, seconds; ``inf``: none.
        held_until: When it may be loaded again after a failure, seconds.
        failures: Failed loads in a row.
        refusal: Why requests must not wait for it until then, if known.
    """

    __slots__ = (
        "_weight", "failures", "held_until", "hosts", "load_s", "loading", "name", "nbytes", "refusal", "wanted_since",
    )  # fmt: skip

    def __init__(self, name: str, nbytes: int) -> None:
        self.name = name
        self.nbytes = nbytes
        self.load_s: float | None = None
        self.hosts: dict[str, float] = {}
        self.loading: dict[str, float] = {}
        self.wanted_since = inf
        self.held_until = -inf
        self.failures = 0
        self.refusal: Rejection | None = None
        # The logarithm of its decayed count, as of time 0, so that it changes only on requests.
        self._weight = -inf

    def requested(self, now: float, memory_s: float) -> None:
        """Count a request."""
        self._weight = now / memory_s + log(1.0 + self.requests(now, memory_s))

    def requests(self, now: float, memory_s: float) -> float:
        """Remembered requests, decayed."""
        return exp(min(700.0, self._weight - now / memory_s))

    def value(self, load_s: float, copies: int) -> float:
        """The value of keeping it, per byte, as a logarithm: comparable at any time.

        Args:
            load_s: Duration of a load.
            copies: Hosts that share its requests.
        """
        return self._weight + log(max(_FORGOTTEN, load_s) / (self.nbytes * copies))


class Host:
    """A process of a pool.

    Attributes:
        used_bytes: Of resident and loading members.
        loading: Members by name.
        in_use: Bundles in flight by member.
    """

    __slots__ = ("_heap", "_pushed", "_values", "in_use", "loading", "name", "used_bytes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.used_bytes = 0
        self.loading: dict[str, Member] = {}
        self.in_use: dict[str, int] = {}
        self._values: dict[Member, float] = {}
        self._heap: list[tuple[float, int, Member]] = []
        self._pushed = 0

    @property
    def residents(self) -> Collection[Member]:
        """The loaded members."""
        return self._values.keys()

    def put(self, member: Member, value: float) -> None:
        """Add a resident member with this value, or update its value."""
        if self._values.get(member) != value:
            self._values[member] = value
            self._pushed += 1
            heappush(self._heap, (value, self._pushed, member))
        if len(self._heap) > 2 * len(self._values) + _STALE_ALLOWED:
            self._heap = [(value, number, member) for number, (member, value) in enumerate(self._values.items())]
            heapify(self._heap)
            self._pushed = len(self._heap)

    def drop(self, member: Member) -> None:
        """Remove a resident member."""
        self._values.pop(member, None)

    def least(self, value_of: Callable[[Member], float]) -> Generator[Member]:
        """Residents by value, the least first; risen values are reordered. Close the generator after use."""
        passed: list[tuple[float, int, Member]] = []
        try:
            while self._heap:
                value, number, member = heappop(self._heap)
                if self._values.get(member) != value:
                    continue
                if (present := value_of(member)) > value:
                    self.put(member, present)
                    continue
                passed.append((value, number, member))
                yield member
        finally:
            for each in passed:
                heappush(self._heap, each)


class Room(NamedTuple):
    """Whether a host has room for a member.

    Attributes:
        victims: Members to evict for it; ``None``: there is no room now.
        worth: The value of the most valuable victim; ``-inf`` without any.
        again_at: When to ask again without another event, seconds.
    """

    victims: list[Member] | None
    worth: float = -inf
    again_at: float = inf


class Residency:
    """The places of the members of one pool.

    Attributes:
        hosts: By name.
        members: By name.
        hits: Requests for resident members.
        misses: Requests for others.
        loads: Successful loads.
        failures: Failed loads.
        evictions: Number of evictions.
    """

    def __init__(self, pool: Pool) -> None:
        self.hits = self.misses = self.loads = self.failures = self.evictions = 0
        self.hosts: dict[str, Host] = {}
        self.members: dict[str, Member] = {}
        self._pool = pool
        self._load_s: float | None = None
        self._ratios = QuantileWindow(_LOADS)
        self._careful = 1.0

    # ---------------------------------------------------------------- events

    def join(self, name: str, nbytes: int) -> None:
        """Add a member.

        Raises:
            ValueError: Its bytes are not declared, or no host could ever hold them.
        """
        if not 0 < nbytes <= self._pool.memory_bytes:
            raise ValueError(
                f"pool {self._pool.name}: model {name} declares {nbytes} bytes; it needs to be above 0 and at most the"
                f" {self._pool.memory_bytes} bytes of a host"
            )
        self.members[name] = Member(name, nbytes)

    def leave(self, name: str) -> list[Eviction]:
        """Remove a member. Returns its evictions; those of loads under way follow at their end."""
        member = self.members.pop(name)
        evictions = []
        for host in tuple(member.hosts):
            self.hosts[host].in_use.pop(name, None)
            evictions.append(self.evict(member, self.hosts[host]))
        return evictions

    def set_hosts(self, names: Collection[str]) -> list[str]:
        """Replace the list of hosts. Returns the members that lost one."""
        lost: dict[str, None] = {}
        for name in [name for name in self.hosts if name not in names]:
            host = self.hosts.pop(name)
            for member in (*host.residents, *host.loading.values()):
                member.hosts.pop(name, None)
                member.loading.pop(name, None)
                lost[member.name] = None
        for name in names:
            if name not in self.hosts:
                self.hosts[name] = Host(name)
        return list(lost)

    def requested(self, name: str, now: float) -> None:
        """Count a request for a member, whatever becomes of it."""
        member = self.members[name]
        member.requested(now, self._pool.memory_s)
        if member.hosts:
            self.hits += 1
        else:
            self.misses += 1
        if not member.hosts and not member.loading:
            member.wanted_since = min(now, member.wanted_since)

    def begin(
        self, member: Member, host: Host, victims: Collection[Member], now: float, *, urgent: bool = False
    ) -> list[Order]:
        """Load a member, in the room that `room` found; ``urgent`` as of `Load`."""
        orders: list[Order] = [self.evict(victim, host) for victim in victims]
        member.wanted_since = inf
        expected_s = self._usual_s(member)
        host.used_bytes += member.nbytes
        host.loading[member.name] = member
        member.loading[host.name] = now + self.load_s(member)
        orders.append(Load(member.name, host.name, member.nbytes, expected_s, urgent))
        return orders

    def evict(self, member: Member, host: Host) -> Eviction:
        """Unload a member that is not in use there."""
        self.evictions += 1
        self._forget(member, host)
        return Eviction(member.name, host.name)

    def loaded(self, name: str, host: str, seconds: float, nbytes: int, now: float) -> list[Eviction]:
        """Record the end of a load. An unknown one is ignored.

        Args:
            seconds: Duration of the load.
            nbytes: Memory that it holds; 0: not measured. Bytes beyond the memory of a host do not count: another load
                must not wait for room that there will never be.

        Returns:
            The eviction of a member that has left meanwhile.
        """
        at = self.hosts.get(host)
        member = None if at is None else at.loading.get(name)
        if at is None or member is None:
            return []
        self.loads += 1
        self._learn(member, seconds)
        if self.members.get(name) is not member:
            return [self.evict(member, at)]
        del at.loading[name], member.loading[host]
        member.failures, member.held_until, member.refusal = 0, -inf, None
        member.hosts[host] = now
        nbytes = min(nbytes, self._pool.memory_bytes)
        if nbytes and nbytes != member.nbytes:
            for each in (*member.hosts, *member.loading):
                self.hosts[each].used_bytes += nbytes - member.nbytes
            member.nbytes = nbytes
        for each in member.hosts:
            self.hosts[each].put(member, self.value(member))
        return []

    def failed(self, name: str, host: str, now: float, refusal: Rejection | None = None) -> None:
        """Record a failed load: the member is left alone for a while.

        Args:
            refusal: Why another host, or another try, would fail as well; ``None``: it may succeed.
        """
        at = self.hosts.get(host)
        member = None if at is None else at.loading.get(name)
        if at is not None and member is not None:
            self.failures += 1
            self._forget(member, at)
            self._hold(member, now)
            member.refusal = refusal

    def refusal(self, name: str, now: float) -> Rejection | None:
        """The refusal of requests for a member that cannot be loaded; ``None``: it can, or is resident."""
        member = self.members[name]
        if member.refusal is None or member.hosts or member.held_until <= now:
            return None
        return member.refusal._replace(retry_after_s=member.held_until - now)

    def unloaded(self, name: str, host: str) -> None:
        """Record that a host does not have a member that it should have."""
        member, at = self.members.get(name), self.hosts.get(host)
        if member is not None and at is not None and host in member.hosts:
            self._forget(member, at)

    def trim(self) -> list[tuple[Member, Eviction]]:
        """Evict members that are not in use from hosts whose members hold more memory than declared."""
        evictions = []
        for host in self.hosts.values():
            while host.used_bytes > self._pool.memory_bytes:
                residents = host.least(self.value)
                victim = next((member for member in residents if member.name not in host.in_use), None)
                residents.close()
                if victim is None:
                    break
                evictions.append((victim, self.evict(victim, host)))
        return evictions

    # ------------------------------------------------------------- questions

    def snapshot(self) -> dict[str, Any]:
        """A JSON-able snapshot.

        Returns:
            ``memory_bytes`` of one host; ``hosts`` by name: ``used_bytes``, ``resident`` (number of members) and
            ``loading`` (their names); number of ``members``; and counts: ``hits`` and ``misses`` (requests for resident
            and other members), ``loads``, ``failed_loads``, ``evictions``.
        """
        return {
            "memory_bytes": self._pool.memory_bytes,
            "members": len(self.members),
            "hosts": {
                host.name: {
                    "used_bytes": host.used_bytes,
                    "resident": len(host.residents),
                    "loading": list(host.loading),
                }
                for host in self.hosts.values()
            },
            "hits": self.hits,
            "misses": self.misses,
            "loads": self.loads,
            "failed_loads": self.failures,
            "evictions": self.evictions,
        }

    def load_s(self, member: Member) -> float:
        """A careful prediction of a member's load time, seconds."""
        return self._careful * self._usual_s(member)

    def value(self, member: Member, copies: int = 0) -> float:
        """The value of keeping a member where it is; ``copies`` for so many hosts instead."""
        return member.value(self._usual_s(member), copies or max(1, len(member.hosts)))

    def ready_s(self, name: str, now: float) -> float:
        """Time until a member could run somewhere, seconds: 0.0 if it is resident.

        Without hosts one counts as idle: requests wait for it, as they do for the first replica of a model.
        """
        member = self.members[name]
        if member.hosts:
            return 0.0
        if member.loading:
            return max(0.0, min(member.loading.values()) - now)
        return self._loader_s(now) + self.load_s(member)

    def free_hosts(self) -> list[Host]:
        """Hosts that can begin a load."""
        return [host for host in self.hosts.values() if len(host.loading) < self._pool.loads]

    def room(
        self,
        member: Member,
        host: Host,
        now: float,
        keeps: Callable[[str], bool],
        *,
        urgent: bool,
        when_idle: bool = False,
    ) -> Room:
        """Find room for a member.

        Args:
            host: It neither has nor loads the member.
            keeps: Whether a resident, by name, must stay.
            urgent: Whether members loaded only just now may be evicted, too.
            when_idle: Count room of members in use, which there will be later.
        """
        need = host.used_bytes + member.nbytes - self._pool.memory_bytes
        if need <= 0:
            return Room([])
        victims: list[Member] = []
        again_at = inf
        residents = host.least(self.value)
        for victim in residents:
            if (victim.name in host.in_use and not when_idle) or keeps(victim.name):
                continue
            if not urgent and (until := victim.hosts[host.name] + self._pool.hold * self._usual_s(victim)) > now:
                again_at = min(again_at, until)
                continue
            victims.append(victim)
            need -= victim.nbytes
            if need <= 0:
                break
        residents.close()
        if need > 0:
            return Room(None, again_at=again_at)
        return Room(victims, self.value(victims[-1]))

    # --------------------------------------------------------------- helpers

    def _usual_s(self, member: Member) -> float:
        if member.load_s is not None:
            return member.load_s
        return self._pool.load_s if self._load_s is None else self._load_s

    def _learn(self, member: Member, seconds: float) -> None:
        expected_s = self._usual_s(member)
        if expected_s > 0.0:
            ranked = self._ratios.add(seconds / expected_s)
            if len(ranked) >= _FEW:
                self._careful = ranked[int(_CAREFUL * (len(ranked) - 1))]
        for_all = seconds if self._load_s is None else self._load_s + _RECENT * (seconds - self._load_s)
        self._load_s = for_all
        member.load_s = seconds if member.load_s is None else member.load_s + _RECENT * (seconds - member.load_s)

    def _loader_s(self, now: float) -> float:
        """Time until a host can begin a load, seconds."""
        most = self._pool.loads
        waits = [
            sorted(member.loading[host.name] for member in host.loading.values())[-most] - now
            if len(host.loading) >= most
            else 0.0
            for host in self.hosts.values()
        ]
        return max(0.0, min(waits, default=0.0))

    def _hold(self, member: Member, now: float) -> None:
        member.failures += 1
        member.held_until = now + min(_LONGEST_HOLD_S, _HOLD_S * 2.0 ** min(member.failures - 1, 10))

    def _forget(self, member: Member, host: Host) -> None:
        """Remove a member from a host, resident or loading."""
        member.hosts.pop(host.name, None)
        member.loading.pop(host.name, None)
        host.loading.pop(member.name, None)
        host.drop(member)
        host.used_bytes -= member.nbytes
