"""Tables of traffic in Ray's key-value store, with a store in this process."""

from __future__ import annotations

import pytest
from ray.experimental import internal_kv

from serve_app.versions.deployment import KvTrafficStore
from serve_app.versions.policy import Table, Traffic, TrafficChange, changed
from serve_app.versions.tables import TrafficTables, Versions

CONFIGURED = Traffic({"stable": "3"})


class KeyValues:
    """What Ray's client of its key-value store does."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}

    def internal_kv_put(self, key: bytes, value: bytes, overwrite: bool, _namespace: bytes) -> int:
        """Give how many keys are new."""
        new = key not in self.kept
        if new or overwrite:
            self.kept[key] = value
        return int(new)

    def internal_kv_get(self, key: bytes, _namespace: bytes) -> bytes | None:
        """Give the value of a key."""
        return self.kept.get(key)

    def internal_kv_keys(self, prefix: bytes, _namespace: bytes) -> list[bytes]:
        """Give keys, in no order."""
        return [key for key in reversed(self.kept) if key.startswith(prefix)]

    def internal_kv_del(self, key: bytes, _by_prefix: bool, _namespace: bytes) -> int:
        """Give how many were deleted."""
        return int(self.kept.pop(key, None) is not None)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> KvTrafficStore:
    """A store that is empty."""
    monkeypatch.setattr(internal_kv, "global_gcs_client", KeyValues())
    return KvTrafficStore(lambda: "app")


def test_a_revision_is_taken_once(store: KvTrafficStore) -> None:
    """By who comes first; models and configurations do not mix."""
    assert store.newest("m", "one") is None
    assert [store.add("m", "one", 1, b"a"), store.add("m", "one", 1, b"b")] == [True, False]
    assert store.add("n", "one", 1, b"c")
    assert store.newest("m", "one") == b"a"
    assert store.drop_others("m", "two")
    assert [store.newest("m", "one"), store.newest("n", "one")] == [None, b"c"]


def test_a_revision_that_is_not_kept_any_more_cannot_be_taken_again(store: KvTrafficStore) -> None:
    """The newest ones alone are kept."""
    assert [store.add("m", "one", revision, b"%d" % revision) for revision in (1, 2, 3, 10)] == [True] * 4
    assert [store.add("m", "one", revision, b"late") for revision in (1, 2, 9, 10)] == [False] * 4
    assert store.newest("m", "one") == b"10"
    assert store.add("m", "one", 11, b"11")
    assert store.newest("m", "one") == b"11"


async def test_a_change_at_a_router_that_has_missed_several_is_not_lost(store: KvTrafficStore) -> None:
    """It builds on them, and counts at all routers."""

    def router() -> tuple[TrafficTables, Versions]:
        tables = TrafficTables(store, None, lambda _: None)
        for version in ("3", "5"):
            versions = tables.add("m", version, f"m/{version}", CONFIGURED)
        return tables, versions

    async def set_weight(router: tuple[TrafficTables, Versions], weight: float) -> Table:
        tables, versions = router
        await tables.change(
            versions, lambda table, served: changed(table, served, TrafficChange(traffic={"5": weight}))
        )
        return versions.table

    one, other = router(), router()
    for weight in (1.0, 2.0, 3.0):
        await set_weight(one, weight)
    assert other[1].table.revision == 0
    assert (await set_weight(other, 4.0)).revision == 4
    one[0].restore()
    assert (one[1].table.revision, one[1].table.traffic.weights) == (4, {"5": 4.0})
