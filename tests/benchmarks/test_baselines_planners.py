"""Clipper, Clockwork, Nexus and Symphony, on cases worked out by hand. L(b) is 5 ms + b ms unless said otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from baselines_runs import Ask, Begun, run, serve
from simulation_builders import make_model, make_scenario

from benchmarks.scheduling.baselines import Clipper, Clockwork, Nexus, Symphony
from serve_app_simulator.results import DROPPED, IN_TIME, LATE
from serve_app_simulator.scenario import Affine, Failure, Overheads

TEN_MS = Affine(0.01, 0.0)


def test_clipper_adds_one_while_in_time_and_takes_a_tenth_off_when_late() -> None:
    """L(3) = 8 ms is within the objective of 8.5 ms and L(4) is not: 4 -> 3.6 -> 4.6 -> 4.14 -> 3.726."""
    served = serve(Clipper(), *[Ask(0)] * 24, slo_s=0.0085)
    assert [1, 2, 3, 4, 3, 4, 4, 3] == [len(batch) for batch in served.batches]
    assert [tuple(range(24))] == [tuple(i for batch in served.batches for i in batch)]


def test_clipper_answers_late_unless_told_to_drop() -> None:
    """As the paper describes it, and as the released code does."""
    asked = (Ask(0), Ask(1, 5))
    assert [IN_TIME, LATE] == serve(Clipper(), *asked, curve=TEN_MS).outcomes
    assert [IN_TIME, DROPPED] == serve(Clipper(drop_late=True), *asked, curve=TEN_MS).outcomes


def test_clipper_delays_a_batch_that_is_not_full() -> None:
    """The batch size is 1 at first, so nothing waits; then it is 2."""
    served = serve(Clipper(0.005), Ask(0), Ask(20), Ask(23), Ask(40))
    assert [Begun(0.0, "m#1", (0,)), Begun(23.0, "m#1", (1, 2)), Begun(45.0, "m#1", (3,))] == served.begun


def test_clockwork_refuses_what_cannot_finish() -> None:
    """Alone it would take 10 ms: too long for the second; the third would begin at 10 ms and be done at 20."""
    served = serve(Clockwork(), Ask(0), Ask(1, 9), Ask(2, 17), Ask(3, 18), curve=TEN_MS)
    assert [IN_TIME, DROPPED, DROPPED, IN_TIME] == served.outcomes
    assert [Begun(0.0, "m#1", (0,)), Begun(10.0, "m#1", (3,))] == served.begun


def test_clockwork_passes_over_a_head_for_a_larger_batch() -> None:
    """At 6 ms the head could still run with one other, until 13 ms; three run without it instead."""
    served = serve(Clockwork(schedule_ahead_s=0.0), Ask(0), Ask(1, 12), Ask(2), Ask(3), Ask(4))
    assert [Begun(0.0, "m#1", (0,)), Begun(6.0, "m#1", (2, 3, 4))] == served.begun
    assert DROPPED == served.outcomes[1]


def test_clockwork_keeps_a_head_that_costs_nothing() -> None:
    """At 6 ms all four take until 15 ms, when the head is due."""
    served = serve(Clockwork(schedule_ahead_s=0.0), Ask(0), Ask(1, 14), Ask(2), Ask(3), Ask(4))
    assert [(0,), (1, 2, 3, 4)] == served.batches


def test_clockwork_sends_ahead_so_that_no_worker_waits() -> None:
    """The second action is there when the first ends, at 11 ms, and the third, which came at 8.5 ms, at 21 ms."""
    overheads = Overheads(send_s=0.001)
    served = serve(Clockwork(schedule_ahead_s=0.002), Ask(0), Ask(2), Ask(8.5), curve=TEN_MS, overheads=overheads)
    assert [Begun(1.0, "m#1", (0,)), Begun(11.0, "m#1", (1,)), Begun(21.0, "m#1", (2,))] == served.begun


def test_clockwork_workers_refuse_actions_that_are_late() -> None:
    """The curve is not known and the executions differ: 10 ms are learned, 100 ms come."""

    def curve(rows: int, bucket: int = 0) -> float:
        return 0.1 if rows == 2 else 0.01

    asked = (Ask(0), Ask(50), Ask(50, rows=2), Ask(55))
    served = serve(Clockwork(schedule_ahead_s=0.005), *asked, curve=curve, max_rows=2, known=False)
    assert [(0,), (1,), (2,)] == served.batches
    assert [IN_TIME, IN_TIME, IN_TIME, DROPPED] == served.outcomes


def test_nexus_drops_heads_that_would_make_the_batch_small() -> None:
    """At 6 ms four wait; with all four it would be 15 ms, too late for the head, and 14 ms with three."""
    served = serve(Nexus("saturated"), Ask(0), Ask(1, 12), Ask(2, 12), Ask(3), Ask(4))
    assert [Begun(0.0, "m#1", (0,)), Begun(6.0, "m#1", (2, 3, 4))] == served.begun
    assert [IN_TIME, DROPPED, IN_TIME, IN_TIME, IN_TIME] == served.outcomes


def test_nexus_plans_half_the_objective_at_saturation() -> None:
    """2 L(3) = 16 ms is within 17 ms, and 2 L(4) is not."""
    served = serve(Nexus("saturated"), *[Ask(0)] * 9, slo_s=0.017)
    assert [1, 3, 3, 2] == [len(batch) for batch in served.batches]


def test_nexus_plans_for_the_time_to_gather_at_a_low_rate() -> None:
    """50 requests/s in the first seconds: L(1) + 20 ms is within 30 ms, L(2) + 40 ms is not."""
    asked = [Ask(20.0 * number) for number in range(100)]
    served = serve(Nexus("rate"), *asked, *[Ask(2000)] * 3, slo_s=0.03)
    assert [(100,), (101,), (102,)] == served.batches[-3:]
    served = serve(Nexus("saturated"), *asked, *[Ask(2000)] * 3, slo_s=0.03)
    assert [(100,), (101, 102)] == served.batches[-2:]


@pytest.mark.parametrize(("balance", "turns"), [("round_robin", [0, 1, 0, 1]), ("least_loaded", [0, 1, 0, 0])])
def test_nexus_splits_requests_over_replicas(balance: Any, turns: list[int]) -> None:
    """The second request keeps its replica busy until 13 ms; a turn does not look at that, the load does."""
    scenario = make_scenario(models=(make_model(replicas=2),))
    served = run(Nexus(balance=balance), [Ask(0), Ask(0, rows=8), Ask(7), Ask(8)], scenario)
    where = {number: begun.replica for begun in served.begun for number in begun.ids}
    places = [where[0], where[1]]
    assert turns == [places.index(where[number]) for number in range(4)]


def test_nexus_moves_the_queue_of_a_replica_that_died() -> None:
    """What ran there is lost, what waited there is answered by the other."""
    scenario = make_scenario(
        models=(make_model(curve=TEN_MS, replicas=2),),
        failures=(Failure("m", 0, at_s=0.005, down_s=5.0, noticed_s=1.0),),
    )
    served = run(Nexus(), [Ask(0), Ask(0), Ask(1), Ask(1)], scenario)
    dead = next(begun for begun in served.begun if begun.replica == "m#1").ids
    assert dict.fromkeys(range(4), IN_TIME) | dict.fromkeys(dead, DROPPED) == dict(enumerate(served.outcomes))


def test_symphony_defers_to_the_window() -> None:
    """One request due at 50 ms: until 50 - L(2) = 43 ms another could join it."""
    assert [Begun(43.0, "m#1", (0,))] == _whole_ms(serve(Symphony(0.0), Ask(0, 50)).begun)


def test_symphony_opens_the_window_earlier_for_more() -> None:
    """With a second request it opens at 50 - L(3) = 42 ms."""
    served = serve(Symphony(0.0), Ask(0, 50), Ask(10, 50))
    assert [Begun(42.0, "m#1", (0, 1))] == _whole_ms(served.begun)


def test_symphony_does_not_defer_a_full_batch() -> None:
    """No other request could join it."""
    served = serve(Symphony(0.0), Ask(0, 50), Ask(10, 50), max_rows=2)
    assert [Begun(10.0, "m#1", (0, 1))] == served.begun


def test_symphony_may_be_eager_at_its_target() -> None:
    """L(1) <= 13 / 2 ms < L(2), so that the target is 1 before a rate is known."""
    assert [0.0] == [begun.at_ms for begun in serve(Symphony(0.0, eager_at_target=True), Ask(0, 50), slo_s=0.013).begun]
    assert [43.0] == [begun.at_ms for begun in _whole_ms(serve(Symphony(0.0), Ask(0, 50), slo_s=0.013).begun)]


def test_symphony_drops_what_stands_in_the_way_of_a_larger_batch() -> None:
    """At 6 ms four wait, which take until 15 ms, and the first is due at 14; the others are due at 31."""
    served = serve(Symphony(0.0), Ask(0, 7), Ask(1, 13), Ask(1, 30), Ask(1, 30), Ask(1, 30))
    assert [Begun(0.0, "m#1", (0,)), Begun(22.0, "m#1", (2, 3, 4))] == _whole_ms(served.begun)
    assert [IN_TIME, DROPPED, IN_TIME, IN_TIME, IN_TIME] == served.outcomes


def test_symphony_sends_ahead_of_the_window_and_of_the_end_of_what_runs() -> None:
    """The batch is on its way for 2 ms, so it leaves at 41 ms; the next one is there when it ends at 49."""
    overheads = Overheads(send_s=0.002)
    served = serve(Symphony(0.0), Ask(0, 50), Ask(42, 14), overheads=overheads)
    assert [Begun(43.0, "m#1", (0,)), Begun(49.0, "m#1", (1,))] == _whole_ms(served.begun)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Clipper(delay_s=-1.0),
        lambda: Clockwork(buffer_s=-1.0),
        lambda: Nexus(plan="often"),  # type: ignore[arg-type]
        lambda: Symphony(jitter_s=-1.0),
    ],
)
def test_wrong_settings_are_refused(make: Any) -> None:
    """The message names the field."""
    with pytest.raises(ValueError, match=r"must be at least 0|unknown plan 'often'"):
        make()


def _whole_ms(begun: list[Begun]) -> list[Begun]:
    """Without the billionth of a second that planners allow for rounding."""
    return [execution._replace(at_ms=round(execution.at_ms, 4)) for execution in begun]
