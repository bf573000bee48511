"""Slots per replica: windows, choice, holds."""

from __future__ import annotations

from math import inf

import pytest

from serve_app.scheduling.gate import Outlook
from serve_app.scheduling.slots import Replica, Slots


def _slots(*names: str, window: int = 2) -> Slots:
    slots = Slots(window)
    slots.set_replicas(names, 0.0)
    return slots


def _take(slots: Slots, bundle_id: int, predicted_s: float = 0.0, *, avoid: str | None = None) -> Replica:
    replica = slots.choose(avoid)
    assert replica is not None
    slots.acquire(replica, bundle_id, 1, predicted_s, 0.0)
    return replica


def test_idle_replicas_go_first_and_in_turn() -> None:
    """Every replica gets one bundle before any gets a second, and nobody gets more than the window."""
    slots = _slots("a", "b", "c")

    assert [_take(slots, i).name for i in range(3)] == ["a", "b", "c"]
    assert sorted(str(_take(slots, i).name) for i in range(3, 6)) == ["a", "b", "c"]
    assert slots.choose() is None
    assert slots.in_use == 6


def test_among_equals_the_one_done_first() -> None:
    """A replica with a short bundle is staged before one with a long bundle."""
    slots = _slots("a", "b")
    _take(slots, 1, predicted_s=5.0)
    _take(slots, 2, predicted_s=1.0)

    assert _take(slots, 3).name == "b"


def test_released_slot_is_free_again() -> None:
    """An answer frees exactly its own slot."""
    slots = _slots("a", window=1)
    replica = _take(slots, 1)
    assert slots.choose() is None

    slots.release(replica, 1, 1.0, answered=True)

    assert slots.choose() is replica
    assert (slots.in_use, slots.rows) == (0, 0)


def test_new_replicas_can_be_chosen_and_vanished_ones_cannot() -> None:
    """A late answer of a vanished replica changes nothing."""
    slots = _slots("a")
    gone = _take(slots, 1)

    assert slots.set_replicas(["b"], 1.0) == [gone]
    assert _take(slots, 2).name == "b"
    slots.release(gone, 1, 2.0, answered=True)
    assert _take(slots, 3).name == "b"
    assert slots.choose() is None


def test_replica_listed_again_is_new() -> None:
    """It starts with all its slots and without a hold."""
    slots = _slots("a", window=1)
    _take(slots, 1)
    slots.quarantine("a", 0.0)
    slots.set_replicas([], 1.0)
    slots.set_replicas(["a"], 2.0)

    assert _take(slots, 2).name == "a"


def test_without_replicas_one_wake_up_bundle_may_go() -> None:
    """Its replica has no name; replicas that appear meanwhile have their own slots."""
    slots = _slots()
    wake_up = _take(slots, 1)

    assert wake_up.name is None
    assert slots.choose() is None
    slots.set_replicas(["a"], 1.0)
    assert _take(slots, 2).name == "a"
    slots.set_replicas([], 2.0)
    assert slots.choose() is None
    slots.release(wake_up, 1, 3.0, answered=False)
    assert slots.choose() is wake_up


def test_given_up_wake_up_bundle_frees_its_slot() -> None:
    """Its former holder counts as vanished."""
    slots = _slots()
    wake_up = _take(slots, 1)

    assert slots.quarantine(None, 1.0) is wake_up
    assert not wake_up.listed
    assert _take(slots, 2).name is None


def test_quarantined_replica_waits_for_its_answer() -> None:
    """No time ends a quarantine; an answer does."""
    slots = _slots("a")
    replica = _take(slots, 1)
    slots.quarantine("a", 0.0)
    slots.release_holds(1e9)

    assert slots.choose() is None
    assert (slots.in_use, slots.rows, slots.usable, slots.held) == (0, 0, 0, ["a"])
    assert slots.next_release == inf
    slots.release(replica, 1, 2.0, answered=True)
    assert slots.choose() is replica


def test_quarantined_replica_with_nothing_left_counts_as_failed() -> None:
    """It could never answer, so its hold ends by time."""
    slots = _slots("a")
    replica = _take(slots, 1)
    slots.quarantine("a", 0.0)
    slots.release(replica, 1, 10.0, answered=False)
    slots.fail(replica, 10.0)

    assert slots.next_release == 11.0
    slots.release_holds(11.0)
    assert slots.choose() is replica


