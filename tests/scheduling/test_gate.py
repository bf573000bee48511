"""The replica's gate: one situation at a time."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import AFFINE, HIGH, LOW, NORMAL, Policy, make_entry, make_gate

from serve_app.domain.priority import Priority
from serve_app.payloads import NO_ATTRIBUTES
from serve_app.scheduling.entry import UNBATCHED, Entry, EntryState
from serve_app.scheduling.gate import BatchDecision, Gate
from serve_app.scheduling.settings import ModelScheduling

_POLICIES: list[Policy] = ["auto", "eager"]


def _alone(*, deadline: float = 10.0, rows: int = 1, priority: Priority = NORMAL) -> Entry:
    entry = make_entry(priority, deadline, rows=rows)
    entry.batch_key = UNBATCHED
    return entry


def _all(gate: Gate, now: float = 0.0) -> list[list[Entry]]:
    """Every batch until nothing more is to run."""
    batches = []
    while (turn := gate.next(now)).entries:
        batches.append(list(turn.entries))
    return batches


# ------------------------------------------------------------------ order


def test_an_entry_goes_its_way() -> None:
    """It waits, is chosen and has left; the turn says all about the batch."""
    entry = make_entry(rows=3, bucket=0)
    gate = make_gate(entry)
    assert (entry.state, len(gate), gate.rows, bool(gate)) == (EntryState.QUEUED, 1, 3, True)
    turn = gate.next(0.0)

    assert turn == BatchDecision([entry], 3, 0, "", turn.predicted_s, [])
    assert turn.predicted_s == pytest.approx(0.008)
    assert (entry.state, len(gate), gate.rows, bool(gate)) == (EntryState.RUNNING, 0, 0, False)
    assert gate.next(0.0) == BatchDecision((), 0, 0, "", 0.0, [])


def test_classes_then_deadlines_order_the_runs() -> None:
    """One row per batch shows the order; equal deadlines go in the order of their ids."""
    low, late, early, same, high = (
        make_entry(LOW, 1.0),
        make_entry(NORMAL, 9.0),
        make_entry(NORMAL, 5.0),
        make_entry(NORMAL, 5.0),
        make_entry(HIGH, 10.0),
    )

    assert _all(make_gate(low, late, early, same, high, max_rows=1)) == [[high], [early], [same], [late], [low]]


def test_the_room_that_is_left_goes_to_the_other_classes() -> None:
    """The head's class first, the others from the most urgent down."""
    low, normal, high = make_entry(LOW, 1.0), make_entry(NORMAL, 2.0), make_entry(HIGH, 3.0)

    assert _all(make_gate(low, normal, high)) == [[high, normal, low]]


@pytest.mark.parametrize(
    ("limit", "rows"),
    [({}, 32), ({"max_rows": 9}, 9), ({"slo_s": 0.0200001}, 15), ({"deadline": 0.0120001}, 7)],
    ids=["profile", "max_rows", "slo_s", "deadline"],
)
def test_what_bounds_a_batch(limit: dict[str, float], rows: int) -> None:
    """5 ms and 1 ms per row within the model's target and the deadlines, and the most rows there may be."""
    limit = dict(limit)
    deadline = limit.pop("deadline", 9.0)
    turn = make_gate(*(make_entry(deadline=deadline) for _ in range(40)), **limit).next(0.0)  # type: ignore[arg-type]

    assert (turn.rows, turn.dropped) == (rows, [])


def test_the_deadline_counts_from_now() -> None:
    """What has waited has less time left."""
    entries = [make_entry(deadline=5.0200001) for _ in range(15)]

    assert [make_gate(*entries).next(now).rows for now in (5.0, 5.008)] == [15, 7]


def test_without_predictions_rows_alone_bound_a_batch() -> None:
    """And nobody is given up."""
    turn = make_gate(*(make_entry(deadline=1e-6) for _ in range(40)), profile=()).next(0.0)

    assert (turn.rows, turn.predicted_s, turn.dropped) == (32, 0.0, [])


def test_executions_teach_it() -> None:
    """Also per variant."""
    gate = make_gate(profile=())
    for _ in range(8):
        gate.observe(1, 0, 0.04, "")
        gate.observe(1, 0, 0.01, "int8")

    assert [gate.seconds(1, 0, ""), gate.seconds(1, 0, "int8")] == pytest.approx([0.04, 0.01])
    assert gate.seconds(70, 0, "") == pytest.approx(2 * gate.seconds(32, 0, "") + gate.seconds(6, 0, ""))


