"""Triton's dynamic batcher, on cases worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from baselines_runs import Ask, Begun, serve
from simulation_builders import HIGH, LOW

from benchmarks.scheduling.baselines import Triton
from serve_app_simulator.results import DROPPED, IN_TIME, LATE
from serve_app_simulator.scenario import Affine, Overheads

TEN_MS = Affine(0.01, 0.0)


def test_levels_are_strict_and_first_come_first_served_inside() -> None:
    """A free instance takes what there is; `high` then goes first, and `low` fills what is left of a batch."""
    asked = (
        Ask(0, priority=LOW),
        Ask(1, priority=LOW),
        Ask(2, priority=LOW),
        *(Ask(n, priority=HIGH) for n in (3, 4, 5)),
    )
    served = serve(Triton(), *asked, curve=TEN_MS, max_rows=2)
    expected = [
        Begun(0.0, "m#1", (0,)),
        Begun(10.0, "m#1", (3, 4)),
        Begun(20.0, "m#1", (5, 1)),
        Begun(30.0, "m#1", (2,)),
    ]
    assert expected == served.begun


def test_without_levels_there_is_one_queue() -> None:
    """First come, first served."""
    asked = (Ask(0, priority=LOW), Ask(1, priority=LOW), Ask(2, priority=HIGH))
    assert [(0,), (1,), (2,)] == serve(Triton(levels=False), *asked, curve=TEN_MS, max_rows=1).batches
    assert [(0,), (2,), (1,)] == serve(Triton(), *asked, curve=TEN_MS, max_rows=1).batches


def test_a_batch_waits_for_the_delay_of_its_oldest_request() -> None:
    """5 ms after the first, whatever the second."""
    assert [Begun(5.0, "m#1", (0, 1))] == serve(Triton(0.005), Ask(0), Ask(3)).begun


def test_a_full_batch_does_not_wait() -> None:
    """It leaves with the request that fills it."""
    assert [Begun(3.0, "m#1", (0, 1))] == serve(Triton(0.005), Ask(0), Ask(3), max_rows=2).begun


def test_what_has_waited_for_an_instance_has_waited_long_enough() -> None:
    """The delay counts from the request's arrival, also while no instance is free."""
    served = serve(Triton(0.005), Ask(0), Ask(6), Ask(14), curve=TEN_MS)
    assert [Begun(5.0, "m#1", (0,)), Begun(15.0, "m#1", (1, 2))] == served.begun


@pytest.mark.parametrize(
    ("timeout", "outcome"), [("none", LATE), ("budget", LATE), ("one", DROPPED), ("full", DROPPED), ("half", DROPPED)]
)
def test_a_timeout_counts_the_time_in_the_queue_only(timeout: Any, outcome: int) -> None:
    """The second request waits 9 of its 15 ms and needs 10 more: only a timeout below 9 ms saves the work."""
    served = serve(Triton(0.0, timeout), Ask(0), Ask(1, 15), curve=TEN_MS)
    assert [IN_TIME, outcome] == served.outcomes
    assert (2 if outcome == LATE else 1) == len(served.begun)


def test_timeouts_leave_room_for_the_overheads() -> None:
    """It waits 9 ms in the queue; 20 - 10 (execution) - 2 (overheads) is 8."""
    overheads = Overheads(0.001, 0.001, 0.002)
    asked = (Ask(0, 100), Ask(1, 20))
    assert [IN_TIME, DROPPED] == serve(Triton(0.0, "one"), *asked, curve=TEN_MS, overheads=overheads).outcomes
    assert [IN_TIME, LATE] == serve(Triton(0.0, "budget"), *asked, curve=TEN_MS, overheads=overheads).outcomes


def test_a_queue_that_was_full_of_timed_out_requests_waits_on() -> None:
    """At 12 ms the first of the two has timed out (after 4 of its 8 ms), and the other has waited 3 of its 5 ms."""
    served = serve(Triton(0.005, "half"), Ask(0, rows=2), Ask(6, 8), Ask(9), curve=Affine(0.012, 0.0), max_rows=2)
    assert [Begun(0.0, "m#1", (0,)), Begun(14.0, "m#1", (2,))] == served.begun
    assert [IN_TIME, DROPPED, IN_TIME] == served.outcomes


def test_a_request_larger_than_a_batch_goes_alone() -> None:
    """It is not refused, and nothing joins it."""
    assert [(0,), (1,)] == serve(Triton(), Ask(0, rows=9), Ask(0), max_rows=8).batches


@pytest.mark.parametrize("wrong", [{"delay_s": -1.0}, {"timeout": "soon"}])
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    """The message names the field."""
    with pytest.raises(ValueError, match=r"delay_s must be|unknown timeout 'soon'; there are: none"):
        Triton(**wrong)
