"""Residency: memory, loads, and who makes room."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.pools.policy.messages import Eviction, Load, Order
from serve_app.pools.policy.residency import Residency
from serve_app.pools.policy.settings import Pool

LOAD_S = 0.1


def _make(members: int = 3, hosts: int = 1, room: int = 2, nbytes: int = 10, **settings: Any) -> Residency:
    """Members ``a``, ``b`` ... of 10 bytes each; hosts ``h1``, ``h2`` ... with room for some of them."""
    settings.setdefault("load_s", LOAD_S)
    residency = Residency(Pool("pool", (), memory_bytes=room * 10, **settings))
    for at in range(members):
        residency.join("abcdefgh"[at], nbytes)
    residency.set_hosts([f"h{at}" for at in range(1, hosts + 1)])
    return residency


def _begin(residency: Residency, name: str, now: float, host: str = "h1", *, urgent: bool = True) -> list[Order] | None:
    """Begin a load where there is room for it."""
    member, at = residency.members[name], residency.hosts[host]
    room = residency.room(member, at, now, lambda _: False, urgent=urgent)
    return None if room.victims is None else residency.begin(member, at, room.victims, now)


def _load(
    residency: Residency, name: str, now: float, host: str = "h1", seconds: float = LOAD_S, nbytes: int = 0
) -> None:
    """Load a member, evicting others if need be."""
    assert _begin(residency, name, now, host) is not None
    residency.loaded(name, host, seconds, nbytes, now + seconds)


def _resident(residency: Residency, host: str = "h1") -> set[str]:
    return {member.name for member in residency.hosts[host].residents}


def test_a_load_reserves_its_memory_and_the_loader() -> None:
    """From its beginning; the next load waits for its predicted end."""
    residency = _make()
    assert _begin(residency, "a", 0.0) == [Load("a", "h1", 10, LOAD_S)]
    assert residency.hosts["h1"].used_bytes == 10
    assert residency.free_hosts() == []
    assert [residency.ready_s("b", now) for now in (0.0, 0.04)] == pytest.approx([2 * LOAD_S, 2 * LOAD_S - 0.04])
    residency.loaded("a", "h1", LOAD_S, 0, 0.1)
    assert _resident(residency) == {"a"}
    assert residency.ready_s("a", 0.1) == 0.0
    assert [host.name for host in residency.free_hosts()] == ["h1"]


def test_who_is_asked_for_least_makes_room() -> None:
    """Where loads and bytes are alike, the requests count."""
    residency = _make()
    _load(residency, "a", 0.0)
    _load(residency, "b", 1.0)
    for now in (2.0, 2.1, 2.2):
        residency.requested("a", now)
    residency.requested("b", 3.0)
    assert _begin(residency, "c", 5.0) == [Eviction("b", "h1"), Load("c", "h1", 10, LOAD_S)]


def test_what_was_asked_for_long_ago_counts_less() -> None:
    """Three requests a minute ago are worth less than a fresh one."""
    residency = _make(memory_s=10.0)
    _load(residency, "a", 0.0)
    _load(residency, "b", 1.0)
    for now in (2.0, 2.1, 2.2):
        residency.requested("a", now)
    residency.requested("b", 60.0)
    assert _begin(residency, "c", 61.0) == [Eviction("a", "h1"), Load("c", "h1", 10, LOAD_S)]


def test_what_loads_slowly_is_kept_and_what_is_large_is_not() -> None:
    """The value is the time of a load per byte."""
    residency = _make()
    _load(residency, "a", 0.0, seconds=1.0)
    _load(residency, "b", 2.0, seconds=0.1)
    for name in "ab":
        residency.requested(name, 3.0)
    assert _begin(residency, "c", 10.0) == [Eviction("b", "h1"), Load("c", "h1", 10, 0.73)]

    residency = _make(room=4)
    _load(residency, "a", 0.0, nbytes=30)
    _load(residency, "b", 1.0)
    for name in "ab":
        residency.requested(name, 3.0)
    assert _begin(residency, "c", 10.0) == [Eviction("a", "h1"), Load("c", "h1", 10, LOAD_S)]


def test_who_is_in_use_stays() -> None:
    """Whatever it is worth."""
    residency = _make(room=1)
    _load(residency, "a", 0.0)
    residency.hosts["h1"].in_use["a"] = 1
    assert _begin(residency, "b", 10.0) is None
    del residency.hosts["h1"].in_use["a"]
    assert _begin(residency, "b", 10.0) is not None


def test_what_was_loaded_just_now_stays_where_there_is_time() -> None:
    """For four times its load, unless the newcomer is urgent."""
    residency = _make(room=1, hold=4.0)
    _load(residency, "a", 0.0)
    member, host = residency.members["b"], residency.hosts["h1"]
    room = residency.room(member, host, 0.2, lambda _: False, urgent=False)
    assert room.victims is None
    assert room.again_at == pytest.approx(0.5)
    assert residency.room(member, host, 0.2, lambda _: False, urgent=True).victims == [residency.members["a"]]
    assert residency.room(member, host, 0.6, lambda _: False, urgent=False).victims == [residency.members["a"]]


def test_measured_bytes_count_from_then_on_and_are_made_room_for() -> None:
    """Also when it is loaded again."""
    residency = _make(room=3)
    _load(residency, "a", 0.0)
    _load(residency, "b", 1.0, nbytes=25)
    assert residency.hosts["h1"].used_bytes == 35
    residency.requested("b", 1.5)
    assert [eviction for _, eviction in residency.trim()] == [Eviction("a", "h1")]
    assert residency.hosts["h1"].used_bytes == 25
    assert _begin(residency, "a", 2.0) == [Eviction("b", "h1"), Load("a", "h1", 10, LOAD_S)]
    assert residency.hosts["h1"].used_bytes == 10


def test_a_member_that_turns_out_larger_than_a_host_counts_as_all_of_it() -> None:
    """It was loaded, so that a host can hold it: nobody may wait for room that there will never be."""
    residency = _make(room=1)
    _load(residency, "a", 0.0, nbytes=11)
    assert residency.members["a"].nbytes == residency.hosts["h1"].used_bytes == 10
    assert residency.trim() == []
    assert residency.members["a"].held_until < 0.0


def test_a_failed_load_frees_its_memory_and_is_not_repeated_at_once() -> None:
    """But after 1 s, 2 s ...; a success ends that."""
    residency = _make()
    _begin(residency, "a", 0.0)
    residency.failed("a", "h1", 1.0)
    assert residency.hosts["h1"].used_bytes == 0
    assert residency.members["a"].held_until == 2.0
    _begin(residency, "a", 2.0)
    residency.failed("a", "h1", 3.0)
    assert residency.members["a"].held_until == 5.0
    _load(residency, "a", 5.0)
    assert residency.members["a"].failures == 0


def test_loads_are_promised_by_the_slow_ones_of_the_last() -> None:
    """The mean of fast and slow ones would be too little for half of them."""
    residency = _make(members=1)
    member = residency.members["a"]
    assert residency.load_s(member) == LOAD_S
    for seconds in (0.2,) * 8:
        _load(residency, "a", 0.0, seconds=seconds)
        residency.unloaded("a", "h1")
    assert residency.load_s(member) == pytest.approx(0.2)
    for seconds in (0.1, 0.4) * 8:
        _load(residency, "a", 0.0, seconds=seconds)
        residency.unloaded("a", "h1")
    assert residency.load_s(member) > 0.4


def test_a_host_that_vanishes_takes_its_members_with_it() -> None:
    """Also what it was loading, whose end is ignored."""
    residency = _make(hosts=2)
    _load(residency, "a", 0.0, "h1")
    _begin(residency, "b", 1.0, "h1")
    _load(residency, "c", 1.0, "h2")
    assert sorted(residency.set_hosts(["h2"])) == ["a", "b"]
    assert residency.members["a"].hosts == {}
    assert residency.members["b"].loading == {}
    residency.loaded("b", "h1", LOAD_S, 0, 2.0)
    assert residency.members["b"].hosts == {}
    assert _resident(residency, "h2") == {"c"}


def test_a_removed_member_is_unloaded_also_when_its_load_ends_later() -> None:
    """The loader is busy until then."""
    residency = _make()
    _load(residency, "a", 0.0)
    _begin(residency, "b", 1.0)
    assert residency.leave("a") == [Eviction("a", "h1")]
    assert residency.leave("b") == []
    assert residency.free_hosts() == []
    assert residency.loaded("b", "h1", LOAD_S, 0, 2.0) == [Eviction("b", "h1")]
    assert residency.hosts["h1"].used_bytes == 0


def test_a_copy_is_worth_half() -> None:
    """Whoever is resident elsewhere, too, makes room before somebody with fewer requests who is not."""
    residency = _make(hosts=2, room=2)
    _load(residency, "a", 0.0, "h1")
    _load(residency, "a", 0.0, "h2")
    _load(residency, "b", 1.0, "h1")
    for now in (2.0, 2.1, 2.2):
        residency.requested("a", now)
    for now in (2.0, 2.1):
        residency.requested("b", now)
    assert _begin(residency, "c", 10.0, "h1") == [Eviction("a", "h1"), Load("c", "h1", 10, LOAD_S)]


@pytest.mark.parametrize("nbytes", [0, -1, 21])
def test_a_member_must_fit_into_a_host(nbytes: int) -> None:
    """And say how large it is."""
    residency = _make(members=0)
    with pytest.raises(ValueError, match=r"pool pool: model a declares"):
        residency.join("a", nbytes)
