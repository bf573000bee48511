"""When the overload ladder moves, as it is configured."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.config import parse_args
from serve_app.errors import ConfigError
from serve_app.scheduling.overload import OverloadSettings, Step


def settings(**overload: Any) -> OverloadSettings | None:
    """What the scheduler is told."""
    return parse_args({"overload": overload, "models": [{"name": "m", "path": "m"}]}).overload.settings()


def test_the_defaults_are_the_schedulers() -> None:
    """Where nothing is said, also not that there is a ladder."""
    assert settings() == OverloadSettings()
    assert parse_args({"models": [{"name": "m", "path": "m"}]}).overload.settings() == OverloadSettings()


def test_values_reach_the_scheduler_in_its_units() -> None:
    """Seconds instead of milliseconds, steps by their numbers."""
    given = settings(
        steps=["variant", "shed-low"],
        climb_at=2,
        descend_at=1,
        climb_ms=50,
        dwell_s=3,
        smoothing_ms=100,
        ration=0,
        late_at=1.5,
        busy=0.5,
        memory=1,
    )
    steps = (Step.VARIANT, Step.SHED_LOW)
    assert given == OverloadSettings(steps, 2.0, 1.0, 0.05, 3.0, 0.1, ration=0.0, late_at=1.5, busy=0.5, memory=1.0)


def test_it_can_be_switched_off() -> None:
    """Then there are no ladders."""
    assert settings(enabled=False, ration=0.5) is None


@pytest.mark.parametrize(
    ("overload", "expected"),
    [
        ({"clim_at": 0.9}, "clim_at: unknown key; did you mean climb_at"),
        ({"climb_at": 0}, "climb_at: must be more than 0"),
        ({"climb_at": 11}, "climb_at: must be at most 10"),
        ({"climb_at": "high"}, "climb_at: must be a number"),
        ({"climb_ms": 0}, "climb_ms: must be more than 0"),
        ({"dwell_s": -1}, "dwell_s: must be more than 0"),
        ({"ration": 1.1}, "ration: must be at most 1"),
        ({"ration": -0.1}, "ration: must be at least 0"),
        ({"busy": 0}, "busy: must be more than 0"),
        ({"memory": 90}, "memory: must be at most 1"),
        ({"late_at": float("nan")}, "late_at: must be a finite number"),
        ({"descend_at": 0.8}, "descend_at: must be less than climb_at 0.8, got 0.8"),
        ({"steps": ["shed-lo"]}, "steps[0]: must be 'batches', 'variant', 'shed-low', 'shed-normal' or 'shed-high'"),
        ({"steps": "variant"}, "steps: must be a list"),
        ({"steps": ["shed-low", "variant"]}, "steps: must be in this order, each once: batches, variant"),
        ({"steps": ["variant", "variant"]}, "steps: must be in this order, each once"),
        (5, "must be a mapping"),
    ],
)
def test_what_makes_no_sense_is_refused(overload: Any, expected: str) -> None:
    """With the key, and what would be right."""
    with pytest.raises(ConfigError) as caught:
        parse_args({"overload": overload, "models": [{"name": "m", "path": "m"}]})
    assert f"overload{'.' if isinstance(overload, dict) else ': '}{expected}" in str(caught.value)
