"""Fairness inside a class: server time of tenants, room in the queue, and what is counted."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from serve_app.domain.priority import Priority
from serve_app.payloads import RequestAttributes
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.gate import Gate
from serve_app.scheduling.queueing.tenants import CREDIT_BATCHES
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ClassSettings, ModelScheduling, ProcessLimits

MODEL = "model"
ROWS = 8
ALPHA_S, BETA_S = 0.010, 0.001
NO_SHARES = dict.fromkeys(Priority, 0.0)


def _seconds(rows: int) -> float:
    return ALPHA_S + BETA_S * rows


def _gate() -> Gate:
    gate = Gate(ModelScheduling(MODEL, ROWS, 1.0, policy="eager"), NO_SHARES)
    gate.seed([(rows, 0, _seconds(rows), "") for rows in (1, 2, 4, ROWS)])
    return gate


def _entry(number: int, tenant: str, deadline: float = 1000.0, weight: float = 1.0, nbytes: int = 0) -> Entry:
    return Entry(
        number, MODEL, Priority.NORMAL, 0.0, deadline, nbytes=nbytes, attributes=RequestAttributes(tenant, weight)
    )


def _tenants(entries: list[Entry]) -> list[str]:
    return [entry.attributes.tenant for entry in entries]


def _scheduler(queue_entries: int, overflow: str = "reject", queue_bytes: int = 1 << 30) -> Scheduler:
    classes = {
        priority: ClassSettings(queue_entries, queue_bytes, 10.0, overflow)  # type: ignore[arg-type]
        for priority in Priority
    }
    return Scheduler([ModelScheduling(MODEL, ROWS, 1.0)], classes, ProcessLimits(1 << 40))


class TestTheGate:
    def test_one_tenant_is_served_by_deadline(self) -> None:
        gate = _gate()
        for number, deadline in enumerate((9.0, 7.0, 8.0)):
            gate.add(_entry(number, "only", deadline), 0.0)
        assert [7.0, 8.0, 9.0] == [entry.deadline for entry in gate.next(0.0).entries]

    def test_who_comes_back_goes_before_a_flood_with_tighter_deadlines(self) -> None:
        gate = _gate()
        numbers = count()
        gate.add(_entry(next(numbers), "polite"), 0.0)
        for _ in range(10 * ROWS):
            gate.add(_entry(next(numbers), "flood", 5.0), 0.0)
        now = 0.0
        for _ in range(8):
            now += gate.next(now).predicted_s
        polite = _entry(next(numbers), "polite")
        gate.add(polite, now)
        batch = gate.next(now).entries
        assert polite is batch[0]
        assert ["flood"] * (ROWS - 1) == _tenants(list(batch[1:]))

    def test_the_least_served_of_the_others_fills_up_first(self) -> None:
        gate = _gate()
        numbers = count()
        for _ in range(4 * ROWS):
            gate.add(_entry(next(numbers), "large", 5.0), 0.0)
        gate.next(0.0)
        gate.add(_entry(next(numbers), "small", 900.0), 0.1)
        first = gate.next(0.1).entries
        assert "small" == first[0].attributes.tenant

    @pytest.mark.parametrize("weight", [1.0, 2.0, 4.0])
    def test_backlogged_tenants_share_by_weight(self, weight: float) -> None:
        gate = _gate()
        numbers = count()
        rows = {"light": 0, "heavy": 0}
        for turn in range(400):
            for tenant, of_tenant in (("light", 1.0), ("heavy", weight)):
                for _ in range(ROWS):
                    # The light one always has the tighter deadlines.
                    gate.add(_entry(next(numbers), tenant, 1e6 + turn + of_tenant, of_tenant), float(turn))
            for entry in gate.next(float(turn)).entries:
                rows[entry.attributes.tenant] += 1
        assert pytest.approx(weight, rel=0.05) == rows["heavy"] / rows["light"]


@settings(max_examples=examples(60))
@given(
    st.lists(st.floats(1.0, 4.0), min_size=2, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12), st.floats(0.0, 100.0)), min_size=20, max_size=80),
)
def test_served_time_of_backlogged_tenants_differs_by_a_few_batches(
    weights: list[float], comings: list[tuple[int, int, float]]
) -> None:
    """Whatever others bring, and whatever deadlines they name, and nothing is lost."""
    gate = _gate()
    numbers = count()
    names = [f"tenant-{place}" for place in range(len(weights))]
    added: set[int] = set()
    done: set[int] = set()

    def add(place: int, deadline: float) -> None:
        entry = _entry(next(numbers), names[place], 1e6 + deadline, weights[place])
        added.add(entry.id)
        gate.add(entry, 0.0)

    for place in (0, 1):  # backlogged throughout: with more than all the turns can take
        for _ in range((len(comings) + 1) * ROWS):
            add(place, 50.0)
    had = dict.fromkeys(names, 0.0)
    batch_s = _seconds(ROWS)
    for place, rows, deadline in comings:
        for _ in range(rows):
            add(place % len(weights), deadline)
        turn = gate.next(0.0)
        for entry in turn.entries:
            done.add(entry.id)
            had[entry.attributes.tenant] += turn.predicted_s / turn.rows / entry.attributes.weight
        assert abs(had[names[0]] - had[names[1]]) <= (CREDIT_BATCHES + 3) * batch_s / min(weights)
    while gate:
        done |= {entry.id for entry in gate.next(0.0).entries}
    assert added == done
    assert 0 == len(gate)


class TestRoomInTheQueue:
    def test_a_tenant_with_less_than_its_part_displaces_the_newest_of_the_largest(self) -> None:
        scheduler = _scheduler(4)
        flood = [_entry(number, "flood") for number in range(4)]
        for entry in flood:
            assert scheduler.on_arrival(entry, 0.0) is None
        polite = _entry(9, "polite")
        assert scheduler.precheck(MODEL, Priority.NORMAL, 0, 0.0, "polite") is None
        assert scheduler.on_arrival(polite, 0.0) is None
        assert 4 == scheduler.queue_lengths(MODEL)[Priority.NORMAL].entries
        refused = scheduler.decide(0.0).refused
        assert [(flood[3], "queue_full")] == [(entry, rejection.code) for entry, rejection in refused]
        assert EntryState.DONE is flood[3].state
        assert not scheduler.decide(0.0).refused

    def test_nobody_displaces_more_than_its_part(self) -> None:
        scheduler = _scheduler(4)
        for number in range(4):
            scheduler.on_arrival(_entry(number, "flood"), 0.0)
        answers = [scheduler.on_arrival(_entry(10 + number, "polite"), 0.0) for number in range(4)]
        assert [True, True, False, False] == [answer is None for answer in answers]
        again = scheduler.on_arrival(_entry(20, "flood"), 0.0)
        assert again is not None
        assert "queue_full" == again.code

    def test_a_weight_is_a_larger_part(self) -> None:
        scheduler = _scheduler(6)
        for number in range(6):
            scheduler.on_arrival(_entry(number, "flood"), 0.0)
        answers = [scheduler.on_arrival(_entry(10 + number, "heavy", weight=2.0), 0.0) for number in range(6)]
        assert 4 == sum(answer is None for answer in answers)

    def test_bytes_make_room_too(self) -> None:
        scheduler = _scheduler(100, queue_bytes=1000)
        for number in range(10):
            scheduler.on_arrival(_entry(number, "flood", nbytes=100), 0.0)
        assert scheduler.on_arrival(_entry(20, "polite", nbytes=300), 0.0) is None
        assert 3 == len(scheduler.decide(0.0).refused)
        assert 1000 == scheduler.totals()["bytes"]

    def test_one_tenant_alone_finds_the_queue_full(self) -> None:
        scheduler = _scheduler(1)
        assert scheduler.on_arrival(_entry(1, ""), 0.0) is None
        rejection = scheduler.on_arrival(_entry(2, ""), 0.0)
        assert rejection is not None
        assert "queue_full" == rejection.code

    def test_who_displaces_is_not_demoted(self) -> None:
        scheduler = _scheduler(2, "demote")
        for number in range(2):
            scheduler.on_arrival(_entry(number, "flood"), 0.0)
        polite = _entry(9, "polite")
        assert scheduler.on_arrival(polite, 0.0) is None
        assert Priority.NORMAL is polite.priority


class TestTheRouter:
    def test_a_flood_leaves_others_room_at_the_replica(self) -> None:
        scheduler = _scheduler(10_000)
        scheduler.seed(MODEL, [(rows, 0, _seconds(rows), "") for rows in (1, 2, 4, ROWS)])
        scheduler.on_replicas(MODEL, ["a"], 0.0)
        numbers = count()
        scheduler.on_arrival(_entry(next(numbers), "polite"), 0.0)
        for _ in range(10 * ROWS):
            scheduler.on_arrival(_entry(next(numbers), "flood", 5.0), 0.0)
        scheduler.decide(0.0)
        polite = _entry(next(numbers), "polite")
        scheduler.on_arrival(polite, 0.1)
        dispatches = scheduler.decide(0.1).dispatches
        assert [[polite]] == [dispatch.entries for dispatch in dispatches]
