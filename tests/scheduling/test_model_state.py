"""What a model learns from the answers to its bundles."""

from __future__ import annotations

import pytest
from scheduling_builders import make_entry

from serve_app.scheduling.bundles import Bundle
from serve_app.scheduling.entry import Priority
from serve_app.scheduling.model_state import ModelState
from serve_app.scheduling.tenant_queue import Totals
from serve_app.scheduling.settings import ModelScheduling


def _model() -> ModelState:
    model = ModelState(ModelScheduling("m", 32, 0.1), {priority: Totals() for priority in Priority}, 0.002)
    model.slots.set_replicas(["a"], 0.0)
    return model


def _send(model: ModelState, bundle_id: int, now: float) -> Bundle:
    replica = model.slots.replicas["a"]
    bundle = Bundle(bundle_id, "m", replica, [make_entry()], 1, max(now, replica.busy_until))
    model.slots.acquire(replica, bundle_id, 1, 0.01, now)
    return bundle


def test_the_round_trip_does_not_count_what_a_bundle_waited_there() -> None:
    """At a busy replica the answer takes longer, and the ways take what they always do."""
    model = _model()
    for number in range(8):
        start = 1.0 + number
        first, second = _send(model, 2 * number, start), _send(model, 2 * number + 1, start + 0.001)
        model.answered(first, [(1, 0, 0.01, "")], start + 0.013)
        model.answered(second, [(1, 0, 0.01, "")], start + 0.023, waited_s=0.009)

    assert model.slots.round_trip_s == pytest.approx(0.003)


def test_the_round_trip_is_learnt_although_the_replica_is_never_idle() -> None:
    """What the configuration allows for it counts only at the beginning."""
    model = _model()
    bundle = _send(model, 0, 0.0)
    for number in range(8):
        now = 0.010 * number + 0.017
        following = _send(model, number + 1, now - 0.008)
        model.answered(bundle, [(1, 0, 0.01, "")], now, waited_s=0.0 if number == 0 else 0.001)
        bundle = following

    assert model.slots.round_trip_s == pytest.approx(0.007)


def test_the_pause_is_what_passes_between_answers_besides_the_execution() -> None:
    """Of bundles that were at the replica already."""
    model = _model()
    bundle = _send(model, 0, 0.0)
    for number in range(8):
        now = 0.0105 * number + 0.012
        following = _send(model, number + 1, now - 0.008)
        model.answered(bundle, [(1, 0, 0.01, "")], now, waited_s=0.006)
        bundle = following

    assert model.slots.pause_s == pytest.approx(0.0005)


def test_a_pause_that_is_believed_too_long_is_unlearnt() -> None:
    """For its sake bundles come late; then the gap between two answers tells nothing, but what they wait does."""
    model = _model()
    bundle = _send(model, 0, 0.0)
    for number in range(40):
        gap_s, waited_s = (0.004, 0.006) if number < 8 else (0.004, 0.0001)
        now = (0.010 + gap_s) * number + 0.012
        following = _send(model, number + 1, now - 0.001)
        model.answered(bundle, [(1, 0, 0.01, "")], now, waited_s=waited_s)
        bundle = following

    assert model.slots.pause_s == pytest.approx(0.0001)


def test_what_came_too_late_teaches_the_way_all_the_same() -> None:
    """Its entries have ended, and its answer tells how long the ways are: or else all that follows is late, too."""
    model = _model()
    for number in range(8):
        bundle = _send(model, number, float(number))
        bundle.release_entries()
        model.answered(bundle, [(1, 0, 0.01, "")], number + 0.07)

    assert (model.overhead.seconds, model.slots.round_trip_s) == pytest.approx((0.06, 0.06))


def test_a_replica_that_was_silent_teaches_nothing_of_the_ways() -> None:
    """It was out of the choice when it answered at last."""
    model = _model()
    for number in range(8):
        bundle = _send(model, number, 100.0 * number)
        model.slots.quarantine("a", 100.0 * number + 30.0)
        model.answered(bundle, [(1, 0, 0.01, "")], 100.0 * number + 60.0)

    assert (model.overhead.seconds, model.slots.round_trip_s) == (0.002, 0.002)


def test_a_pause_does_not_keep_an_idle_replica_from_work() -> None:
    """However long it is: what comes before its end waits there."""
    model = _model()
    model.slots.pause_s = 0.5
    bundle = _send(model, 0, 0.0)
    model.slots.release(bundle.replica, 0, 1.0, answered=True)

    assert bundle.replica.busy_until <= 1.0
