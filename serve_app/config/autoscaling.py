"""Settings of a model's replicas."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from serve_app.config.problems import Location, validation_error
from serve_app.config.values import Delay, Positive, Seconds, Section

_MORE_AFTER_S, _FEWER_AFTER_S = 2.0, 60.0


class AutoscalingConfig(Section):
    """How many replicas a model has.

    With a number for `max_replicas` they follow the demand: the computing time of all requests, also of those that were
    refused or dropped, and what their deadlines allow. Those of models on the CPU without code of yours also follow how
    busy their processes are: one that computes for most of the time gets another while its node has an idle core and
    memory for it.
    """

    min_replicas: int = Field(default=1, ge=0)
    """Fewest replicas; 0 lets an idle model go away, and its next request waits for a start."""

    max_replicas: Literal["auto"] | Positive = "auto"
    """Most replicas.

    `auto`: 2 on a CPU, where the second starts when the process of the first is busy, whatever the queue is; 1 with
    `resources.gpus`, and for a Python model or a processor of yours, which may keep a state. Never less than
    `min_replicas`.
    """

    initial_replicas: int | None = Field(default=None, ge=0)
    """Replicas at the start; by default `min_replicas`."""

    target_queue: Positive | None = None
    """Rows per replica to aim for instead, those queued, running and turned away in the last second. With
    `max_replicas: auto` they do not count."""

    upscale_delay_s: Delay | None = None
    """How long more replicas must be wanted before they are started; by default 2 s with `target_queue` or
    `max_replicas: auto`, otherwise none, since the demand is smoothed."""

    downscale_delay_s: Delay | None = None
    """How long fewer replicas must be wanted before some are stopped; by default 60 s with `target_queue` or
    `max_replicas: auto`, otherwise learned from the start-up time and from how soon replicas were wanted again."""

    downscale_to_zero_delay_s: Delay = 300.0
    """How long the last replica must be idle before it is stopped; counts only where `min_replicas` is 0."""

    metrics_interval_s: Seconds = 1.0
    """How often loads are reported."""

    look_back_period_s: Seconds = 5.0
    """Over how long loads are averaged."""

    @model_validator(mode="after")
    def _check(self) -> AutoscalingConfig:
        faults: list[tuple[Location, str]] = []
        most = self.most()
        if self.min_replicas > most:
            faults.append((("max_replicas",), f"{most} is less than min_replicas {self.min_replicas}"))
        elif not self.min_replicas <= self.start_replicas <= most:
            faults.append(
                (
                    ("initial_replicas",),
                    f"must be from {self.min_replicas} to {most} (min and max), got {self.start_replicas}",
                )
            )
        if self.look_back_period_s < self.metrics_interval_s:
            faults.append(
                (
                    ("look_back_period_s",),
                    f"{self.look_back_period_s:g} is less than metrics_interval_s {self.metrics_interval_s:g}",
                )
            )
        if faults:
            raise validation_error(faults)
        return self

    @property
    def follows_demand(self) -> bool:
        """Whether the number of replicas follows the demand."""
        return self.max_replicas != "auto" and self.target_queue is None

    @property
    def delays_s(self) -> tuple[float, float]:
        """How long more, and how long fewer replicas must be wanted, before Serve acts."""
        more_s, fewer_s = (0.0, 0.0) if self.follows_demand else (_MORE_AFTER_S, _FEWER_AFTER_S)
        return (
            more_s if self.upscale_delay_s is None else self.upscale_delay_s,
            fewer_s if self.downscale_delay_s is None else self.downscale_delay_s,
        )

    @property
    def start_replicas(self) -> int:
        """Replicas at the start."""
        return self.min_replicas if self.initial_replicas is None else self.initial_replicas

    def most(self, auto: int = 1) -> int:
        """Most replicas, with `auto` as this number or the initial one, whichever is larger."""
        return max(auto, self.min_replicas, self.start_replicas) if self.max_replicas == "auto" else self.max_replicas
