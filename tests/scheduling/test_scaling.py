"""How many replicas a load asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.scheduling.scaling import busy_replicas, desired_replicas


@pytest.mark.parametrize(
    ("load", "target", "current", "minimum", "maximum", "expected"),
    [
        (0, 8.0, 1, 1, 4, 1),
        (0, 8.0, 1, 0, 4, 0),
        (1, 8.0, 0, 0, 4, 1),
        (9, 8.0, 1, 1, 4, 2),
        (8, 8.0, 1, 1, 4, 1),
        (17, 8.0, 2, 1, 4, 2),
        (20, 8.0, 2, 1, 4, 3),
        (1000, 8.0, 2, 1, 4, 4),
        (8, 8.0, 4, 1, 4, 1),
    ],
)
def test_replicas_follow_the_load(
    load: int, target: float, current: int, minimum: int, maximum: int, expected: int
) -> None:
    """Enough replicas for the target, within the limits, and none changed for a tenth."""
    assert expected == desired_replicas(load, target, current, minimum, maximum)


def test_impossible_settings_raise() -> None:
    """They are faults of the caller."""
    with pytest.raises(ValueError, match="target_rows"):
        desired_replicas(1, 0.0, 1, 1, 2)
    with pytest.raises(ValueError, match="replica limits"):
        desired_replicas(1, 1.0, 1, 3, 2)


@given(st.integers(0, 10**6), st.floats(0.1, 1e4), st.integers(0, 50), st.integers(0, 5), st.integers(5, 50))
def test_result_is_stable_and_within_limits(load: int, target: float, current: int, minimum: int, maximum: int) -> None:
    """The answer is a fixed point: with that many replicas the same load asks for the same number."""
    wanted = desired_replicas(load, target, current, minimum, maximum)

    assert minimum <= wanted <= maximum
    assert wanted == desired_replicas(load, target, wanted, minimum, maximum)


@pytest.mark.parametrize(
    ("busy", "idle_cores", "expected"),
    [
        ([0.7], 1.0, 1),
        ([0.88], 1.0, 1),
        ([0.95], 1.0, 2),
        ([0.95], 0.25, 2),
        ([0.95], 0.2, 1),
        ([1.0, 1.0], 8.0, 3),
        ([1.0, 1.0, 1.0, 1.0, 1.0], 8.0, 6),
        ([0.5, 0.45], 1.0, 2),
        ([0.3, 0.3], 1.0, 1),
        ([0.3, 0.3], 0.0, 1),
        ([0.0, 0.0], 2.0, 0),
    ],
)
def test_busy_processes_ask_for_one_more_while_cores_are_idle(
    busy: list[float], idle_cores: float, expected: int
) -> None:
    """One at a time, as what it takes is known only when it is there; none where cores are taken."""
    assert busy_replicas(busy, idle_cores, len(busy)) == expected


def test_none_is_added_while_one_is_being_started() -> None:
    """It has told nothing yet, and will take its part."""
    assert busy_replicas([1.0], 4.0, 2) == 2
    assert busy_replicas([1.0, 1.0, 1.0], 4.0, 4) == 4
