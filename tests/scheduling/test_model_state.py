"""What a model learns from the answers to its bundles."""

from __future__ import annotations

import pytest
from scheduling_builders import AFFINE, make_entry

from serve_app.domain.priority import Priority
from serve_app.scheduling.bundles import Bundle
from serve_app.scheduling.model_state import ModelState
from serve_app.scheduling.queueing.tenant_queue import Totals
from serve_app.scheduling.settings import ModelScheduling


def _model() -> ModelState:
    model = ModelState(ModelScheduling("m", 32, 0.1), {priority: Totals() for priority in Priority}, 0.002)
    model.slots.set_replicas(["a"], 0.0)
    return model


def _send(model: ModelState, bundle_id: int, now: float, rows: int = 1) -> Bundle:
    replica = model.slots.replicas["a"]
    bundle = Bundle(bundle_id, "m", replica, [make_entry(rows=rows)], rows, now)
    model.slots.acquire(replica, bundle_id, bundle.entries, 0.0, now)
    return bundle


def test_the_overhead_does_not_count_what_a_bundle_waited_there() -> None:
    """At a busy replica the answer takes longer, and the ways take what they always do."""
    model = _model()
    for number in range(8):
        start = 1.0 + number
        first, second = _send(model, 2 * number, start), _send(model, 2 * number + 1, start + 0.001)
        model.answered(first, [(1, 0, 0.01, "")], start + 0.013, 0.0, 0.0, 0.0)
        model.answered(second, [(1, 0, 0.01, "")], start + 0.023, 0.009, 0.0, 0.0)

    assert model.overhead.seconds == pytest.approx(0.003)


def test_what_came_too_late_teaches_the_way_all_the_same() -> None:
    """Its entries have ended, and its answer tells how long the ways are: or else all that follows is late, too."""
    model = _model()
    for number in range(8):
        bundle = _send(model, number, float(number))
        bundle.release_entries()
        model.answered(bundle, [(1, 0, 0.01, "")], number + 0.07, 0.0, 0.0, 0.0)

    assert model.overhead.seconds == pytest.approx(0.06)


def test_who_was_not_run_teaches_nothing() -> None:
    """Everything was dropped or comes back: how long that took is nobody's overhead."""
    model = _model()
    for number in range(8):
        model.answered(_send(model, number, float(number)), [], number + 0.9, 0.0, 0.0, 0.0)

    assert (model.overhead.seconds, model.run_rows) == (0.002, 1.0)


def test_a_replica_that_was_silent_teaches_nothing_of_the_ways() -> None:
    """It was out of the choice when it answered at last."""
    model = _model()
    for number in range(8):
        bundle = _send(model, number, 100.0 * number)
        model.slots.quarantine("a", 100.0 * number + 30.0)
        model.answered(bundle, [(1, 0, 0.01, "")], 100.0 * number + 60.0, 0.0, 0.0, 0.0)

    assert model.overhead.seconds == 0.002


def test_the_usual_run_is_a_moving_mean_of_whole_batches() -> None:
    """Other routers' rows included."""
    model = _model()
    for number in range(60):
        model.answered(_send(model, number, float(number)), [(24, 0, 0.03, "")], number + 0.03, 0.0, 0.0, 0.0)

    assert model.run_rows == pytest.approx(24.0, abs=0.1)


def test_what_a_replica_has_ahead_is_what_it_told_or_what_was_sent() -> None:
    """Whichever is more: other routers send to it, and not all of what was sent was there when it told."""
    model = _model()
    model.latencies.seed((*point, "") for point in AFFINE)
    replica = model.slots.replicas["a"]
    assert model.backlog_s(replica) == 0.0
    first, _ = _send(model, 1, 0.0, rows=4), _send(model, 2, 0.0, rows=4)
    assert model.backlog_s(replica) == pytest.approx(0.013)
    model.answered(first, [(4, 0, 0.009, "")], 0.01, 0.0, 0.0, 0.5)

    assert model.backlog_s(replica) == pytest.approx(0.5)


def test_larger_batches_put_no_more_rows_in_flight() -> None:
    """The window has fewer of them; smaller ones do not make it longer."""
    model = _model()
    configured = model.settings
    for rows, window in ((2 * configured.max_rows, configured.window // 2), (1, configured.window)):
        model.set_rows(rows)
        assert (model.settings.max_rows, model.settings.window, model.slots.window) == (rows, window, window)


def test_rows_that_were_chosen_count_where_requests_share_a_run() -> None:
    """And again once they may."""
    model = _model()
    rows = 2 * model.settings.max_rows
    model.set_joins("", joins=False)
    model.set_rows(rows)
    assert model.settings.max_rows == 1
    model.set_joins("", joins=True)
    assert model.settings.max_rows == rows


def test_work_in_the_background_that_waits_asks_for_replicas_where_there_is_no_other() -> None:
    """Beside live requests it is left out of the backlog."""
    model = _model()
    model.latencies.exact.seed([(1, 0, 0.5)])
    model.read_demand(0.0)
    for _ in range(4):
        model.queue.push(make_entry(priority=Priority.LOW, background=True))
    alone = model.read_demand(1.0)
    assert alone.backlog_s == pytest.approx(2.0)
    live = make_entry(priority=Priority.LOW, deadline=30.0)
    model.queue.push(live)
    model.demand.add(live, 1.5)
    assert model.read_demand(3.0).backlog_s == pytest.approx(0.5)
