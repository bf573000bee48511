"""Pools: what waits for a member that is not loaded, and which loads that is worth."""

from __future__ import annotations

from typing import Any

import pytest
from scheduling_builders import AFFINE, HIGH, LOW, NORMAL, accept, make_class, make_entry

from serve_app.pools.policy.device import PoolDevice
from serve_app.pools.policy.messages import Eviction, HostsListed, Load, LoadFailed, MemberLoaded, MemberMissing
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.core import RouterCore
from serve_app.scheduling.decisions import Decisions, Dispatch
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ModelScheduling, ProcessLimits

LOAD_S = 0.1
"""A load; a batch of one row takes 6 ms."""


def _make(
    members: str = "abc", hosts: tuple[str, ...] = ("h1",), room: int = 2, high_slowdown: float = 1.2, **settings: Any
) -> Scheduler:
    """A scheduler of one pool whose hosts have room for some of its members."""
    settings.setdefault("load_s", LOAD_S)
    classes = {priority: make_class() for priority in (HIGH, NORMAL, LOW)}
    scheduler = Scheduler(
        [ModelScheduling(name, 8, slo_s=0.1, resident_bytes=10, high_slowdown=high_slowdown) for name in members],
        classes,
        ProcessLimits(total_bytes=10**12, network_s=0.002),
        [PoolDevice(Pool("pool", tuple(members), memory_bytes=10 * room, **settings), classes)],
    )
    for name in members:
        scheduler.seed(name, [(*point, "") for point in AFFINE])
    scheduler.on_device_event("pool", HostsListed(hosts), 0.0)
    return scheduler


def _load(scheduler: Scheduler, name: str, now: float, host: str = "h1", nbytes: int = 0) -> Decisions:
    """Let a request have a member loaded, run, and be answered. Returns what was decided on at its arrival."""
    accept(scheduler, make_entry(model=name, deadline=now + 10.0, arrival=now), now=now)
    decided = scheduler.decide(now)
    assert Load(name, host, 10, LOAD_S) in decided.orders
    scheduler.on_device_event("pool", MemberLoaded(name, host, LOAD_S, nbytes), now + LOAD_S)
    (sent,) = scheduler.decide(now + LOAD_S).dispatches
    _answer(scheduler, sent, now + LOAD_S + 0.01)
    return decided


def _answer(scheduler: Scheduler, sent: Dispatch, now: float) -> None:
    scheduler.on_done(sent.bundle_id, [(sent.rows, 0, 0.006, "")], now)


def test_a_request_for_a_member_that_is_not_loaded_has_it_loaded_and_then_runs_there() -> None:
    """No bundle travels before that."""
    scheduler = _make()
    (entry,) = accept(scheduler, make_entry(model="a", deadline=1.0))
    decided = scheduler.decide(0.0)
    assert decided.orders == [Load("a", "h1", 10, LOAD_S)]
    assert not decided.dispatches
    scheduler.on_device_event("pool", MemberLoaded("a", "h1", LOAD_S, 0), 0.1)
    decided = scheduler.decide(0.1)
    assert [(sent.replica, sent.entries) for sent in decided.dispatches] == [("h1", [entry])]
    assert not decided.orders
    assert not scheduler.decide(0.1).orders


def test_a_resident_member_is_not_loaded_again() -> None:
    """It runs at once."""
    scheduler = _make()
    _load(scheduler, "a", 0.0)
    accept(scheduler, make_entry(model="a", deadline=2.0), now=1.0)
    decided = scheduler.decide(1.0)
    assert len(decided.dispatches) == 1
    assert not decided.orders


def test_what_can_wait_takes_a_part_of_what_high_takes_behind_others_at_the_host() -> None:
    """Half of 19 ms, 13 for the bundle before included: four rows; the default allows a twelfth, and one row goes."""
    for slowdown, rows in ((1000.0, 4), (1.2, 1)):
        scheduler = _make(high_slowdown=slowdown)
        _load(scheduler, "a", 0.0)
        for step in range(64):
            now = 1.0 + 0.05 * step
            accept(scheduler, *[make_entry(LOW, now + 50.0, model="a", arrival=now) for _ in range(8)], now=now)
            (before,) = scheduler.decide(now).dispatches
            accept(scheduler, make_entry(HIGH, now + 1.0, model="a", arrival=now), now=now)
            (behind,) = scheduler.decide(now).dispatches
            scheduler.on_done(before.bundle_id, [(8, 0, 0.013, "")], now + 0.013)
            _answer(scheduler, behind, now + 0.019)
        accept(scheduler, *[make_entry(LOW, now + 1000.0, model="a", arrival=now) for _ in range(8)], now=now)

        assert scheduler.decide(now + 0.02).dispatches[0].rows == rows


