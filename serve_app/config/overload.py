"""When the overload ladder moves."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from serve_app.config.faults import misfit
from serve_app.config.values import Milliseconds, Seconds, Section
from serve_app.scheduling.overload import OverloadSettings, Step

StepName = Literal["batches", "variant", "shed-low", "shed-normal", "shed-high"]
Part = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Lateness = Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)]


class OverloadConfig(Section):
    """The overload ladder of each model, or device group: what is given up first when there is more work than time."""

    enabled: bool = True
    """Whether there is one. Without it, requests are refused and given up by their own deadlines only."""

    steps: Annotated[tuple[StepName, ...], Field(strict=False)] = (
        "batches",
        "variant",
        "shed-low",
        "shed-normal",
        "shed-high",
    )
    """The steps that may be taken, in this order; those left out are passed over.

    `batches`: batches may take longer than `slo_ms`. `variant`: `normal` and `low` run on the first of the model's
    `fallbacks` that is cheaper. `shed-...`: that class is refused beyond its ration.
    """

    climb_at: Lateness = 0.8
    """A step is taken while requests would wait for more than this part of their time."""

    descend_at: Lateness = 0.4
    """A step is taken back once they would wait for less than this part, and what is asked for would fit."""

    climb_ms: Milliseconds = 200.0
    """Least time between two steps up."""

    dwell_s: Seconds = 1.0
    """How long a step down must have been possible before it is made."""

    smoothing_ms: Milliseconds = 200.0
    """Time constant of the smoothed lateness."""

    ration: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.7
    """Part of its usual time that a class that is shed may still wait for; a full batch is always taken."""

    late_at: Lateness = 0.9
    """The variant is brought where requests lately waited for more than this part of the time they had for waiting.

    Of each answered bundle the first request counts, whatever is predicted.
    """

    busy: Part = 0.85
    """Where a device is used for less than this part of the time although more than a batch waits, batches grow."""

    memory: Part = 0.9
    """Where more than this part of a device's memory is taken, its replica has a single bundle in flight."""

    @model_validator(mode="after")
    def _check(self) -> OverloadConfig:
        if self.descend_at >= self.climb_at:
            message = f"must be less than climb_at {self.climb_at:g}, got {self.descend_at:g}"
            raise misfit([(("descend_at",), message)])
        order = [_STEPS[name] for name in self.steps]
        if any(after <= before for before, after in pairwise(order)):
            raise misfit([(("steps",), f"must be in this order, each once: {', '.join(_STEPS)}")])
        return self

    def settings(self) -> OverloadSettings | None:
        """The values for the scheduler; ``None``: no ladders."""
        if not self.enabled:
            return None
        return OverloadSettings(
            steps=tuple(_STEPS[name] for name in self.steps),
            climb_at=self.climb_at,
            descend_at=self.descend_at,
            climb_s=self.climb_ms / 1000,
            dwell_s=self.dwell_s,
            smoothing_s=self.smoothing_ms / 1000,
            ration=self.ration,
            late_at=self.late_at,
            busy=self.busy,
            memory=self.memory,
        )


_STEPS = {step.label: step for step in Step if step}
