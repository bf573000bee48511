"""The orders of a router to the hosts of a pool, with hosts that the test steers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from runtime_harness import batch_same_turn, settle, until

from serve_app.domain.agreed import Told
from serve_app.domain.hosting import LoadOutcome, Owner
from serve_app.pools.host import LoadedMember, PoolHost
from serve_app.pools.orders import Pools, RoutedPool
from serve_app.pools.policy.messages import Eviction, Load
from serve_app.pools.policy.settings import Pool
from serve_app.replica.worker import Worker
from serve_app.scheduling.decisions import Rejection
from serve_app.scheduling.settings import ModelScheduling
from serve_app.transport.send import ReplicaLost

LOADED = LoadOutcome(0.1, 10, Told())


class Steered:
    """Hosts whose answers the test gives, and what the router is told of them."""

    def __init__(self, loads: int = 1, load_timeout_s: float = 60.0) -> None:
        pool = Pool("pool", ("a", "b", "c"), memory_bytes=20, loads=loads)
        self.calls: list[tuple[str, Owner, Sequence[str], str]] = []
        self.urgent: list[bool] = []
        self.answers: list[asyncio.Future[LoadOutcome]] = []
        self.told: list[tuple[Any, ...]] = []
        self.pools = Pools([RoutedPool(pool, load_timeout_s)], self.change, self)
        for member in "abc":
            self.pools.add_member(member, "pool")

    async def change(
        self, _pool: str, host: str, owner: Owner, evicted: Sequence[str], load: str, urgent: bool
    ) -> LoadOutcome:
        """See `ChangeHost`."""
        self.calls.append((host, owner, evicted, load))
        self.urgent.append(urgent)
        answer: asyncio.Future[LoadOutcome] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        try:
            return await answer
        finally:
            del answer  # an error of it would keep this frame, and this frame the error

    def hosts_listed(self, _pool: str, hosts: Collection[str]) -> None:
        """See `Events`."""
        self.told.append(("hosts", *hosts))

    def member_loaded(self, _pool: str, model: str, host: str, outcome: LoadOutcome, _told: Told) -> None:
        """See `Events`."""
        self.told.append(("loaded", model, host, outcome.nbytes))

    def member_failed(self, _pool: str, model: str, host: str, refusal: Rejection) -> None:
        """See `Events`."""
        self.told.append(("failed", model, host, refusal.message))

    @property
    def orders(self) -> list[tuple[str, list[str], str]]:
        """What hosts were told."""
        return [(host, list(evicted), load) for host, _, evicted, load in self.calls]


async def test_a_host_is_told_one_thing_after_the_other() -> None:
    """What is to be unloaded goes with the load that follows."""
    steered = Steered()
    steered.pools.on_hosts("pool", ["h"])
    steered.pools.carry_out(Load("a", "h", 10, 0.1))
    await settle()
    steered.pools.carry_out(Eviction("b", "h"))
    steered.pools.carry_out(Load("c", "h", 10, 0.1, urgent=True))
    steered.pools.carry_out(Eviction("a", "h"))
    await settle()
    assert steered.orders == [("h", [], "a")]
    steered.answers[0].set_result(LOADED)
    await settle()
    assert steered.orders[1:] == [("h", ["b"], "c")]
    steered.answers[1].set_result(LOADED)
    await settle()
    assert steered.orders[2:] == [("h", ["a"], "")]
    assert steered.urgent == [False, True, False]
    assert steered.told == [("hosts", "h"), ("loaded", "a", "h", 10), ("loaded", "c", "h", 10)]


async def test_several_loads_at_once_wait_for_what_makes_room() -> None:
    """And not for each other."""
    steered = Steered(loads=2)
    steered.pools.on_hosts("pool", ["h"])
    steered.pools.carry_out(Load("a", "h", 10, 0.1))
    steered.pools.carry_out(Eviction("b", "h"))
    steered.pools.carry_out(Load("c", "h", 10, 0.1))
    await settle()
    assert sorted(steered.orders) == [("h", [], "a"), ("h", ["b"], "")]
    steered.answers[[load for _, _, load in steered.orders].index("")].set_result(LoadOutcome())
    await settle()
    assert ("h", [], "c") in steered.orders


async def test_a_fault_of_a_member_is_kept_until_it_is_loaded() -> None:
    """It says nothing of the host."""
    steered = Steered()
    steered.pools.on_hosts("pool", ["h"])
    steered.pools.carry_out(Load("a", "h", 10, 0.1))
    await settle()
    steered.answers[0].set_result(LoadOutcome(0.1, fault="model 'a' is broken"))
    await settle()
    assert steered.told[1:] == [("failed", "a", "h", "model 'a' is broken")]
    assert steered.pools.faults == {"a": "model 'a' is broken"}
    steered.pools.carry_out(Load("a", "h", 10, 0.1))
    await settle()
    steered.answers[1].set_result(LOADED)
    await settle()
    assert not steered.pools.faults


async def test_a_host_whose_call_is_lost_is_taken_over_anew() -> None:
    """The later claim makes it drop what it may have loaded; what else it was to do is forgotten."""
    steered = Steered()
    steered.pools.on_hosts("pool", ["h", "other"])
    steered.pools.carry_out(Load("a", "h", 10, 0.1))
    steered.pools.carry_out(Load("b", "h", 10, 0.1))
    await settle()
    steered.answers.pop(0).set_exception(ReplicaLost("it died"))
    await until(lambda: ("hosts", "other") in steered.told)
    await until(lambda: len(steered.told) > 2)
    assert set(steered.told[2]) == {"hosts", "h", "other"}
    steered.pools.carry_out(Load("c", "h", 10, 0.1))
    await settle()
    assert steered.orders == [("h", [], "a"), ("h", [], "c")]
    assert steered.calls[1][1].since > steered.calls[0][1].since
    steered.pools.close()


async def test_a_load_that_takes_too_long_loses_the_host_for_a_while() -> None:
    """Nobody waits for it without end."""
    steered = Steered(load_timeout_s=0.01)
    steered.pools.on_hosts("pool", ["h"])
    steered.pools.carry_out(Load("a", "h", 10, 0.1))
    await until(lambda: ("hosts",) in steered.told)
    await until(lambda: len(steered.told) > 2)
    assert steered.told[2] == ("hosts", "h")


@pytest.mark.parametrize("load", [True, False], ids=["load", "eviction"])
async def test_a_host_that_another_router_has_is_taken_over_anew(load: bool) -> None:
    """By a claim that is later than the other's, whatever the clock here says; it is no fault of a member."""
    steered = Steered()
    steered.pools.on_hosts("pool", ["h"])
    if load:
        steered.pools.carry_out(Load("a", "h", 10, 0.1))
    else:
        steered.pools.carry_out(Eviction("a", "h"))
    await settle()
    ahead = steered.calls[0][1].since + 3600.0
    steered.answers[0].set_result(LoadOutcome(fault="another has it", superseded=ahead))
    await until(lambda: len(steered.told) > 2)
    assert steered.told == [("hosts", "h"), ("hosts",), ("hosts", "h")]
    assert not steered.pools.faults
    steered.pools.carry_out(Load("a", "h", 10, 0.1))
    await settle()
    assert steered.calls[1][1].since > ahead
    steered.answers[1].set_result(LOADED)
    await settle()
    assert steered.told[3:] == [("loaded", "a", "h", 10)]
    steered.pools.close()


