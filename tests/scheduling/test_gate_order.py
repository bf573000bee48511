"""The replica's gate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import make_foresight

from serve_app.scheduling.gate import Gate, Grant, Outlook, Ticket


def _gate(*tickets: Ticket) -> Gate:
    gate = Gate()
    for ticket in tickets:
        gate.add(ticket)
    return gate


def test_grants_by_class_then_deadline() -> None:
    """The most urgent class first, the earliest deadline inside it."""
    gate = _gate(Ticket(1, 3, 1.0, 1), Ticket(2, 1, 9.0, 1), Ticket(3, 1, 5.0, 1))

    assert Grant([3, 2, 1], [], 3, 0) == gate.grant(0.0, 32)
    assert len(gate) == 0


def test_packs_what_fits_behind_the_first() -> None:
    """A bundle that does not fit waits; a smaller one behind it may ride along."""
    gate = _gate(Ticket(1, 1, 1.0, 20), Ticket(2, 1, 2.0, 20), Ticket(3, 2, 3.0, 12, bucket=64))

    assert Grant([1, 3], [], 32, 64) == gate.grant(0.0, 32)
    assert Grant([2], [], 20, 0) == gate.grant(0.0, 32)


def test_what_comes_next_can_be_asked_without_granting_it() -> None:
    """The answer is what a grant would be, and everything waits as before."""
    gate = _gate(Ticket(1, 1, 1.0, 20), Ticket(2, 1, 2.0, 20), Ticket(3, 2, 3.0, 12, bucket=64))

    assert (gate.upcoming(32), len(gate)) == ([1, 3], 3)
    assert gate.grant(0.0, 32).granted == [1, 3]
    assert gate.upcoming(32) == [2]


def test_oversized_bundle_travels_alone() -> None:
    """More rows than a batch holds: nothing is added to it, and it is added to nothing."""
    gate = _gate(Ticket(1, 1, 1.0, 1), Ticket(2, 1, 2.0, 100), Ticket(3, 1, 3.0, 1))

    assert [gate.grant(0.0, 32).granted, gate.grant(0.0, 32).granted] == [[1, 3], [2]]


def test_nothing_waiting_grants_nothing() -> None:
    """An idle gate."""
    assert Grant([], [], 0, 0) == Gate().grant(0.0, 32)


def test_expired_bundles_leave_without_running() -> None:
    """A bundle expires with its latest deadline, though its earliest orders it."""
    gate = _gate(Ticket(1, 1, 1.0, 1), Ticket(2, 1, 1.5, 1, expires=9.0), Ticket(3, 1, 5.0, 1))

    assert Grant([2, 3], [1], 2, 0) == gate.grant(2.0, 32)


def test_removed_bundle_is_not_granted() -> None:
    """Removing tells whether it still waited."""
    gate = _gate(Ticket(1, 1, 1.0, 4), Ticket(2, 1, 2.0, 5))

    assert (gate.remove(1), gate.remove(1), gate.rows) == (True, False, 5)
    assert gate.grant(0.0, 32).granted == [2]


def test_an_id_waits_once() -> None:
    """Adding it twice is a fault of the caller."""
    gate = _gate(Ticket(1, 1, 1.0, 1))

    with pytest.raises(ValueError, match="waits already"):
        gate.add(Ticket(1, 1, 1.0, 1))


@given(
    st.lists(st.tuples(st.integers(1, 3), st.floats(0.0, 10.0), st.integers(1, 50), st.floats(0.0, 5.0)), max_size=20),
    st.floats(0.0, 12.0),
    st.integers(1, 40),
)
def test_every_bundle_leaves_exactly_once(
    waiting: list[tuple[int, float, int, float]], now: float, max_rows: int
) -> None:
    """Granting until the gate is empty names each bundle once, never an expired one, within the rows allowed."""
    tickets = {
        i: Ticket(i, priority, deadline, rows, expires=deadline + more)
        for i, (priority, deadline, rows, more) in enumerate(waiting)
    }
    gate = _gate(*tickets.values())
    seen: list[int] = []
    while len(gate):
        before = len(gate)
        urgent = (
            min(
                (t.priority, t.deadline, t.id)
                for t in tickets.values()
                if t.id not in seen and (t.expires or 0.0) > now
            )
            if any(t.id not in seen and (t.expires or 0.0) > now for t in tickets.values())
            else None
        )
        grant = gate.grant(now, max_rows)
        assert len(gate) < before
        assert (urgent[2] if urgent else None) == (grant.granted[0] if grant.granted else None)
        assert sum(tickets[i].rows for i in grant.granted) == grant.rows
        assert grant.rows <= max_rows or len(grant.granted) == 1
        assert all((tickets[i].expires or 0.0) > now for i in grant.granted)
        assert all((tickets[i].expires or 0.0) <= now for i in grant.expired)
        seen += grant.granted + grant.expired
    assert sorted(tickets) == sorted(seen)


def test_a_single_router_is_told_nothing() -> None:
    """It knows all there is."""
    gate = Gate(make_foresight())
    gate.add(Ticket(1, 1, 1.0, 4, sender="a"))
    gate.grant(0.0, 32)
    gate.ended(0.01)

    assert gate.outlook("a", 0.01) is None
    assert gate.outlook("b", 0.02) is not None


def test_the_outlook_tells_what_is_here_and_whose_it_is() -> None:
    """The rest of the run, what waits after it, the receiver's own bundles, and its part of a batch."""
    gate = Gate(make_foresight())
    gate.add(Ticket(1, 1, 1.0, 8, sender="a"))
    gate.grant(0.0, 32)
    gate.begun(0.013, 0.0)
    gate.add(Ticket(2, 1, 1.0, 8, sender="b"))

    told = gate.outlook("b", 0.010)
    assert told is not None
    assert told == Outlook(told.busy_s, 1, 0.5)
    assert told.busy_s == pytest.approx(0.003 + 0.013)
    assert gate.outlook("a", 0.010, 0.004) == told._replace(behind_others_s=0.004)


def test_a_router_that_sends_little_leaves_its_part_to_the_others() -> None:
    """And may itself use an equal one."""
    gate = Gate(make_foresight())
    for number, (sender, rows) in enumerate((("a", 31), ("b", 1))):
        gate.add(Ticket(number, 1, 1.0, rows, sender=sender))
    gate.grant(0.0, 32)

    shares = [outlook.share for outlook in (gate.outlook("a", 0.0), gate.outlook("b", 0.0)) if outlook is not None]
    assert shares == pytest.approx([31 / 32, 0.5])


def test_routers_of_the_last_batch_get_a_moment_to_join_the_next() -> None:
    """Only while one of them has nothing here yet; a single router waits for nobody."""
    gate = Gate(make_foresight())
    for number, sender in enumerate("ab"):
        gate.add(Ticket(number, 1, 9.0, 4, sender=sender))
    gate.grant(0.0, 32)
    gate.ended(1.0)
    assert gate.opens_at(1.0, 32) == 1.0
    gate.add(Ticket(3, 1, 9.0, 4, sender="a"))
    assert 1.0 < gate.opens_at(1.0, 32) <= 1.01
    assert gate.opens_at(1.0, 4) == 1.0
    gate.add(Ticket(4, 1, 9.0, 4, sender="b"))
    assert gate.opens_at(1.0, 32) == 1.0