# ------------------------------------------------------------------ entries that leave without a run


def test_expired_entries_are_told_once_and_never_run() -> None:
    """At their deadline they are expired, in whatever class."""
    past = [make_entry(priority, 1.0) for priority in Priority]
    ahead = make_entry(LOW, 9.0)
    gate = make_gate(*past, ahead)
    turn = gate.next(1.0)

    assert (turn.entries, turn.dropped) == ([ahead], past)
    assert {entry.state for entry in past} == {EntryState.DONE}
    assert gate.next(1.0).dropped == []


def test_expired_entries_are_told_though_nothing_runs() -> None:
    """Also where the rest waits for company."""
    past, ahead = make_entry(deadline=5.0), make_entry(deadline=5.02)
    gate = make_gate(past, ahead, policy="auto", in_burst=True, now=5.0)
    turn = gate.next(5.0)

    assert (turn.entries, turn.dropped, len(gate)) == ((), [past], 1)
    assert turn.recheck_at > 5.0


def test_what_cannot_be_in_time_is_given_up() -> None:
    """6 ms for one row; where all are late nothing runs, and it does not ask to be asked again."""
    doomed = [make_entry(deadline=0.005) for _ in range(3)]
    assert make_gate(*doomed).next(0.0) == BatchDecision((), 0, 0, "", 0.0, doomed, inf)
    turn = make_gate(*doomed, fine := make_entry(deadline=0.0061)).next(0.0)

    assert (turn.entries, turn.dropped) == ([fine], doomed)


def test_heads_are_given_up_for_more_answers_per_second() -> None:
    """Two tight ones allow 2 rows in 7 ms; without them 30 go in 35 ms."""
    tight = [make_entry(deadline=0.0070001) for _ in range(2)]
    patient = [make_entry(deadline=0.0350001 + 1e-6 * i) for i in range(30)]
    turn = make_gate(*tight, *patient).next(0.0)

    assert (turn.entries, turn.dropped) == (patient, tight)


def test_a_class_that_is_late_leaves_its_turn_to_the_next() -> None:
    """In the same call."""
    doomed, low = make_entry(HIGH, 0.001), make_entry(LOW, 9.0)
    turn = make_gate(doomed, low).next(0.0)

    assert (turn.entries, turn.dropped) == ([low], [doomed])


def test_removed_entries_never_run() -> None:
    """Removing tells whether it still waited; one that runs or has left cannot be removed."""
    gone, stays, past = make_entry(rows=4), make_entry(rows=5), make_entry(deadline=1.0)
    gate = make_gate(gone, stays, past)

    assert (gate.remove(gone), gate.remove(gone), gate.rows) == (True, False, 6)
    assert gone.state is EntryState.DONE
    assert gate.next(1.0) == BatchDecision([stays], 5, 0, "", gate.seconds(5, 0, ""), [past])
    assert (gate.remove(stays), gate.remove(past), stays.state) == (False, False, EntryState.RUNNING)


def test_another_entry_of_the_same_id_is_not_removed() -> None:
    """It is the entry that counts."""
    entry = make_entry()
    other = Entry(entry.id, "m", NORMAL, 0.0, 10.0, attributes=NO_ATTRIBUTES)
    gate = make_gate(entry)

    assert (gate.remove(other), len(gate)) == (False, 1)


def test_an_id_waits_once() -> None:
    """Adding it twice is a fault of the caller, and changes nothing."""
    entry = make_entry()
    gate = make_gate(entry)
    with pytest.raises(ValueError, match="queued already"):
        gate.add(entry, 0.0)

    assert _all(gate) == [[entry]]


# ------------------------------------------------------------------ probes


def test_after_a_second_of_hopeless_entries_one_runs_all_the_same() -> None:
    """So that a prediction that has become wrong is measured again; the next second begins with it."""
    gate = make_gate(profile=[(1, 0, 5.0)])
    ran = []
    for step in range(1, 26):
        now = 0.1 * step
        gate.add(entry := make_entry(deadline=now + 0.5, arrival=now), now)
        turn = gate.next(now)
        assert list(turn.entries) + list(turn.dropped) == [entry]
        ran += [step] * len(turn.entries)

    assert ran == [11, 22]


def test_a_wrong_prediction_heals() -> None:
    """One absurd profile is overcome by what its probes measure."""
    gate = make_gate(profile=[(1, 0, 5.0)])
    answered = 0
    for step in range(600):
        now = 0.1 * step
        gate.add(make_entry(deadline=now + 0.5, arrival=now), now)
        for _ in gate.next(now).entries:
            gate.observe(1, 0, 0.01, "")
            answered += 1

    assert answered > 400


