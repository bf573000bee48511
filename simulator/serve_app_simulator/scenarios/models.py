"""The models of a scenario: what they cost, how they are batched, and the devices that they share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from serve_app.config.batching import BatchingConfig, fallback_problems
from serve_app.config.breaker import BreakerConfig
from serve_app.config.names import checked_model_name, checked_variant_name
from serve_app.config.problems import Location, short_repr, validation_error
from serve_app.config.values import Delay, Milliseconds, Positive, Seconds, Section
from serve_app_simulator.scenario import Affine, Curve, Device, SimulatedAutoscaling, SimulatedModel

MOST_ROWS = 65_536
"""Most rows that a simulated batch may have."""

Point = tuple[Positive, Milliseconds]


@dataclass(frozen=True, slots=True)
class Piecewise:
    """Straight lines through measured points; before the first and after the last, the nearest line goes on.

    Attributes:
        rows: Rows of the points, rising; at least two.
        seconds: Their execution times, never falling.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def __call__(self, rows: int, bucket: int = 0) -> float:  # noqa: ARG002 - a `Curve`
        """Seconds."""
        right = min(max(bisect_left(self.rows, rows), 1), len(self.rows) - 1)
        x0, x1 = self.rows[right - 1], self.rows[right]
        y0, y1 = self.seconds[right - 1], self.seconds[right]
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)


class LatencyConfig(Section):
    """What a batch costs: `alpha_ms` and `beta_ms`, or `points`."""

    alpha_ms: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Time of a batch however many rows it has."""

    beta_ms: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Time of each row on top."""

    points: Annotated[tuple[Annotated[Point, Field(strict=False)], ...], Field(strict=False)] = ()
    """Measured `[rows, ms]`, rising in rows from 1; in between and beyond, straight lines."""

    @model_validator(mode="after")
    def _check(self) -> LatencyConfig:
        if self.points:
            self._check_points()
        elif self.alpha_ms is None or self.beta_ms is None:
            raise ValueError("needs alpha_ms and beta_ms, or points")
        elif self.alpha_ms + self.beta_ms <= 0:
            raise validation_error(
                [(("beta_ms",), "alpha_ms and beta_ms cannot both be 0: executions would take no time")]
            )
        return self

    def _check_points(self) -> None:
        if self.alpha_ms is not None or self.beta_ms is not None:
            raise validation_error([(("points",), "cannot stand beside alpha_ms and beta_ms; leave one of them out")])
        if len(self.points) < 2 or self.points[0][0] != 1:
            raise validation_error(
                [(("points",), "needs two or more points, the first for 1 row, e.g. [[1, 5], [8, 12]]")]
            )
        for number, ((rows, ms), (more_rows, more_ms)) in enumerate(pairwise(self.points), start=1):
            if more_rows <= rows:
                raise validation_error([(("points", number), f"rows must rise, got {more_rows} after {rows}")])
            if more_ms < ms:
                raise validation_error(
                    [(("points", number), f"more rows cannot take less time: {more_ms:g} ms after {ms:g} ms")]
                )

    def curve(self) -> Curve:
        """The true cost."""
        if self.points:
            return Piecewise(tuple(rows for rows, _ in self.points), tuple(ms / 1000 for _, ms in self.points))
        assert self.alpha_ms is not None
        assert self.beta_ms is not None
        return Affine(self.alpha_ms / 1000, self.beta_ms / 1000)


class SimulatedVariantConfig(Section):
    """Another build of a model."""

    name: str
    """Its name, unique within the model; with a profile, one that the profile has."""

    latency: LatencyConfig | None = None
    """What its batches cost; by default what the model's profile says."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return checked_variant_name(name)


class SimulatedAutoscalingConfig(Section):
    """How many replicas a model has: the server's rule, with the same names."""

    min_replicas: Positive = 1
    """Fewest replicas."""

    max_replicas: Annotated[int, Field(ge=1, le=1000)]
    """Most replicas."""

    target_queue: Positive | None = None
    """Rows queued and running per replica to aim for; by default replicas follow the demand."""

    upscale_delay_s: Delay = 2.0
    """With `target_queue`, how long more replicas must be wanted before they are started."""

    downscale_delay_s: Delay | None = None
    """How long fewer replicas must be wanted before some are stopped; by default 60 s with `target_queue`, otherwise
    learned."""

    metrics_interval_s: Seconds = 1.0
    """How often loads are looked at."""

    @model_validator(mode="after")
    def _check(self) -> SimulatedAutoscalingConfig:
        if self.min_replicas > self.max_replicas:
            message = f"{self.max_replicas} is less than min_replicas {self.min_replicas}"
            raise validation_error([(("max_replicas",), message)])
        return self