def test_what_could_not_be_in_time_when_loaded_is_refused_at_once() -> None:
    """The load counts for what it takes; once the member is resident, it does not."""
    scheduler = _make()
    refused = scheduler.on_arrival(make_entry(model="a", deadline=0.05), 0.0)
    if refused is None:  # a probe: the next is none
        refused = scheduler.on_arrival(make_entry(model="a", deadline=0.05), 0.0)
    assert refused is not None
    assert refused.code == "deadline_exceeded"
    assert "about 0.11 s alone" in refused.message
    _load(scheduler, "a", 1.0)
    assert scheduler.on_arrival(make_entry(model="a", deadline=2.05), 2.0) is None


def test_what_waited_too_long_for_a_loader_is_given_up_before_its_deadline() -> None:
    """Its load would end too late by now."""
    scheduler = _make()
    accept(scheduler, make_entry(model="a", deadline=10.0), make_entry(model="b", deadline=0.35))
    (order,) = scheduler.decide(0.0).orders
    other = "b" if order.model == "a" else "a"
    (late,) = accept(scheduler, make_entry(model="c", deadline=0.3))
    assert not scheduler.decide(0.0).given_up
    scheduler.on_device_event("pool", MemberLoaded(order.model, "h1", 0.25, 0), 0.25)
    decided = scheduler.decide(0.25)
    assert late in decided.given_up
    assert [each.model for each in decided.orders] in ([other], [])


def test_one_load_at_a_time_the_most_urgent_class_first() -> None:
    """Whoever came first."""
    scheduler = _make()
    accept(scheduler, make_entry(LOW, model="a"), make_entry(NORMAL, model="b"), make_entry(HIGH, model="c"))
    assert scheduler.decide(0.0).orders == [Load("c", "h1", 10, LOAD_S, urgent=True)]
    scheduler.on_device_event("pool", MemberLoaded("c", "h1", LOAD_S, 0), 0.1)
    decided = scheduler.decide(0.1)
    assert not decided.orders  # not beside `high`
    _answer(scheduler, decided.dispatches[0], 0.11)
    assert scheduler.decide(0.11).orders == [Load("b", "h1", 10, LOAD_S)]


def test_the_member_with_the_most_rows_goes_first_among_equals() -> None:
    """More answers per second of loading."""
    scheduler = _make()
    accept(scheduler, make_entry(model="a"), *(make_entry(model="b") for _ in range(3)))
    assert [order.model for order in scheduler.decide(0.0).orders] == ["b"]


def test_a_load_beside_high_begins_when_an_entry_would_be_too_late() -> None:
    """Until then it would slow down what is more urgent."""
    scheduler = _make()
    _load(scheduler, "a", 0.0)
    accept(scheduler, make_entry(HIGH, model="a", deadline=3.0), now=1.0)
    assert len(scheduler.decide(1.0).dispatches) == 1
    accept(scheduler, make_entry(NORMAL, model="b", deadline=1.5), now=1.0)
    assert not scheduler.decide(1.0).orders
    at = scheduler.wake_at
    assert at is not None
    assert 1.2 < at < 1.3  # one more load may come before it
    assert [order.model for order in scheduler.decide(at).orders] == ["b"]


def test_two_members_and_room_for_one_are_not_swapped_before_that_pays_or_has_to_be() -> None:
    """After four loads' time, or for a deadline."""
    scheduler = _make(room=1, hold=4.0)
    _load(scheduler, "a", 0.0)
    accept(scheduler, make_entry(model="b", deadline=10.0), now=0.15)
    assert not scheduler.decide(0.15).orders
    assert scheduler.wake_at == pytest.approx(0.5)
    assert scheduler.decide(0.5).orders == [Eviction("a", "h1"), Load("b", "h1", 10, LOAD_S)]

    scheduler = _make(room=1, hold=4.0)
    _load(scheduler, "a", 0.0)
    accept(scheduler, make_entry(model="b", deadline=0.45), now=0.15)
    assert not scheduler.decide(0.15).orders
    at = scheduler.wake_at
    assert at is not None
    assert 0.15 < at < 0.3
    assert [type(order) for order in scheduler.decide(at).orders] == [Eviction, Load]


def test_who_has_entries_waiting_that_are_as_urgent_makes_no_room() -> None:
    """As many as wait for the newcomer; and nobody is evicted while it runs."""
    scheduler = _make(room=1, hold=0.0, concurrency=1)
    _load(scheduler, "a", 0.0)
    accept(scheduler, *(make_entry(NORMAL, model="a", deadline=5.0) for _ in range(9)), now=1.0)
    (sent,) = scheduler.decide(1.0).dispatches
    accept(scheduler, make_entry(NORMAL, model="b", deadline=5.0), make_entry(HIGH, model="c", deadline=5.0), now=1.0)
    assert not scheduler.decide(1.0).orders  # it is in use
    _answer(scheduler, sent, 1.1)
    orders = scheduler.decide(1.1).orders
    assert not orders or orders[-1].model != "b"


