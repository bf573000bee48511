"""Bundles in flight: who is due next, and what is remembered of a bundle."""

from __future__ import annotations

from math import inf

from scheduling_builders import make_entry

from serve_app.scheduling.bundles import Bundle, BundlesInFlight
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.slots import Replica


def _bundle(bundle_id: int, *deadlines: float, replica: Replica | None = None) -> Bundle:
    entries: list[Entry] = []
    for deadline in deadlines:
        entry = make_entry(deadline=deadline)
        entry.state = EntryState.RUNNING
        entries.append(entry)
    return Bundle(bundle_id, "m", replica or Replica("a"), entries, len(entries))


def test_due_entries_are_named_once_over_all_bundles() -> None:
    """Whatever their order inside a bundle."""
    in_flight = BundlesInFlight()
    first, second = _bundle(1, 5.0, 1.0, 3.0), _bundle(2, 2.0)
    in_flight.add(first)
    in_flight.add(second)

    assert in_flight.next_deadline() == 1.0
    assert sorted(e.deadline for e in in_flight.pop_due(2.0)) == [1.0, 2.0]
    assert in_flight.pop_due(2.0) == []
    assert in_flight.next_deadline() == 3.0


def test_entries_that_ended_otherwise_are_not_due() -> None:
    """The next deadline is that of an entry somebody waits for."""
    in_flight = BundlesInFlight()
    bundle = _bundle(1, 1.0, 2.0)
    in_flight.add(bundle)
    bundle.entries[0].state = EntryState.DONE

    assert in_flight.next_deadline() == 2.0
    bundle.entries[1].state = EntryState.DONE
    assert in_flight.next_deadline() == inf
    assert in_flight.pop_due(9.0) == []


def test_ended_bundle_is_known_until_its_replica_is_gone() -> None:
    """Its answer still frees a slot, so it is remembered, without its entries."""
    in_flight = BundlesInFlight()
    replica = Replica("a")
    bundle = _bundle(1, 1.0, replica=replica)
    in_flight.add(bundle)
    for entry in in_flight.pop_due(1.0):
        entry.state = EntryState.DONE

    assert in_flight.get(1) is bundle
    assert bundle.entries == []
    replica.listed = False
    in_flight.forget_ended(1)
    assert in_flight.get(1) is None


def test_heap_stays_in_proportion() -> None:
    """Bundles done long before their deadlines do not pile up in it."""
    in_flight = BundlesInFlight()
    in_flight.add(_bundle(0, 1e9))
    for i in range(1, 5000):
        in_flight.add(_bundle(i, 1e6 + i))
        in_flight.pop(i)
        assert in_flight.heap_size <= 2 * len(in_flight) + 64
