"""What a model learns from the answers to its bundles."""

from __future__ import annotations

import pytest
from scheduling_builders import make_entry

from serve_app.scheduling.bundles import Bundle
from serve_app.scheduling.entry import Priority
from serve_app.scheduling.model_state import ModelState
from serve_app.scheduling.queue import Totals
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