def test_a_member_that_is_hot_is_loaded_at_a_host_that_idles() -> None:
    """While what waits for it would wait longer than that takes; then both run it."""
    scheduler = _make(hosts=("h1", "h2"), load_s=0.01)
    accept(scheduler, make_entry(model="a", deadline=9.0))
    (order,) = scheduler.decide(0.0).orders
    scheduler.on_device_event("pool", MemberLoaded("a", order.host, 0.01, 0), 0.01)
    assert len(scheduler.decide(0.01).dispatches) == 1
    assert not scheduler.decide(0.01).orders
    accept(scheduler, *(make_entry(model="a", deadline=9.0, arrival=0.01) for _ in range(20)), now=0.01)
    decided = scheduler.decide(0.01)
    other = "h2" if order.host == "h1" else "h1"
    assert decided.orders == [Load("a", other, 10, 0.01)]
    scheduler.on_device_event("pool", MemberLoaded("a", other, 0.01, 0), 0.02)
    assert {sent.replica for sent in scheduler.decide(0.02).dispatches} == {other}


def test_a_failed_load_is_tried_again_later_and_its_entries_wait_for_that() -> None:
    """While they have time."""
    scheduler = _make()
    accept(scheduler, make_entry(model="a", deadline=10.0))
    scheduler.decide(0.0)
    scheduler.on_device_event("pool", LoadFailed("a", "h1"), 0.1)
    assert not scheduler.decide(0.1).orders
    assert scheduler.wake_at == pytest.approx(1.1)
    assert scheduler.decide(1.1).orders == [Load("a", "h1", 10, LOAD_S)]


def test_what_a_host_has_lost_is_loaded_again() -> None:
    """As if it had never been there."""
    scheduler = _make()
    _load(scheduler, "a", 0.0)
    scheduler.on_device_event("pool", MemberMissing("a", "h1"), 1.0)
    accept(scheduler, make_entry(model="a", deadline=10.0), now=1.0)
    assert [order.model for order in scheduler.decide(1.0).orders] == ["a"]


def test_entries_at_a_host_that_vanishes_run_elsewhere() -> None:
    """As those of any replica that is lost, when the member is loaded there."""
    scheduler = _make(hosts=("h1", "h2"))
    (entry,) = accept(scheduler, make_entry(model="a", deadline=10.0))
    host = scheduler.decide(0.0).orders[0].host
    scheduler.on_device_event("pool", MemberLoaded("a", host, LOAD_S, 0), 0.1)
    (sent,) = scheduler.decide(0.1).dispatches
    other = "h2" if host == "h1" else "h1"
    scheduler.on_device_event("pool", HostsListed([other]), 0.2)
    assert scheduler.on_failed(sent.bundle_id, 0.2, True).requeued == [entry]
    assert scheduler.decide(0.2).orders == [Load("a", other, 10, LOAD_S)]
    scheduler.on_device_event("pool", MemberLoaded("a", other, LOAD_S, 0), 0.3)
    assert [again.replica for again in scheduler.decide(0.3).dispatches] == [other]


def test_a_removed_member_is_unloaded() -> None:
    """Its memory is free for others that are added."""
    scheduler = _make()
    _load(scheduler, "a", 0.0)
    scheduler.remove_model("a", 1.0)
    assert scheduler.decide(1.0).orders == [Eviction("a", "h1")]
    scheduler.add_model(ModelScheduling("d", 8, 0.1, resident_bytes=10), "pool")
    _load(scheduler, "d", 2.0)


def test_a_host_with_more_than_its_memory_unloads_what_is_worth_least() -> None:
    """A member holds more than it declared."""
    scheduler = _make(room=3)
    _load(scheduler, "a", 0.0)
    accept(scheduler, make_entry(model="b", deadline=10.0), now=1.0)
    scheduler.decide(1.0)
    scheduler.on_device_event("pool", MemberLoaded("b", "h1", LOAD_S, 25), 1.1)
    assert scheduler.decide(1.1).orders == [Eviction("a", "h1")]


def test_a_member_that_seems_larger_than_a_host_is_loaded_again() -> None:
    """What was measured may have been another's; nobody may wait for room that there will never be."""
    scheduler = _make(room=3)
    accept(scheduler, make_entry(model="a", deadline=10.0), now=0.0)
    scheduler.decide(0.0)
    scheduler.on_device_event("pool", MemberLoaded("a", "h1", LOAD_S, 35), 0.1)
    scheduler.on_device_event("pool", MemberMissing("a", "h1"), 0.2)
    accept(scheduler, make_entry(model="a", deadline=10.0), now=1.0)
    assert [type(order) for order in scheduler.decide(1.0).orders] == [Load]


def test_orders_need_who_carries_them_out_and_a_pool_is_known_by_its_name() -> None:
    """Faults in how a router is put together."""
    scheduler = _make()
    with pytest.raises(ValueError, match="say what carries them out"):
        RouterCore(scheduler, None, 30.0)  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        scheduler.on_device_event("other", HostsListed([]), 0.0)
    with pytest.raises(TypeError, match="PoolDevice has no event 'hosts'"):
        scheduler.on_device_event("pool", "hosts", 0.0)
    with pytest.raises(ValueError, match="declares 0 bytes"):
        scheduler.add_model(ModelScheduling("d", 8, 0.1), "pool")
