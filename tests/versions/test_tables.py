"""How requests are spread over versions: by which rule, and how routers agree on it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.domain.versions import Asker
from serve_app.errors import InvalidRequest, ModelUnavailable
from serve_app.versions.policy import (
    Shadow,
    Table,
    Traffic,
    TrafficChange,
    changed,
    described,
    pick,
    promoted,
    rolled_back,
    shares_of,
    version_of,
)
from serve_app.versions.tables import TrafficTables, Versions

VERSIONS = ("3", "5", "12")
IDS = [f"request-{number}" for number in range(20_000)]
CANARY = Traffic({"stable": "3", "candidate": "5"}, {"stable": 90, "candidate": 10})


def chosen(traffic: Traffic, ids: list[str]) -> list[str]:
    """The version for every id."""
    shares = shares_of(traffic, VERSIONS)
    return [pick(shares, "m", each) for each in ids]


@pytest.mark.parametrize(
    "weights",
    [
        {"stable": 90, "candidate": 10},
        {"3": 99, "5": 1},
        {"stable": 1, "candidate": 1, "12": 2},
        {"stable": 0, "12": 5},
    ],
)
def test_each_version_gets_its_share(weights: dict[str, float]) -> None:
    """Within a point, over 20,000 ids."""
    traffic = msgspec.structs.replace(CANARY, weights=weights)
    counts = Counter(chosen(traffic, IDS))
    shares = dict(shares_of(traffic, VERSIONS))
    assert sum(shares.values()) == pytest.approx(1.0)
    for version in VERSIONS:
        assert counts[version] / len(IDS) == pytest.approx(shares.get(version, 0.0), abs=0.01)


@given(
    first=st.floats(0.0, 100.0),
    more=st.floats(0.0, 100.0),
    others=st.lists(st.floats(0.1, 100.0), min_size=2, max_size=2),
    seed=st.integers(),
)
def test_who_has_a_version_keeps_it_when_its_weight_grows(
    first: float, more: float, others: list[float], seed: int
) -> None:
    """And nobody moves between the others: the version takes over from them."""
    ids = [f"{seed}/{number}" for number in range(30)]
    before, after = (
        chosen(Traffic(weights={"3": others[0], "5": others[1], "12": weight}), ids) for weight in (first, first + more)
    )
    assert all(now in (then, "12") for then, now in zip(before, after, strict=True))


def test_a_canary_grows_step_by_step() -> None:
    """Whoever was on the candidate at 10% is there at 20%, at 50%, and when it is promoted."""
    ids = IDS[:2000]
    steps = [
        msgspec.structs.replace(CANARY, weights={"stable": 100 - part, "candidate": part})
        for part in (1, 10, 20, 50, 100)
    ]
    on_candidate = [
        {each for each, version in zip(ids, chosen(step, ids), strict=True) if version == "5"} for step in steps
    ]
    assert all(earlier <= later for earlier, later in pairwise(on_candidate))
    assert on_candidate[-1] == set(ids)


def test_the_choice_is_the_same_in_every_process() -> None:
    """It follows from the names and weights alone: these were found by another router."""
    ids = [f"id-{number}" for number in range(40)]
    found = [each for each, version in zip(ids, chosen(CANARY, ids), strict=True) if version == "5"]
    assert found == ["id-2", "id-7", "id-13", "id-18", "id-27", "id-30", "id-36", "id-39"]


@pytest.mark.parametrize(
    ("sticky", "same", "others"),
    [
        ("key", Asker("alice", "1"), [Asker("alice", str(each)) for each in range(50)]),
        ("request_id", Asker("alice", "1"), [Asker(str(each), "1") for each in range(50)]),
        ("key", Asker("", "1"), [Asker("", "1")] * 50),
    ],
)
def test_what_is_sticky_stays(sticky: Any, same: Asker, others: list[Asker]) -> None:
    """Whatever else differs."""
    versions = of_model(Traffic(weights={"3": 1, "5": 1}, sticky=sticky))
    assert {versions.choose(each) for each in others} == {versions.choose(same)}


@pytest.mark.parametrize("sticky", ["none", "request_id"])
def test_without_an_id_it_is_by_chance(sticky: Any) -> None:
    """Both versions come."""
    versions = of_model(Traffic(weights={"3": 1, "5": 1}, sticky=sticky))
    assert {versions.choose(Asker("alice")) for _ in range(200)} == {"m/3", "m/5"}


def of_model(traffic: Traffic) -> Versions:
    """The versions of model `m`."""
    versions = Versions("m", traffic)
    for version in ("12", "3", "5"):
        versions.add(version, f"m/{version}")
    return versions


def test_stable_is_the_newest_unless_it_is_said() -> None:
    """As it is where only one version is served; and 12 is newer than 5."""
    assert [version_of(Traffic(), VERSIONS, named) for named in ("stable", "3", "4", "candidate")] == [
        "12",
        "3",
        None,
        None,
    ]
    assert version_of(CANARY, VERSIONS, "stable") == "3"
    assert shares_of(Traffic(), VERSIONS) == (("12", 1.0),)


def test_a_promotion_and_its_rollback() -> None:
    """The candidate answers everything; then all is as it was, and the promotion can be had again."""
    shadowed = msgspec.structs.replace(CANARY, shadow=Shadow("candidate"))
    first = Table(shadowed)
    after = promoted(first, VERSIONS)
    assert after.revision == 1
    assert shares_of(after.traffic, VERSIONS) == (("5", 1.0),)
    assert after.traffic.shadow is None
    back = rolled_back(after, VERSIONS)
    assert (back.revision, back.traffic) == (2, shadowed)
    assert rolled_back(back, VERSIONS).traffic == after.traffic
    with pytest.raises(InvalidRequest, match="nothing to roll back"):
        rolled_back(first, VERSIONS)
    with pytest.raises(InvalidRequest, match="'rc' is no version and no alias; versions: 3, 5, 12"):
        promoted(first, VERSIONS, "rc")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"aliases": {"rc": 4}}, "aliases.rc: there is no version '4'; versions: 3, 5, 12"),
        ({"aliases": {"5": 5}}, "aliases.5: must be 1 to 63 lower-case letters"),
        ({"traffic": {"rc": 1}}, "traffic.rc: is no version and no alias; versions: 3, 5, 12; aliases: stable"),
        ({"traffic": {"stable": 0}}, "traffic: needs a weight that is more than 0"),
        ({"shadow": {"to": "rc"}}, "shadow.to: 'rc' is no version"),
        ({"aliases": {f"a{number}": 3 for number in range(17)}}, "aliases: must be at most 16"),
        ({"aliases": {"candidate": None}}, "traffic.candidate: is no version and no alias"),
    ],
)
def test_what_does_not_fit_is_refused(change: Any, message: str) -> None:
    """By its place, with what there is."""
    with pytest.raises(InvalidRequest) as refusal:
        changed(Table(CANARY), VERSIONS, msgspec.convert(change, TrafficChange))
    assert message in str(refusal.value)


def test_a_change_leaves_the_rest() -> None:
    """What it does not name stays."""
    table = changed(Table(CANARY), VERSIONS, msgspec.convert({"aliases": {"candidate": 12}}, TrafficChange))
    assert described("m", table, VERSIONS) == {
        "model": "m",
        "revision": 1,
        "versions": ["3", "5", "12"],
        "aliases": {"stable": "3", "candidate": "12"},
        "traffic": {"stable": 90, "candidate": 10},
        "sticky": "request_id",
        "shadow": None,
        "shares": {"3": 0.9, "12": 0.1},
    }


class MemoryStore:
    """Implements `serve_app.router.versions.VersionStore` in this process."""

    def __init__(self) -> None:
        self.tables: dict[tuple[str, str], dict[int, bytes]] = {}

    def add(self, model: str, origin: str, revision: int, table: bytes) -> bool:
        """See the class."""
        return self.tables.setdefault((model, origin), {}).setdefault(revision, table) is table

    def newest(self, model: str, origin: str) -> bytes | None:
        """See the class."""
        return max(self.tables.get((model, origin), {}).items(), default=(0, None))[1]

    def drop_others(self, model: str, origin: str) -> bool:
        """See the class."""
        others = [key for key in self.tables if key[0] == model and key[1] != origin]
        for key in others:
            del self.tables[key]
        return bool(others)


class BrokenStore(MemoryStore):
    """Keeps nothing."""

    def add(self, model: str, origin: str, revision: int, table: bytes) -> bool:
        """See the class."""
        raise OSError("no way there")


class Routers:
    """Several that share a store, of which only some hear of each other."""

    def __init__(self, store: MemoryStore, number: int, traffic: Traffic = CANARY) -> None:
        self.missing: set[int] = set()
        self.all = [TrafficTables(store, self._tell, self._changed) for _ in range(number)]
        for tables in self.all:
            for version in VERSIONS:
                tables.add("m", version, f"m/{version}", traffic)

    async def _tell(self, model: str, origin: str, table: bytes) -> None:
        for number, tables in enumerate(self.all):
            if number not in self.missing:
                tables.told(model, origin, table)

    def _changed(self, versions: Versions) -> None:
        """Nobody shows it."""

    async def promote(self, number: int, to: str) -> None:
        """Have one router change the table."""
        tables = self.all[number]
        await tables.change(tables.models["m"], lambda table, versions: promoted(table, versions, to))

    def revisions(self) -> list[tuple[int, Mapping[str, float]]]:
        """What counts at each."""
        return [(tables.models["m"].table.revision, dict(tables.models["m"].shares)) for tables in self.all]


async def test_routers_agree_whoever_is_asked() -> None:
    """At once, and when two are asked at the same time: no change is lost."""
    routers = Routers(MemoryStore(), 3)
    await routers.promote(1, "5")
    assert routers.revisions() == [(1, {"5": 1.0})] * 3
    await asyncio.gather(*(routers.promote(number, to) for number, to in enumerate(VERSIONS)))
    (told, *others) = routers.revisions()
    assert told[0] == 4
    assert others == [told] * 2


async def test_a_router_that_missed_a_change_builds_on_it() -> None:
    """It finds it in the store when it is asked for the next one, and its own stale table does not win."""
    routers = Routers(MemoryStore(), 2)
    routers.missing = {1}
    await routers.promote(0, "5")
    assert [revision for revision, _ in routers.revisions()] == [1, 0]
    await routers.promote(1, "12")
    assert routers.revisions() == [(2, {"12": 1.0})] * 2


async def test_a_new_router_begins_with_what_was_set() -> None:
    """Also where it is the only one."""
    store = MemoryStore()
    await Routers(store, 1).promote(0, "5")
    (again,) = Routers(store, 1).all
    again.restore()
    assert again.models["m"].shares == (("5", 1.0),)


async def test_a_changed_configuration_counts() -> None:
    """What was set for the one before is forgotten, also where that comes back."""
    store = MemoryStore()
    await Routers(store, 1).promote(0, "5")
    (other,) = Routers(store, 1, Traffic({"stable": "12"})).all
    other.restore()
    assert other.models["m"].shares == (("12", 1.0),)
    (back,) = Routers(store, 1).all
    back.restore()
    assert back.models["m"].table.revision == 0


async def test_a_change_that_cannot_be_stored_does_not_count() -> None:
    """It would be lost with this router."""
    routers = Routers(BrokenStore(), 2)
    with pytest.raises(ModelUnavailable, match="could not be stored, and does not count"):
        await routers.promote(0, "5")
    assert [revision for revision, _ in routers.revisions()] == [0, 0]
