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


def test_the_round_trip_is_that_of_bundles_that_wait_for_no_other() -> None:
    """What waits at a busy replica takes longer, and says nothing of the ways."""
    model = _model()
    for number in range(8):
        start = 1.0 + number
        first, second = _send(model, 2 * number, start), _send(model, 2 * number + 1, start + 0.001)
        model.answered(first, [(1, 0, 0.01, "")], start + 0.013)
        model.answered(second, [(1, 0, 0.01, "")], start + 0.023)

    assert model.slots.round_trip_s == pytest.approx(0.003)
    assert model.slots.pause_s == pytest.approx(0.0)


def test_the_pause_is_what_passes_between_answers_besides_the_execution() -> None:
    """Of bundles that were at the replica already; what goes to an idle one tells nothing of it."""
    model = _model()
    for number in range(8):
        start = 1.0 + number
        first, second = _send(model, 2 * number, start), _send(model, 2 * number + 1, start + 0.001)
        model.answered(first, [(1, 0, 0.01, "")], start + 0.012)
        model.answered(second, [(1, 0, 0.01, "")], start + 0.0225)

    assert model.slots.pause_s == pytest.approx(0.0005)
    assert model.slots.round_trip_s == pytest.approx(0.002)