Amount = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class ResourcesConfig(Section):
    """Resources of one replica, or of all of them together."""

    cpus: Amount | None = None
    """Processors."""

    gpus: Amount | None = None
    """GPUs."""

    def amounts(self) -> dict[str, float]:
        """Those that are given, by name."""
        return {name: amount for name, amount in (("cpus", self.cpus), ("gpus", self.gpus)) if amount is not None}


class SimulatedModelConfig(Section):
    """One model of the scenario."""

    name: str
    """Its name in the workload and the report."""

    latency: LatencyConfig | None = None
    """What its batches cost. Either this or `profile`."""

    profile: str | None = None
    """A profile written by `serve-app profile`: its path, relative to this file."""

    batching: BatchingConfig = BatchingConfig()
    """How rows are put into batches, as in the server's configuration."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """Replicas at the start."""

    device: str | None = None
    """Name of the device that its replicas share with other models; by default each has one of its own."""

    startup_s: Delay = 0.0
    """From the request for another replica to its first execution."""

    autoscaling: SimulatedAutoscalingConfig | None = None
    """How replicas come and go; by default they do not."""

    resources: ResourcesConfig = ResourcesConfig()
    """What a replica needs of the scenario's `room`."""

    variants: Annotated[tuple[SimulatedVariantConfig, ...], Field(strict=False)] = ()
    """Other builds of the model, the most exact first."""

    fallbacks: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Names of variants that answer where the exact model would be too late, as in the server's configuration."""

    breaker: BreakerConfig = BreakerConfig()
    """When a model that fails is not asked any more, as in the server's configuration."""

    pads: bool = True
    """Whether a batch of several cost buckets is one run, padded to the largest; otherwise each bucket has its own."""

    known: bool = True
    """Whether schedulers know the costs from the start, as from a profile, or must learn them."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return checked_model_name(name)

    @model_validator(mode="after")
    def _check(self) -> SimulatedModelConfig:
        faults: list[tuple[Location, str]] = []
        if self.latency is None and self.profile is None:
            faults.append((("latency",), "required, or profile: what a batch costs"))
        if self.latency is not None and self.profile is not None:
            faults.append((("profile",), "cannot stand beside latency; leave one of them out"))
        if self.batching.configured_rows > MOST_ROWS:
            message = f"at most {MOST_ROWS:,} rows in a batch are simulated, got {self.batching.max_rows:,}"
            faults.append((("batching", "max_rows"), message))
        seen: set[str] = set()
        for number, variant in enumerate(self.variants):
            if variant.name in seen:
                faults.append((("variants", number, "name"), f"{short_repr(variant.name)} is used twice"))
            if variant.latency is None and self.profile is None:
                faults.append((("variants", number, "latency"), "required: the model has no profile to take it from"))
            seen.add(variant.name)
        faults += fallback_problems(self.fallbacks, [variant.name for variant in self.variants])
        if self.autoscaling is not None:
            limits = self.autoscaling
            if not limits.min_replicas <= self.replicas <= limits.max_replicas:
                where = f"from {limits.min_replicas} to {limits.max_replicas} (autoscaling's min and max)"
                faults.append((("replicas",), f"must be {where}, got {self.replicas}"))
        if faults:
            raise validation_error(faults)
        return self

    def simulated(self, curve: Curve, variants: Mapping[str, Curve]) -> SimulatedModel:
        """The values for the simulator, with the curves of the model and of its variants."""
        scaling = self.autoscaling
        return SimulatedModel(
            scheduling=replace(
                self.batching.scheduling(self.name, self.fallbacks),
                variants=tuple(variant.name for variant in self.variants),
                breaker=self.breaker.settings(),
            ),
            curve=curve,
            replicas=self.replicas,
            variants=dict(variants),
            device=self.device,
            startup_s=self.startup_s,
            needs={name: amount for name, amount in self.resources.amounts().items() if amount},
            autoscaling=None
            if scaling is None
            else SimulatedAutoscaling(
                min_replicas=scaling.min_replicas,
                max_replicas=scaling.max_replicas,
                target_rows=None if scaling.target_queue is None else float(scaling.target_queue),
                upscale_delay_s=scaling.upscale_delay_s,
                downscale_delay_s=scaling.downscale_delay_s,
                interval_s=scaling.metrics_interval_s,
            ),
            known=self.known,
            pads=self.pads,
        )


class DeviceConfig(Section):
    """Something that replicas of several models compute on."""

    name: str
    """What models name in `device`."""

    concurrency: Positive = 1
    """Executions at once at full speed; more share that speed."""

    interference: float = Field(default=0.0, ge=0, lt=1, allow_inf_nan=False)
    """Part of the speed that is lost in addition while more than one execution runs."""

    def simulated(self) -> Device:
        """The values for the simulator."""
        return Device(self.name, self.concurrency, self.interference)