def test_what_runs_in_time_puts_probes_off() -> None:
    """Predictions are measured by it."""
    gate = make_gate()
    for step in range(40):
        now = 0.1 * step
        doomed, fine = make_entry(deadline=now + 0.001), make_entry(deadline=now + 1.0)
        gate.add(doomed, now)
        gate.add(fine, now)
        turn = gate.next(now)
        assert (turn.entries, turn.dropped) == ([fine], [doomed])


# ------------------------------------------------------------------ batch keys


def test_an_entry_that_does_not_ride_along_does_not_set_the_bucket() -> None:
    """One that shares no batch is in the cost bucket of its own rows, whatever comes next."""
    head, other = _alone(deadline=6.0), _alone(deadline=7.0)
    other.bucket = 8

    turn = make_gate(head, other, policy="eager", now=5.0).next(5.0)
    assert (turn.entries, turn.bucket) == ([head], 0)


def test_who_shares_no_batch_runs_alone() -> None:
    """At its turn; those behind it share one without it."""
    waiting = [_alone(deadline=float(n)) if n in {2, 3} else make_entry(deadline=float(n)) for n in range(1, 6)]
    first, second, third, fourth, fifth = waiting
    assert _all(make_gate(*waiting)) == [[first, fourth, fifth], [second], [third]]
    first.deadline = 2.5

    assert _all(make_gate(*waiting)) == [[second], [first, fourth, fifth], [third]]


def test_who_shares_no_batch_takes_no_riders_of_other_classes() -> None:
    """Neither those with the same batch key nor others."""
    head, filler, other = _alone(priority=HIGH), _alone(priority=LOW), make_entry(LOW)

    assert [head] in _all(make_gate(head, filler, other))


@pytest.mark.parametrize("rows", [33, 100])
def test_more_rows_than_a_batch_run_alone_and_in_pieces(rows: int) -> None:
    """Nothing joins them, in whatever batch key; their time is that of the pieces."""
    for big in (_alone(deadline=1.0, rows=rows), make_entry(deadline=1.0, rows=rows)):
        gate = make_gate(big, make_entry(deadline=2.0), profile=AFFINE)
        turn = gate.next(0.0)
        assert (turn.entries, turn.rows) == ([big], rows)
        assert turn.predicted_s == pytest.approx(gate.seconds(rows, 0, ""))


def test_variants_never_share_a_batch() -> None:
    """Interleaved, they still make two batches, the one with the earliest deadline first."""
    entries = [make_entry(deadline=1.0 + at, variant=("int8", "")[at % 2]) for at in range(8)]
    gate = make_gate(*entries)
    first, second = gate.next(0.0), gate.next(0.0)

    assert [(list(turn.entries), turn.variant) for turn in (first, second)] == [
        (entries[::2], "int8"),
        (entries[1::2], ""),
    ]


def test_a_fallback_stands_in_where_the_exact_model_is_late() -> None:
    """3 ms instead of 6; not for those who want the exact model only, nor for other variants."""
    gate = make_gate(fallbacks=("light",))
    gate.seed((rows, 0, seconds / 2, "light") for rows, _, seconds in AFFINE)
    falling, exact = make_entry(deadline=0.0031), make_entry(deadline=0.0031, exact=True)
    gate.add(falling, 0.0)
    gate.add(exact, 0.0)
    turn = gate.next(0.0)

    assert (turn.entries, turn.variant) == ([falling], "light")
    assert turn.predicted_s == pytest.approx(0.003)
    assert gate.next(0.0).dropped == [exact]


# ------------------------------------------------------------------ blocking


def _claimed_gate(budget_s: float, *, planned: bool = False, elsewhere: int = 0) -> tuple[Gate, float]:
    """A gate that class ``high`` asks 50 times a second, with so much time, each time right when a batch has begun.

    Of every sixteen another replica runs so many. Returns the gate, and when the last one ran.
    """
    gate = make_gate(planned=planned)
    now = 0.0
    for step in range(64):
        now = 0.02 * step
        gate.add(make_entry(LOW, now + 60.0, arrival=now), now)
        assert gate.next(now).rows == 1
        high = make_entry(HIGH, now + budget_s, arrival=now)
        gate.add(high, now)
        now += 0.006
        gate.observe(1, 0, 0.006, "")
        gate.ended()
        if step % 16 < elsewhere:
            assert gate.remove(high, elsewhere=True)
        else:
            assert gate.next(now).entries == [high]
            now += 0.006
            gate.observe(1, 0, 0.006, "")
            gate.ended()
    return gate, now