def test_hold_doubles_with_failures_and_an_answer_forgives() -> None:
    """1 s, 2 s, 4 s ... 30 s; after an answer 1 s again."""
    slots = _slots("a")
    holds = []
    now = 0.0
    for i in range(7):
        replica = _take(slots, i)
        slots.release(replica, i, now, answered=False)
        slots.fail(replica, now)
        holds.append(slots.next_release - now)
        now = slots.next_release
        slots.release_holds(now)

    assert holds == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    replica = _take(slots, 100)
    slots.release(replica, 100, now, answered=True)
    slots.fail(replica, now)
    assert slots.next_release == now + 1.0


def test_avoided_replica_is_chosen_only_when_alone() -> None:
    """Waiting for another replica makes sense only if there is one."""
    slots = _slots("a", "b", window=1)
    _take(slots, 1, avoid="a")

    assert slots.choose("a") is None
    slots.set_replicas(["a"], 0.0)
    assert _take(slots, 2, avoid="a").name == "a"


def test_suspects_do_not_share_a_replica() -> None:
    """Two retried bundles are never in flight at one replica."""
    slots = _slots("a")
    replica = slots.choose(suspect=True)
    assert replica is not None
    slots.acquire(replica, 1, 1, 0.0, 0.0, suspect=True)

    assert slots.choose(suspect=True) is None
    assert slots.choose() is replica
    slots.release(replica, 1, 1.0, answered=True)
    assert slots.choose(suspect=True) is replica


def test_earliest_start_is_when_the_first_replica_is_done() -> None:
    """Now, while one is idle; otherwise the earliest predicted end of work."""
    slots = _slots("a", "b")
    _take(slots, 1, predicted_s=5.0)

    assert slots.earliest_start(1.0) == 1.0
    _take(slots, 2, predicted_s=3.0)
    assert slots.earliest_start(1.0) == 3.0
    assert slots.earliest_start(9.0) == 9.0


def test_window_must_be_positive() -> None:
    """A replica without slots could never be used."""
    with pytest.raises(ValueError, match="window"):
        Slots(0)


def test_repr_names_the_replica() -> None:
    """For people who debug."""
    assert repr(Replica("a")) == "<Replica a bundles=0 held_until=None>"


def test_others_work_counts_until_the_next_answer() -> None:
    """What the replica tells of itself, and the bundles that had not reached it."""
    slots = _slots("a", window=3)
    replica = _take(slots, 1, predicted_s=1.0)
    _take(slots, 2, predicted_s=2.0)
    _take(slots, 3, predicted_s=4.0)

    slots.release(replica, 1, 1.0, answered=True, outlook=Outlook(2.5, 1, 0.25))
    assert (replica.busy_until, replica.most_rows(32), replica.most_rows(2)) == (1.0 + 2.5 + 4.0, 8, 1)
    slots.release(replica, 2, 3.5, answered=True, outlook=Outlook(0.5, 0, 0.5))
    assert replica.busy_until == 3.5 + 0.5 + 4.0
    slots.release(replica, 3, 8.0, answered=True, outlook=Outlook(3.0, 0, 0.5))
    assert slots.earliest_start(8.0) == 8.0  # nothing in flight: it has free slots
    assert replica.busy_until == 11.0
    _take(slots, 4)
    slots.release(replica, 4, 12.0, answered=True)
    assert (replica.busy_until, replica.share) == (12.0, 1.0)


def test_the_next_bundle_began_when_the_answer_left() -> None:
    """The ways there and back are not work of the replica: what is sent at 6.8 is there as it gets free."""
    slots = _slots("a")
    slots.round_trip_s = 0.5
    replica = _take(slots, 1, predicted_s=3.0)
    _take(slots, 2, predicted_s=4.0)
    assert replica.busy_until == 7.0

    slots.release(replica, 1, 3.3, answered=True)
    assert replica.busy_until == pytest.approx(3.3 - 0.5 + 4.0)


def test_a_bundle_begins_when_it_was_sent_at_the_earliest() -> None:
    """It was on its way when the answer of the one before it left."""
    slots = _slots("a")
    slots.round_trip_s = 0.5
    replica = _take(slots, 1, predicted_s=3.0)
    slots.acquire(replica, 2, 1, 4.0, 3.1)

    slots.release(replica, 1, 3.3, answered=True)
    assert replica.busy_until == 3.1 + 4.0
    slots.release(replica, 2, 7.6, answered=True)
    assert slots.earliest_start(7.6) == 7.6


def test_a_replica_pauses_between_executions() -> None:
    """After each of those that are in flight."""
    slots = _slots("a")
    slots.pause_s = 0.25
    replica = _take(slots, 1, predicted_s=3.0)
    _take(slots, 2, predicted_s=4.0)
    assert replica.busy_until == 7.5

    slots.release(replica, 1, 3.5, answered=True)
    assert replica.busy_until == 3.5 + 0.25 + 4.0 + 0.25
