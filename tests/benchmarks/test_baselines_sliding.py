"""The sliding window: early drop in the server's process, with strict levels."""

from __future__ import annotations

import pytest
from baselines_runs import Ask, Begun, run, serve
from simulation_builders import HIGH, LOW, make_model, make_scenario

from benchmarks.scheduling.baselines import SlidingWindow
from serve_app_simulator.results import DROPPED, IN_TIME
from serve_app_simulator.scenario import Affine

TEN_MS = Affine(0.01, 0.0)


def test_heads_that_force_small_batches_are_dropped() -> None:
    """At 10 ms the head could be in time alone, 6 ms, but not in the batch of four of 9 ms that is behind it."""
    asked = (Ask(0, 100, rows=5), Ask(1, 17), Ask(2, 90), Ask(3, 90), Ask(4, 90))
    served = serve(SlidingWindow(), *asked)
    assert [IN_TIME, DROPPED, IN_TIME, IN_TIME, IN_TIME] == served.outcomes
    assert [(0,), (2, 3, 4)] == served.batches
    small = serve(SlidingWindow(1), Ask(0, 100, rows=5), *asked[1:])
    assert [IN_TIME] * 5 == small.outcomes


def test_the_queue_is_ordered_by_deadline() -> None:
    """First come, first served where all deadlines are alike."""
    assert [(0,), (2,), (1,)] == serve(SlidingWindow(1), Ask(0), Ask(1, 90), Ask(2, 50), curve=TEN_MS).batches
    assert [(0,), (1,), (2,)] == serve(SlidingWindow(1), Ask(0, 99), Ask(1, 99), Ask(2, 99), curve=TEN_MS).batches


def test_a_batch_that_is_not_full_waits_a_little() -> None:
    """2 ms from when a session is free and a request waits, or until it is full."""
    assert [Begun(2.0, "m#1", (0, 1))] == serve(SlidingWindow(3, 0.002), Ask(0), Ask(1)).begun
    assert [Begun(1.0, "m#1", (0, 1))] == serve(SlidingWindow(2, 0.002), Ask(0), Ask(1)).begun
    after = serve(SlidingWindow(2, 0.002), Ask(0), Ask(0), Ask(1), curve=TEN_MS).begun
    assert [Begun(0.0, "m#1", (0, 1)), Begun(12.0, "m#1", (2,))] == after


def test_higher_levels_go_first_and_lower_ones_fill_what_makes_nobody_late() -> None:
    """At 6 ms the urgent one allows a batch of three or of all; without levels the deadline alone orders."""
    asked = (Ask(0), *[Ask(1, 60, LOW)] * 4, Ask(2, 16, HIGH))
    served = serve(SlidingWindow(), *asked, curve=Affine(0.005, 0.001), max_rows=8)
    assert [(0,), (5, 1, 2, 3, 4)] == served.batches
    tight = serve(SlidingWindow(), *asked[:-1], Ask(2, 12.5, HIGH), curve=Affine(0.005, 0.001), max_rows=8)
    assert [(0,), (5, 1, 2), (3, 4)] == tight.batches
    assert [IN_TIME] * 6 == tight.outcomes
    mixed = (Ask(0), Ask(1, 50, LOW), Ask(2, 60, HIGH))
    assert [(0,), (1,), (2,)] == serve(SlidingWindow(1, levels=False), *mixed, curve=TEN_MS).batches
    assert [(0,), (2,), (1,)] == serve(SlidingWindow(1), *mixed, curve=TEN_MS).batches


def test_several_sessions_share_the_queue() -> None:
    """The one that is free takes it."""
    scenario = make_scenario(models=(make_model(curve=TEN_MS, replicas=2, max_rows=1),))
    served = run(SlidingWindow(), [Ask(0), Ask(1), Ask(2)], scenario)
    assert ["m#1", "m#2", "m#1"] == [begun.replica for begun in served.begun]


def test_a_delay_below_0_is_refused() -> None:
    """The message names the field."""
    with pytest.raises(ValueError, match="delay_s must be at least 0, got -1"):
        SlidingWindow(delay_s=-1.0)