def _low_rows(gate: Gate, now: float) -> int:
    """Rows of the batch that goes when 32 rows of the class ``low`` wait."""
    for _ in range(32):
        gate.add(make_entry(LOW, now + 60.0), now)
    return gate.next(now).rows


def test_a_low_batch_is_cut_to_what_a_high_request_can_bear() -> None:
    """One with 25 ms leaves 19 for what runs when it comes, of which 5 are fixed."""
    gate, now = _claimed_gate(0.025)
    assert 11 <= _low_rows(gate, now) <= 14

    gate, now = _claimed_gate(0.025, planned=True)
    assert _low_rows(gate, now) == 32


@pytest.mark.parametrize(("elsewhere", "cut"), [(8, True), (16, False)])
def test_batches_may_be_longer_where_others_run_what_they_would_block(elsewhere: int, cut: bool) -> None:
    """It still counts while half of them run here."""
    gate, now = _claimed_gate(0.025, elsewhere=elsewhere)

    assert (_low_rows(gate, now) < 15) is cut


def test_what_goes_back_for_another_reason_says_nothing() -> None:
    """Its client has gone, or its bundle was answered: it would have run here, and is no proof of anything."""
    gate, now = _claimed_gate(0.025)
    for _ in range(100):
        gate.add(high := make_entry(HIGH, now + 0.025, arrival=now), now)
        assert gate.remove(high)
        assert not gate.remove(high, elsewhere=True)

    assert _low_rows(gate, now) < 15


def test_the_pause_between_two_executions_is_no_slack() -> None:
    """12 ms between the end of one and the begin of the next: of 19 ms 7 are left, or 1 row."""
    gate = make_gate()
    now = 0.0
    for step in range(64):
        now = 0.04 * step
        gate.add(make_entry(LOW, now + 60.0, arrival=now), now)
        assert gate.next(now).rows == 1
        gate.add(high := make_entry(HIGH, now + 0.025, arrival=now), now)
        gate.observe(1, 0, 0.006, "")
        gate.ended()
        now += 0.018
        assert gate.next(now).entries == [high]
        now += 0.006
        gate.observe(1, 0, 0.006, "")
        gate.ended()

    assert _low_rows(gate, now) <= 2


def test_patient_high_requests_cut_nothing() -> None:
    """A second is enough for any batch."""
    gate, now = _claimed_gate(1.0)

    assert _low_rows(gate, now) == 32


@pytest.mark.parametrize(
    ("deadline_s", "slowdown", "rows"), [(50.0, 1.2, 32), (1000.0, 1.2, 1), (1000.0, 3.0, 3), (1000.0, 1000.0, 7)]
)
def test_a_batch_of_rows_that_can_wait_takes_a_part_of_what_high_takes(
    deadline_s: float, slowdown: float, rows: int
) -> None:
    """Whose requests have a second for their 26 ms, the wait for 20 before them included."""
    gate, now = make_gate(high_slowdown=slowdown), 0.0
    for step in range(64):
        now = 0.05 * step
        gate.add(make_entry(HIGH, now + 1.0, arrival=now - 0.02), now)
        assert gate.next(now).predicted_s == pytest.approx(0.006)
        now += 0.006
        gate.observe(1, 0, 0.006, "")
        gate.ended()
    for _ in range(32):
        gate.add(make_entry(LOW, now + deadline_s), now)

    assert gate.next(now).rows == rows


# ------------------------------------------------------------------ waiting


def test_a_batch_waits_for_company_in_a_burst() -> None:
    """Asked again when it opens, it goes; an eager one goes at once."""
    gate = make_gate(entry := make_entry(deadline=5.02), policy="auto", in_burst=True, now=5.0)
    turn = gate.next(5.0)

    assert (turn.entries, turn.dropped) == ((), [])
    assert 5.0 < turn.recheck_at < 5.01
    assert entry.state is EntryState.QUEUED
    assert gate.next(turn.recheck_at).entries == [entry]
    assert make_gate(make_entry(), policy="eager", in_burst=True, now=5.0).next(5.0).rows == 1


def test_a_full_batch_waits_for_nobody() -> None:
    """Rows of all classes count."""
    entries = [make_entry(priority, rows=3) for priority in Priority]

    assert make_gate(*entries, max_rows=9, policy="auto", in_burst=True, now=5.0).next(5.0).rows == 9