async def test_a_router_that_ends_leaves_hosts_to_the_next() -> None:
    """It refuses what would have to be loaded there, and takes over none that is new; one that was lost comes back."""
    steered = Steered()
    steered.pools.on_hosts("pool", ["h"])
    steered.pools.stop_claiming()
    steered.pools.on_hosts("pool", ["h", "new"])
    steered.pools.carry_out(Load("a", "h", 10, 0.1))
    await settle()
    steered.answers[0].set_result(LOADED)
    await settle()
    steered.pools.carry_out(Eviction("a", "h"))
    steered.pools.carry_out(Load("b", "h", 10, 0.1))
    await settle()
    steered.answers[1].set_result(LoadOutcome(fault="another has it", superseded=1e12))
    await settle()
    assert steered.told == [
        ("hosts", "h"),
        ("hosts", "h"),
        ("loaded", "a", "h", 10),
        ("failed", "b", "h", "another has it"),
    ]
    assert not steered.pools.faults
    steered.pools.on_lost("pool", "h")
    steered.pools.on_hosts("pool", ["h"])
    assert steered.told[4:] == [("hosts",), ("hosts",)]
    await until(lambda: len(steered.told) == 7)
    assert steered.told[6] == ("hosts", "h")
    steered.pools.close()


class OnHost(Steered):
    """A router of a host that others have as well."""

    def __init__(self, host: PoolHost) -> None:
        super().__init__()
        self.host = host

    async def change(
        self, _pool: str, host: str, owner: Owner, evicted: Sequence[str], load: str, urgent: bool
    ) -> LoadOutcome:
        """See `ChangeHost`."""
        self.calls.append((host, owner, evicted, load))
        return await self.host.change(owner, evicted, load, urgent=urgent)

    async def load(self, member: str) -> None:
        """Have a member loaded."""
        self.pools.carry_out(Load(member, "h", 10, 0.1))
        await until(lambda: self.told[-1][0] != "hosts")


async def test_a_router_outlives_its_predecessors_later_claim() -> None:
    """Both listed the host while a redeploy replaced one, and the one that ended was the last to claim it."""
    worker = Worker(
        scheduling=ModelScheduling("m", 1, slo_s=1.0),
        backends={},
        processor=None,
        preprocess_threads=1,
        batch=batch_same_turn,
    )
    host = PoolHost("pool", lambda _: LoadedMember(worker, Told(), 10), lambda: 10)
    following, former = OnHost(host), OnHost(host)
    following.pools.on_hosts("pool", ["h"])
    former.pools.on_hosts("pool", ["h"])
    await former.load("a")
    former.pools.close()
    following.pools.carry_out(Load("b", "h", 10, 0.1))
    await until(lambda: len(following.told) > 2)
    assert following.told == [("hosts", "h"), ("hosts",), ("hosts", "h")]
    await following.load("b")
    assert following.told[3:] == [("loaded", "b", "h", 10)]
    assert set(host.resident) == {"b"}
    following.pools.close()
    host.close()


async def test_what_comes_of_a_host_that_is_gone_counts_no_more() -> None:
    """Another of its name is a new one."""
    steered = Steered()
    steered.pools.on_hosts("pool", ["h"])
    steered.pools.carry_out(Load("a", "h", 10, 0.1))
    await settle()
    steered.pools.on_hosts("pool", [])
    steered.pools.on_hosts("pool", ["h"])
    await settle()
    assert steered.told == [("hosts", "h"), ("hosts",), ("hosts", "h")]
    assert steered.answers[0].cancelled()
    steered.pools.close()
