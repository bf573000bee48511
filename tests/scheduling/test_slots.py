"""Slots per replica: room per class, choice, holds."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import HIGH, LOW, NORMAL, make_entry

from serve_app.domain.priority import Priority
from serve_app.scheduling.slots import Replica, Slots

_MAX_ROWS = 4


def _slots(*names: str, window: int = 2) -> Slots:
    slots = Slots(window)
    slots.set_replicas(names, 0.0)
    return slots


def _choose(
    slots: Slots, priority: Priority = NORMAL, avoid: str | None = None, *, suspect: bool = False
) -> str | None:
    """The name of the replica that is chosen, ``-`` for the wake-up slot."""
    replica = slots.choose(priority, _MAX_ROWS, 0.0, 0.0, avoid, suspect=suspect)
    return None if replica is None else replica.name or "-"


def _take(
    slots: Slots,
    bundle_id: int,
    *rows: tuple[Priority, int],
    now: float = 0.0,
    avoid: str | None = None,
    suspect: bool = False,
) -> Replica:
    """Send a bundle to where it goes: a full one of class ``normal`` unless said otherwise."""
    entries = [make_entry(priority, rows=count) for priority, count in rows or ((NORMAL, _MAX_ROWS),)]
    replica = slots.choose(entries[0].priority, _MAX_ROWS, 0.0, 0.0, avoid, suspect=suspect)
    assert replica is not None
    slots.acquire(replica, bundle_id, entries, 0.0, now, suspect=suspect)
    return replica


def test_every_replica_takes_as_many_full_batches_as_the_window_says() -> None:
    """And each one before any takes a second."""
    slots = _slots("a", "b", "c")

    assert sorted(str(_take(slots, i).name) for i in range(3)) == ["a", "b", "c"]
    assert sorted(str(_take(slots, i).name) for i in range(3, 6)) == ["a", "b", "c"]
    assert _choose(slots) is None
    assert (slots.in_use, slots.rows) == (6, 24)


def test_rows_count_and_not_bundles() -> None:
    """Eight bundles of one row are two full batches; what goes over the edge with its last rows may."""
    slots = _slots("a")
    for i in range(7):
        _take(slots, i, (NORMAL, 1))
    assert _choose(slots) == "a"
    _take(slots, 7, (NORMAL, 4))

    assert (_choose(slots), slots.rows) == (None, 11)


def test_a_less_urgent_class_takes_no_room_from_a_more_urgent_one() -> None:
    """The other way round it does."""
    slots = _slots("a", window=1)
    _take(slots, 1, (LOW, 4))
    assert [_choose(slots, priority) for priority in Priority] == ["a", "a", None]
    _take(slots, 2, (HIGH, 4))

    assert [_choose(slots, priority) for priority in Priority] == [None, None, None]


def test_who_rides_along_counts_in_its_own_class() -> None:
    """A bundle of several classes."""
    slots = _slots("a", window=1)
    replica = _take(slots, 1, (HIGH, 1), (NORMAL, 2), (LOW, 1))

    assert [replica.rows_before(priority) for priority in Priority] == [1, 3, 4]
    assert [_choose(slots, priority) for priority in Priority] == ["a", "a", None]
    slots.release(replica, 1, 1.0, answered=True)
    assert (replica.rows, slots.rows) == (0, 0)


def test_the_fewest_rows_and_then_the_longest_unasked() -> None:
    """Among those where it would begin at the same time."""
    slots = _slots("a", "b", "c")
    _take(slots, 1, (LOW, 3), now=-3.0)
    _take(slots, 2, (LOW, 1), now=-2.0)
    _take(slots, 3, (LOW, 1), now=-1.0)

    assert _take(slots, 4, (HIGH, 1), now=0.0).name == "b"
    assert _take(slots, 5, (HIGH, 1), now=0.0).name == "c"


def test_where_it_would_begin_first() -> None:
    """When what runs there has ended, and what is ahead of it has run; less urgent rows are not ahead."""
    slots = _slots("a", "b")
    for number, (name, priority, rows, seconds) in enumerate((("a", LOW, 8, 0.2), ("b", HIGH, 3, 0.1))):
        slots.acquire(slots.replicas[name], number, [make_entry(priority, rows=rows)], seconds, 0.0)

    def chosen(priority: Priority, per_row_s: float, now: float = 0.0) -> str | None:
        replica = slots.choose(priority, 32, now, per_row_s)
        return None if replica is None else replica.name

    assert (chosen(HIGH, 0.01), chosen(HIGH, 0.05)) == ("b", "a")
    assert (chosen(LOW, 0.05), chosen(HIGH, 0.01, now=1.0)) == ("b", "a")
    slots.release(slots.replicas["a"], 0, 0.05, answered=True, runs_s=0.5)
    assert chosen(HIGH, 0.05) == "b"


def test_quickest_is_usable() -> None:
    """`choose` may refuse all of them for want of room, this one does not."""
    slots = _slots("a", "b", window=1)
    first, second = _take(slots, 1, (NORMAL, 5)), _take(slots, 2)

    assert _choose(slots) is None
    assert slots.quickest() is second
    slots.quarantine(str(second.name), 0.0)
    assert slots.quickest() is first


def test_released_slot_is_free_again() -> None:
    """An answer frees what its bundle took, once."""
    slots = _slots("a", window=1)
    replica = _take(slots, 1)
    assert _choose(slots) is None
    slots.release(replica, 1, 1.0, answered=True, reported_backlog_s=0.25)
    slots.release(replica, 1, 1.0, answered=True, reported_backlog_s=0.25)

    assert _choose(slots) == "a"
    assert (slots.in_use, slots.rows, replica.ahead) == (0, 0, [0, 0, 0])
    assert (replica.last_answer_at, replica.reported_backlog_s) == (1.0, 0.25)


def test_new_replicas_can_be_chosen_and_vanished_ones_cannot() -> None:
    """A late answer of a vanished replica changes nothing."""
    slots = _slots("a")
    gone = _take(slots, 1)

    assert slots.set_replicas(["b"], 1.0) == [gone]
    assert _take(slots, 2).name == "b"
    slots.release(gone, 1, 2.0, answered=True)
    assert _take(slots, 3).name == "b"
    assert _choose(slots) is None


def test_replica_listed_again_is_new() -> None:
    """It starts with all its room and without a hold."""
    slots = _slots("a", window=1)
    _take(slots, 1)
    slots.quarantine("a", 0.0)
    slots.set_replicas([], 1.0)
    slots.set_replicas(["a"], 2.0)

    assert _take(slots, 2).name == "a"


def test_without_replicas_one_wake_up_bundle_may_go() -> None:
    """Its replica has no name; replicas that appear meanwhile have room of their own."""
    slots = _slots()
    wake_up = _take(slots, 1, (NORMAL, 1))

    assert wake_up.name is None
    assert _choose(slots, HIGH) is None
    slots.set_replicas(["a"], 1.0)
    assert _take(slots, 2).name == "a"
    slots.set_replicas([], 2.0)
    assert _choose(slots) is None
    slots.release(wake_up, 1, 3.0, answered=False)
    assert _choose(slots) == "-"


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

    assert _choose(slots) is None
    assert (slots.in_use, slots.rows, slots.usable, slots.held) == (0, 0, 0, ["a"])
    assert slots.next_release == inf
    slots.release(replica, 1, 2.0, answered=True)
    assert _choose(slots) == "a"


def test_a_quarantine_ends_when_the_replica_is_heard_and_keeps_what_it_has() -> None:
    """Its bundles still take their room; no other hold ends so."""
    slots = _slots("a", "b", window=1)
    replica = _take(slots, 1)
    slots.quarantine("a", 0.0)
    slots.restore(replica)
    assert (slots.usable, slots.rows) == (2, 4)
    slots.fail(replica, 0.0)
    slots.restore(replica)

    assert slots.held == ["a"]


def test_quarantined_replica_with_nothing_left_counts_as_failed() -> None:
    """It could never answer, so its hold ends by time."""
    slots = _slots("a")
    replica = _take(slots, 1)
    slots.quarantine("a", 0.0)
    slots.release(replica, 1, 10.0, answered=False)
    slots.fail(replica, 10.0)

    assert slots.next_release == 11.0
    slots.release_holds(11.0)
    assert _choose(slots) == "a"


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
    """Waiting for another replica makes sense only if there is one that is not held."""
    slots = _slots("a", "b", window=1)
    _take(slots, 1, avoid="a")

    assert _choose(slots, avoid="a") is None
    slots.quarantine("b", 0.0)
    assert _choose(slots, avoid="a") == "a"
    slots.set_replicas(["a"], 0.0)
    assert _take(slots, 2, avoid="a").name == "a"


def test_suspects_do_not_share_a_replica() -> None:
    """Two retried bundles are never in flight at one replica."""
    slots = _slots("a")
    replica = _take(slots, 1, (NORMAL, 1), suspect=True)

    assert _choose(slots, suspect=True) is None
    assert _choose(slots) == "a"
    slots.release(replica, 1, 1.0, answered=True)
    assert _choose(slots, suspect=True) == "a"


def test_window_must_be_positive() -> None:
    """A replica without room could never be used."""
    with pytest.raises(ValueError, match="window"):
        Slots(0)


def test_repr_names_the_replica() -> None:
    """For people who debug."""
    assert repr(Replica("a")) == "<Replica a bundles=0 held_until=None>"


@given(
    st.lists(
        st.tuples(st.sampled_from(Priority), st.integers(1, 9), st.booleans()),
        max_size=60,
    ),
    st.integers(1, 3),
    st.sampled_from(["a", "ab", "abc"]),
)
def test_room_is_bounded_and_counts_come_back_to_zero(
    asked: list[tuple[Priority, int, bool]], window: int, names: str
) -> None:
    """Per class the window and one entry more, less urgent ones not counted; the one with the fewest rows gets it."""
    slots = _slots(*names, window=window)
    sent: list[tuple[Replica, int]] = []
    for number, (priority, rows, answers) in enumerate(asked):
        replica = slots.choose(priority, _MAX_ROWS, 0.0)
        if replica is None:
            assert all(other.rows_before(priority) >= window * _MAX_ROWS for other in slots.replicas.values()), (
                "somebody has room"
            )
        else:
            assert replica.rows == min(
                other.rows for other in slots.replicas.values() if other.rows_before(priority) < window * _MAX_ROWS
            )
            slots.acquire(replica, number, [make_entry(priority, rows=rows)], 0.0, 0.0)
            sent.append((replica, number))
            assert replica.rows_before(priority) < window * _MAX_ROWS + rows
        if answers and sent:
            of, bundle_id = sent.pop(0)
            slots.release(of, bundle_id, 0.0, answered=True)
    assert slots.in_use == len(sent)
    for of, bundle_id in sent:
        slots.release(of, bundle_id, 1e3, answered=True)
    assert (slots.rows, slots.in_use) == (0, 0)
    assert all(replica.ahead == [0, 0, 0] for replica in slots.replicas.values())


@given(
    st.sampled_from(Priority),
    st.lists(st.tuples(st.sampled_from(Priority), st.integers(1, 5)), max_size=3),
    st.floats(0.0, 10.0),
    st.floats(0.0, 10.0),
    st.sampled_from([None, "a", "b"]),
    st.booleans(),
)
def test_of_one_replica_no_prediction_decides(
    priority: Priority,
    sent: list[tuple[Priority, int]],
    now: float,
    per_row_s: float,
    avoid: str | None,
    suspect: bool,
) -> None:
    """It is chosen or not, whatever a row takes: who asks about one need not predict."""
    slots = _slots("a")
    for number, (of, rows) in enumerate(sent):
        slots.acquire(slots.replicas["a"], number, [make_entry(of, rows=rows)], 1.0, 0.0, suspect=number == 1)
    unpredicted = slots.choose(priority, _MAX_ROWS, now, 0.0, avoid, suspect=suspect)
    assert slots.choose(priority, _MAX_ROWS, now, per_row_s, avoid, suspect=suspect) is unpredicted