def test_a_more_urgent_rider_opens_sooner() -> None:
    """The batch goes when it could still be in time for it, though its head is of another class."""
    gate = make_gate(make_entry(HIGH, 5.02), policy="auto", in_burst=True, now=5.0)
    alone = gate.next(5.0).recheck_at
    gate.add(filler := make_entry(LOW, 5.0085), 5.0)
    turn = gate.next(5.0)

    assert alone > turn.recheck_at == pytest.approx(5.0085 - 0.008)
    assert filler in gate.next(turn.recheck_at).entries


@pytest.mark.parametrize("late_s", [0.0001, 0.0005, 0.003])
def test_waiting_ends_as_much_earlier_as_timers_are_late(late_s: float) -> None:
    """Assumed is 1 ms. Late calls teach it, and then the head is in time although the timer is late."""
    gate, now = make_gate(policy="auto", in_burst=True, now=5.0, timer_s=0.001), 5.0
    for _ in range(8):
        gate.add(entry := make_entry(deadline=now + 0.0105, arrival=now), now)
        turn = gate.next(now)
        now = turn.recheck_at + late_s
        while not (turn := gate.next(now)).entries and not turn.dropped:
            now = turn.recheck_at + late_s
        gate.ended()

    assert turn.entries == [entry]
    gate.add(make_entry(deadline=now + 0.0075 + late_s, arrival=now), now)
    assert gate.next(now).recheck_at == pytest.approx(now + 0.0005)


def test_a_planned_batch_waits_for_nobody() -> None:
    """The routers have waited, if at all; and what cannot be in time is given up as ever."""
    for policy in _POLICIES:
        doomed, entry = make_entry(deadline=0.001), make_entry(deadline=5.0)
        turn = make_gate(doomed, entry, policy=policy, planned=True).next(0.0)
        assert (turn.entries, turn.dropped) == ([entry], [doomed])


def test_nobody_waits_for_what_is_not_known() -> None:
    """Without predictions there is no moment to wait for."""
    for policy in _POLICIES:
        assert make_gate(make_entry(), policy=policy, profile=()).next(0.0).rows == 1


@given(
    policy=st.sampled_from(_POLICIES),
    offered=st.lists(
        st.tuples(
            st.sampled_from(Priority), st.floats(0.0, 0.05), st.sampled_from([0.012, 0.02, 0.3]), st.integers(1, 4)
        ),
        min_size=1,
        max_size=25,
    ),
)
def test_an_idle_session_lets_nothing_become_late_for_company(
    policy: Policy, offered: list[tuple[Priority, float, float, int]]
) -> None:
    """Asked at every arrival and when it opens, it never waits past the moment when a head could go alone."""
    gate = make_gate(policy=policy, max_rows=8, in_burst=True, now=5.0)
    now, recheck_at = 5.0, inf
    waiting: list[Entry] = []
    for priority, gap, budget, rows in offered:
        while recheck_at <= now + gap:
            assert gate.next(recheck_at).dropped == []
            recheck_at = _recheck_at(gate, recheck_at)
        now += gap
        gate.add(entry := make_entry(priority, now + budget, rows=rows, arrival=now), now)
        recheck_at = _recheck_at(gate, now)
        waiting = [entry for entry in (*waiting, entry) if entry.state is EntryState.QUEUED]
        for head in waiting:
            assert now < recheck_at <= head.deadline - gate.seconds(head.rows, 0, "") + 1e-9


def _recheck_at(gate: Gate, now: float) -> float:
    """When a gate recheck_at whose session ends every run at once."""
    while (turn := gate.next(now)).entries:
        pass
    return turn.recheck_at


def test_batches_that_make_a_protected_class_late_become_shorter() -> None:
    """30 ms are tolerated at first, then 22 ms; after eight entries that were given up a batch may take half of it."""
    gate = Gate(ModelScheduling("m", 32, 10.0, policy="eager"), dict.fromkeys(Priority, 0.0), protect=0.9)
    gate.seed([(*point, "") for point in AFFINE])
    rows = []
    for doomed in (0, 8):
        gate.add(make_entry(LOW, 9.0, arrival=1.0), 1.0)
        assert gate.next(1.0).entries
        for _ in range(doomed):
            gate.add(make_entry(HIGH, 1.001, arrival=1.0), 1.0)
        gate.add(make_entry(HIGH, 1.0360001, arrival=1.0), 1.0)
        gate.ended()
        assert gate.next(1.0).rows == 1
        gate.ended()
        for _ in range(32):
            gate.add(make_entry(LOW, 9.0, arrival=1.0), 1.0)
        rows.append(gate.next(1.0).rows)
        gate.ended()

    assert rows == [25, 5]


