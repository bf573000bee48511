"""A scheduler and the hosts of its pool, with events in any order: what must hold whatever is decided."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis_profiles import examples
from scheduling_builders import AFFINE, make_class, make_entry

from serve_app.domain.priority import Priority
from serve_app.pools.policy.device import PoolDevice
from serve_app.pools.policy.messages import Eviction, HostsListed, Load, LoadFailed, MemberLoaded
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.decisions import Decisions, Dispatch, Rejection
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ModelScheduling, ProcessLimits

_MEMBERS = "abcdef"
_BYTES = dict(zip(_MEMBERS, (10, 10, 15, 20, 5, 30), strict=True))
_HOSTS = ("h1", "h2")
_MEMORY = 40
_INDEX = st.integers(0, 10**6)


class _Host:
    """What a host has, by what it was told."""

    def __init__(self) -> None:
        self.has: dict[str, int] = {}
        self.loads: list[Load] = []
        self.runs: dict[int, Dispatch] = {}


def _make() -> Scheduler:
    classes = {priority: make_class(min_share=0.0 if priority is Priority.HIGH else 0.1) for priority in Priority}
    scheduler = Scheduler(
        [ModelScheduling(name, 4, 0.1, resident_bytes=nbytes) for name, nbytes in _BYTES.items()],
        classes,
        ProcessLimits(total_bytes=10**12, network_s=0.002),
        [PoolDevice(Pool("pool", tuple(_MEMBERS), memory_bytes=_MEMORY, load_s=0.05), classes)],
    )
    for name in _MEMBERS:
        scheduler.seed(name, [(*point, "") for point in AFFINE])
    return scheduler


class PoolMachine(RuleBasedStateMachine):
    """Clients come and leave; hosts load, fail to load, answer, die and start."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.schedulers = (_make(), _make())  # the same events lead to the same decisions
        self.scheduler = self.schedulers[0]
        self.hosts: dict[str, _Host] = {}
        self.entries: dict[int, tuple[Entry, Entry]] = {}
        self.ended: set[int] = set()
        self.silent: dict[int, Dispatch] = {}
        self.start(0)

    @rule(
        model=st.sampled_from(_MEMBERS),
        priority=st.sampled_from(Priority),
        budget=st.sampled_from([0.03, 0.1, 0.5, 5.0]),
        number=st.integers(1, 6),
    )
    def arrive(self, model: str, priority: Priority, budget: float, number: int) -> None:
        """Requests come in."""
        for _ in range(number):
            one = make_entry(priority, self.now + budget, model=model, arrival=self.now, nbytes=3)
            two = make_entry(priority, self.now + budget, model=model, arrival=self.now, nbytes=3)
            two.id = one.id
            refused = [
                scheduler.on_arrival(e, self.now) for scheduler, e in zip(self.schedulers, (one, two), strict=True)
            ]
            assert refused[0] == refused[1]
            if refused[0] is None:
                self.entries[one.id] = one, two
        self.decide()

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.05, 0.3]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self.decide()

    @precondition(lambda self: any(host.loads for host in self.hosts.values()))
    @rule(at=_INDEX, fails=st.booleans(), refused=st.booleans(), more=st.sampled_from([-2, 0, 0, 0]))
    def load(self, at: int, fails: bool, refused: bool, more: int) -> None:
        """A load ends."""
        refusal = Rejection("model_unavailable", "no such file") if refused else None
        name, host = [(name, host) for name, host in self.hosts.items() if host.loads][at % self._with_loads()]
        load = host.loads.pop(0)
        for scheduler in self.schedulers:
            if fails:
                scheduler.on_device_event("pool", LoadFailed(load.model, name, refusal), self.now)
            else:
                scheduler.on_device_event("pool", MemberLoaded(load.model, name, 0.05, load.nbytes + more), self.now)
        if not fails:
            host.has[load.model] = load.nbytes + more
        self.decide()

    def _with_loads(self) -> int:
        return sum(bool(host.loads) for host in self.hosts.values())

    @precondition(lambda self: any(host.runs for host in self.hosts.values()))
    @rule(at=_INDEX, late=st.booleans())
    def answer(self, at: int, late: bool) -> None:
        """A host answers a bundle, or gave its entries up."""
        running = [(host, bundle_id) for host in self.hosts.values() for bundle_id in host.runs]
        host, bundle_id = running[at % len(running)]
        sent = host.runs.pop(bundle_id)
        runs = [] if late else [(sent.rows, 0, 0.006, "")]
        for place, scheduler in enumerate(self.schedulers):
            entries = [self.entries[entry.id][place] for entry in sent.entries]
            done = scheduler.on_done(bundle_id, runs, self.now, dropped=entries if late else ())
            if place == 0:
                self.end(done)
        self.decide()

    @precondition(lambda self: self.entries)
    @rule(at=_INDEX)
    def leave(self, at: int) -> None:
        """A client leaves."""
        waiting = [pair for pair in self.entries.values() if pair[0].id not in self.ended]
        if waiting:
            pair = waiting[at % len(waiting)]
            for scheduler, entry in zip(self.schedulers, pair, strict=True):
                scheduler.on_cancel(entry, self.now)
            self.end([pair[0]])
            self.decide()

    @precondition(lambda self: self.hosts)
    @rule(at=_INDEX)
    def fall_silent(self, at: int) -> None:
        """Nothing is heard of a host: its entries are tried elsewhere, and it takes no orders."""
        name = list(self.hosts)[at % len(self.hosts)]
        self.silent.update(self.hosts.pop(name).runs)
        for scheduler in self.schedulers:
            device = scheduler.devices["pool"]
            assert isinstance(device, PoolDevice)
            for member in device.in_use(name):
                scheduler.on_unresponsive(member, name, self.now)
            scheduler.on_device_event("pool", HostsListed(list(self.hosts)), self.now)
        self.decide()

    @precondition(lambda self: self.silent)
    @rule(at=_INDEX, lost=st.booleans())
    def end_silence(self, at: int, lost: bool) -> None:
        """A bundle of a silent host is answered after all, or lost."""
        bundle_id = sorted(self.silent)[at % len(self.silent)]
        sent = self.silent.pop(bundle_id)
        for place, scheduler in enumerate(self.schedulers):
            if lost:
                requeue = scheduler.on_failed(bundle_id, self.now, True)
                done = [*requeue.poisoned, *requeue.expired]
            else:
                done = scheduler.on_done(bundle_id, [(sent.rows, 0, 0.006, "")], self.now)
            if place == 0:
                self.end(done)
        self.decide()

    @rule(at=_INDEX)
    def die(self, at: int) -> None:
        """A host dies with what it has."""
        if not self.hosts:
            return
        name = list(self.hosts)[at % len(self.hosts)]
        host = self.hosts.pop(name)
        for place, scheduler in enumerate(self.schedulers):
            scheduler.on_device_event("pool", HostsListed(list(self.hosts)), self.now)
            for bundle_id in host.runs:
                lost = scheduler.on_failed(bundle_id, self.now, True)
                if place == 0:
                    self.end([*lost.poisoned, *lost.expired])
        self.decide()

    @rule(at=_INDEX)
    def start(self, at: int) -> None:
        """A host starts."""
        free = [name for name in _HOSTS if name not in self.hosts]
        if free:
            self.hosts[free[at % len(free)]] = _Host()
            for scheduler in self.schedulers:
                scheduler.on_device_event("pool", HostsListed(list(self.hosts)), self.now)
            self.decide()

    def decide(self) -> None:
        decided, other = (scheduler.decide(self.now) for scheduler in self.schedulers)
        assert list(decided.orders) == list(other.orders)
        assert [sent.bundle_id for sent in decided.dispatches] == [sent.bundle_id for sent in other.dispatches]
        self.do(decided)
        self.end([*decided.expired, *decided.given_up, *(entry for entry, _ in decided.refused)])

    def do(self, decided: Decisions) -> None:
        for order in decided.orders:
            host = self.hosts[order.host]
            if isinstance(order, Eviction):
                assert order.model in host.has
                assert all(sent.model != order.model for sent in host.runs.values()), "in use"
                del host.has[order.model]
            else:
                assert order.model not in host.has, "resident already"
                assert not host.loads, "loads already"
                host.loads.append(order)
        for sent in decided.dispatches:
            assert sent.replica is not None
            assert sent.model in self.hosts[sent.replica].has, "runs where it is not"
            self.hosts[sent.replica].runs[sent.bundle_id] = sent

    def end(self, entries: list[Entry]) -> None:
        for entry in entries:
            assert entry.state is EntryState.DONE
            assert entry.id not in self.ended
            self.ended.add(entry.id)

    @invariant()
    def memory_is_enough(self) -> None:
        """What is loaded and what is being loaded fits."""
        for host in self.hosts.values():
            assert sum(host.has.values()) + sum(load.nbytes for load in host.loads) <= _MEMORY

    @invariant()
    def nothing_is_lost(self) -> None:
        """What has not ended waits or runs, and is counted."""
        held = sum(pair[0].nbytes for pair in self.entries.values() if pair[0].id not in self.ended)
        assert self.scheduler.totals()["bytes"] == held

    def teardown(self) -> None:
        """In the end, everything ends; and while hosts answer, nobody waits for good."""
        self.start(0)
        for pair in self.entries.values():
            assert pair[0].id in self.ended or pair[0].state in {EntryState.QUEUED, EntryState.RUNNING}
        self.now += 10.0
        self.decide()
        assert all(number in self.ended for number in self.entries)


TestPools = PoolMachine.TestCase
TestPools.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)


def test_under_lasting_overload_every_member_is_loaded_again_and_again() -> None:
    """Six members and room for two or three, and always something waiting for each."""
    scheduler = _make()
    scheduler.on_device_event("pool", HostsListed(["h1"]), 0.0)
    loads = dict.fromkeys(_MEMBERS, 0)
    now, busy_until, loading = 0.0, 0.0, None
    while now < 20.0:
        for model in _MEMBERS:
            scheduler.on_arrival(make_entry(Priority.NORMAL, now + 1.0, model=model, arrival=now), now)
        if loading is not None and busy_until <= now:
            scheduler.on_device_event("pool", MemberLoaded(loading.model, "h1", 0.05, 0), now)
            loading = None
        decided = scheduler.decide(now)
        for order in decided.orders:
            if isinstance(order, Load):
                loads[order.model] += 1
                loading, busy_until = order, now + 0.05
        for sent in decided.dispatches:
            scheduler.on_done(sent.bundle_id, [(sent.rows, 0, 0.006, "")], now + 0.006)
        now += 0.02
    assert min(loads.values()) >= 3
