"""Ray Serve's batching and routing, on cases worked out by hand."""

from __future__ import annotations

import pytest
from baselines_runs import Ask, Begun, run, serve
from simulation_builders import make_model, make_scenario

from benchmarks.scheduling.baselines import RayServeBatch
from serve_app_simulator.results import DROPPED, IN_TIME, LATE
from serve_app_simulator.scenario import Affine, Failure

TEN_MS = Affine(0.01, 0.0)


def test_a_batch_leaves_when_its_window_has_passed_since_its_first_request() -> None:
    """10 ms after 0 and after 12 ms."""
    served = serve(RayServeBatch(0.01), Ask(0), Ask(4), Ask(12))
    assert [Begun(10.0, "m#1", (0, 1)), Begun(22.0, "m#1", (2,))] == served.begun


def test_a_full_batch_leaves_at_once() -> None:
    """The next one has a window of its own."""
    served = serve(RayServeBatch(0.01), Ask(0), Ask(4), Ask(5), max_rows=2)
    assert [Begun(4.0, "m#1", (0, 1)), Begun(15.0, "m#1", (2,))] == served.begun


def test_batches_are_fixed_while_an_earlier_one_executes() -> None:
    """The defect: 15 requests wait for the second batch's turn, and still it has only the three of its own window."""
    asked = [Ask(4.0 * number) for number in range(18)]
    served = serve(RayServeBatch(0.01, max_ongoing_requests=100), *asked, curve=Affine(0.08, 0.0), max_rows=32)
    assert [3] * 6 == [len(batch) for batch in served.batches]
    assert [10.0 + 80.0 * number for number in range(6)] == [begun.at_ms for begun in served.begun]


def test_a_full_replica_is_found_free_only_after_a_sleep() -> None:
    """It is free at 10 ms and at 36 ms; the routing tasks look after 25 ms of sleep, at 26 and 51 ms."""
    system = RayServeBatch(0.0, max_ongoing_requests=1)
    served = serve(system, Ask(0), Ask(1), Ask(2), curve=TEN_MS)
    assert [0.0, 26.0, 51.0] == [begun.at_ms for begun in served.begun]


def test_two_replicas_share_the_requests_by_what_is_ongoing() -> None:
    """With two replicas both are looked at for every request."""
    scenario = make_scenario(models=(make_model(curve=TEN_MS, replicas=2),))
    served = run(RayServeBatch(0.0), [Ask(0), Ask(1), Ask(2), Ask(3)], scenario)
    where = [begun.replica for begun in sorted(served.begun, key=lambda begun: begun.ids)]
    assert where[0] != where[1]
    assert where[2] != where[3]


@pytest.mark.parametrize(("disconnect", "outcome", "executed"), [(False, LATE, 2), (True, DROPPED, 1)])
def test_late_requests_are_executed_unless_clients_disconnect(disconnect: bool, outcome: int, executed: int) -> None:
    """Ray itself knows no deadline."""
    served = serve(RayServeBatch(0.0, disconnect=disconnect), Ask(0), Ask(1, 5), curve=TEN_MS)
    assert [IN_TIME, outcome] == served.outcomes
    assert executed == len(served.begun)


def test_a_request_that_does_not_fit_begins_the_next_batch() -> None:
    """Batches are filled by rows; a batch that cannot take the next request is closed."""
    served = serve(RayServeBatch(0.01), Ask(0, rows=5), Ask(1, rows=4), Ask(2, rows=2), max_rows=8)
    assert [Begun(1.0, "m#1", (0,)), Begun(11.0, "m#1", (1, 2))] == served.begun


def test_what_waits_in_a_replica_that_dies_is_lost() -> None:
    """What comes after its end is routed to its successor."""
    scenario = make_scenario(
        models=(make_model(curve=TEN_MS),),
        failures=(Failure("m", 0, at_s=0.005, down_s=1.0, noticed_s=0.0),),
    )
    served = run(RayServeBatch(0.0), [Ask(0), Ask(1), Ask(2), Ask(500)], scenario)
    assert [DROPPED, DROPPED, DROPPED, IN_TIME] == served.outcomes


def test_a_negative_window_is_refused() -> None:
    """The message names the field."""
    with pytest.raises(ValueError, match="batch_wait_timeout_s must be at least 0"):
        RayServeBatch(-1.0)