# ------------------------------------------------------------------ shares


def _saturate(gate: Gate, seconds: float, rows: int = 1) -> dict[Priority, float]:
    """Keep entries of every class waiting and run; gives the server time per class, by its part of the rows."""
    served = dict.fromkeys(Priority, 0.0)
    now = 0.0
    waiting = dict.fromkeys(Priority, 0)
    while now < seconds:
        for priority in Priority:
            for _ in range(64 - waiting[priority]):
                gate.add(make_entry(priority, now + 1e6, rows=rows, arrival=now), now)
            waiting[priority] = 64
        turn = gate.next(now)
        assert turn.entries
        for entry in turn.entries:
            waiting[entry.priority] -= 1
            served[entry.priority] += turn.predicted_s * entry.rows / turn.rows
        now += turn.predicted_s
    return served


@pytest.mark.parametrize("max_rows", [1, 8])
@pytest.mark.parametrize("share", [0.05, 0.2])
def test_lower_classes_keep_their_shares_while_high_saturates(max_rows: int, share: float) -> None:
    """Over ten seconds, in batches of any size; the rest is ``high``'s."""
    served = _saturate(make_gate(share=share, max_rows=max_rows), 10.0)
    total = sum(served.values())

    for priority in (NORMAL, LOW):
        assert served[priority] / total == pytest.approx(share, abs=0.25 * share + 0.005)
    assert served[HIGH] / total == pytest.approx(1.0 - 2 * share, abs=0.1)


def test_a_share_is_felt_within_a_second() -> None:
    """A twentieth of a second of each lower class is about three full batches of 13 ms."""
    served = _saturate(make_gate(share=0.05, max_rows=8), 1.0)

    assert min(served[NORMAL], served[LOW]) >= 0.02


def test_without_a_share_lower_classes_wait() -> None:
    """Classes are strict unless a share says otherwise."""
    served = _saturate(make_gate(max_rows=8), 5.0)

    assert (served[NORMAL], served[LOW]) == (0.0, 0.0)


def test_a_class_on_credit_leaves_high_its_time() -> None:
    """Where ``high`` can wait for a part of the batch only, the batch is cut to that."""
    gate = make_gate(share=0.3, max_rows=16)
    lows = [make_entry(LOW, 50.0) for _ in range(64)]
    for entry in lows:
        gate.add(entry, 0.0)
    gate.shares.credit_s[LOW] = 1.0
    gate.add(make_entry(HIGH, 0.0190001), 0.0)
    turn = gate.next(0.0)

    assert {entry.priority for entry in turn.entries} == {LOW}
    assert turn.predicted_s <= 0.0190001 - 0.006
    assert turn.rows == 8


def test_a_class_with_credit_rides_before_the_others() -> None:
    """``normal`` would take all the room beside ``high``, but ``low`` is owed a row of it."""
    gate = Gate(ModelScheduling("m", 16, 10.0, policy="eager"), {HIGH: 0.0, NORMAL: 0.0, LOW: 0.5})
    gate.seed((*point, "") for point in AFFINE)
    for entry in (*(make_entry(HIGH) for _ in range(16)), make_entry(LOW, rows=16)):
        gate.add(entry, 0.0)
    assert {entry.priority for entry in gate.next(0.0).entries} == {HIGH}  # and ``low`` has earned half of their cost
    for entry in (make_entry(HIGH, 9.0), *(make_entry(deadline=9.0) for _ in range(20)), make_entry(LOW, 9.0)):
        gate.add(entry, 0.021)
    second = gate.next(0.021)

    assert [entry.priority for entry in second.entries[:2]] == [HIGH, LOW]
    assert second.rows == 16


# ------------------------------------------------------------------ backlog


def test_backlog_is_the_rest_of_the_run_and_what_waits() -> None:
    """In pieces of a batch; never less than nothing."""
    gate = make_gate(max_rows=8)
    assert gate.backlog_s(0.0) == 0.0
    for _ in range(12):
        gate.add(make_entry(), 0.0)
    assert gate.backlog_s(0.0) == pytest.approx(0.013 + 0.009)
    gate.next(0.0)

    assert gate.backlog_s(0.003) == pytest.approx(0.010 + 0.009)
    gate.next(0.013)
    assert gate.backlog_s(9.0) == 0.0
