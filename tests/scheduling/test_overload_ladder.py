"""The overload ladder: when it climbs, when it comes back."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from serve_app.scheduling.overload import OverloadLadder, OverloadSettings, Signals, Step, Transition

_CALM = Signals((0.0, 0.0, 0.0), (0.1, 0.1, 0.1), (0.1, 0.1, 0.1))
_INTERVAL_S = 0.05


def _all_late(lateness: float = 2.0) -> Signals:
    return Signals((lateness,) * 3, (1.0, 1.0, 1.0), (1.0, 1.0, 1.0))


def _drive(ladder: OverloadLadder, signals: Signals, seconds: float, start: float = 0.0) -> list[Transition]:
    """Update in steps of the usual interval. Returns the moves, with times from the start."""
    moves = []
    for step in range(round(seconds / _INTERVAL_S)):
        now = start + step * _INTERVAL_S
        if ladder.update(signals, now):
            moves.append(Transition(round(now - start, 6), ladder.step))
    return moves


def test_it_climbs_in_order_to_the_top_when_everybody_is_late() -> None:
    """One step at a time, `high` last, no two within the least time between steps."""
    moves = _drive(OverloadLadder(OverloadSettings()), _all_late(), 3.0)
    assert [move.step for move in moves] == list(Step)[1:]
    assert round(min(after.at - before.at for before, after in pairwise(moves)), 6) >= 0.2


def test_it_stays_where_nobody_is_late() -> None:
    """Waiting for less than the threshold is no overload."""
    assert _drive(OverloadLadder(OverloadSettings()), _all_late(0.7), 5.0) == []


def test_a_class_that_is_shed_no_longer_pushes() -> None:
    """That `low` waits is no reason to shed `normal`, and that `normal` does none to shed `high`."""
    for late, top in (((0.0, 0.0, 9.0), Step.SHED_LOW), ((0.0, 9.0, 9.0), Step.SHED_NORMAL)):
        ladder = OverloadLadder(OverloadSettings())
        _drive(ladder, Signals(late, (0.1, 0.1, 5.0), (0.1, 0.1, 5.0)), 10.0)
        assert ladder.step is top


def test_it_comes_down_one_step_per_dwell_time() -> None:
    """Hysteresis: a step back takes as long as it has been possible for the dwell time."""
    ladder = OverloadLadder(OverloadSettings(dwell_s=2.0))
    _drive(ladder, _all_late(), 3.0)
    moves = _drive(ladder, _CALM, 15.0, start=3.0)
    assert [move.step for move in moves] == list(Step)[4::-1]
    assert round(min(after.at - before.at for before, after in pairwise(moves)), 6) >= 2.0


def test_it_stays_while_what_it_refuses_would_not_fit() -> None:
    """A queue that is short because `low` is refused is no reason to take `low` again."""
    ladder = OverloadLadder(OverloadSettings())
    flood = Signals((0.0, 0.0, 9.0), (0.2, 0.0, 10.0), (0.2, 0.0, 10.0))
    _drive(ladder, flood, 3.0)
    refused = flood._replace(lateness=(0.0, 0.0, 0.1))
    assert _drive(ladder, refused, 60.0, start=3.0) == []
    assert ladder.step is Step.SHED_LOW


def test_it_keeps_the_variant_while_the_exact_model_would_not_do() -> None:
    """What fits on the light variant only stays there."""
    ladder = OverloadLadder(OverloadSettings())
    _drive(ladder, _all_late(), 0.9)
    fits_light = Signals((0.0, 0.0, 0.0), (0.2, 0.5, 0.5), (0.2, 0.2, 0.2))
    _drive(ladder, fits_light, 30.0, start=0.9)
    assert ladder.step is Step.VARIANT


def test_steps_that_are_left_out_are_passed_over() -> None:
    """A model without fallbacks goes from larger batches to shedding."""
    ladder = OverloadLadder(OverloadSettings(), [Step.BATCHES, Step.SHED_LOW])
    assert [move.step for move in _drive(ladder, _all_late(), 5.0)] == [Step.BATCHES, Step.SHED_LOW]


def test_late_answers_bring_the_variant_and_no_more() -> None:
    """Where predictions see nothing, what answers took does; and it goes when they are in time again."""
    ladder = OverloadLadder(OverloadSettings())
    up = _drive(ladder, _CALM._replace(late=1.5), 10.0)
    down = _drive(ladder, _CALM, 10.0, start=10.0)
    assert [move.step for move in up + down] == [Step.BATCHES, Step.VARIANT, Step.BATCHES, Step.NONE]


def test_an_idle_device_beside_a_queue_brings_larger_batches_and_no_more() -> None:
    """What waits although the device has time goes in larger batches."""
    ladder = OverloadLadder(OverloadSettings())
    _drive(ladder, _CALM._replace(starved=True), 10.0)
    assert ladder.step is Step.BATCHES


def test_one_look_at_a_burst_does_not_move_it() -> None:
    """Lateness is smoothed, also after a long time without a look."""
    ladder = OverloadLadder(OverloadSettings())
    ladder.update(_CALM, 0.0)
    assert not ladder.update(_all_late(1.5), 100.0)


def test_time_is_counted_per_step() -> None:
    """All time since the first look is on some step."""
    ladder = OverloadLadder(OverloadSettings())
    _drive(ladder, _all_late(), 3.0)
    seconds = ladder.seconds(10.0)
    assert round(sum(seconds.values()), 6) == 10.0
    assert seconds[Step.SHED_HIGH] > 7.0


_numbers = st.floats(0.0, 3.0)
_triples = st.tuples(_numbers, _numbers, _numbers)
_signals = st.builds(Signals, _triples, _triples, _triples, _numbers, st.booleans())


@given(st.lists(st.tuples(_signals, st.floats(0.0, 2.0)), max_size=60))
def test_it_moves_one_step_at_a_time_and_never_faster_than_it_may(looks: list[tuple[Signals, float]]) -> None:
    """Whatever the signals: up after `climb_s` at the earliest, down after `dwell_s`."""
    settings = OverloadSettings(climb_s=0.5, dwell_s=1.5)
    ladder = OverloadLadder(settings)
    now = 0.0
    for signals, pause in looks:
        now += pause
        step, since = ladder.step, ladder.since
        moved = ladder.update(signals, now)
        assert moved == (ladder.step is not step)
        assert abs(ladder.step - step) <= 1
        if ladder.step > step:
            assert now - since >= settings.climb_s - 1e-5
        if ladder.step < step:
            assert now - since >= settings.dwell_s - 1e-5
    assert ladder.climbs - ladder.descents == ladder.step
