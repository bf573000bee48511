"""The points of a profile, with the times of a batch shape, and lines through them."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from serve_app.config.problems import Location, short_repr, validation_error
from serve_app.config.values import Positive, Section

Bytes = Annotated[int, Field(ge=0)]

_Time = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_PERCENTILE = re.compile(r"p\d{1,2}(\.\d+)?")


class Point(Section):
    """One shape of batch. Times are those of warm runs."""

    rows: Positive
    """Rows of the batch."""

    bucket: int = Field(default=0, ge=0)
    """Its cost bucket; 0 where the model has none."""

    variant: str = ""
    """Name of the variant; empty for the model itself."""

    runs: Positive
    """How often it was run."""

    mean_s: _Time
    """Mean time of a run."""

    min_s: _Time
    """Shortest run."""

    max_s: _Time
    """Longest run."""

    quantiles_s: dict[str, _Time]
    """Quantiles by name: `p50` is the median."""

    peak_rss_bytes: Bytes | None = None
    """Largest resident set of the process while it ran first; larger batches were run later."""

    gpu_bytes: Bytes | None = None
    """Memory in use on the GPU, by whomever, after it ran first."""

    @field_validator("quantiles_s")
    @classmethod
    def _check_names(cls, quantiles: dict[str, float]) -> dict[str, float]:
        for name in quantiles:
            if not _PERCENTILE.fullmatch(name):
                raise ValueError(f"names must be such as p50 or p99.9, got {short_repr(name)}")
        return quantiles

    @model_validator(mode="after")
    def _check(self) -> Point:
        low, high = self.min_s, self.max_s
        faults: list[tuple[Location, str]] = []
        for _, name, value in self._ordered():
            if not low <= value <= high:
                message = f"{value:g} is outside of what lies beside it, {low:g} to {high:g}"
                faults.append((("quantiles_s", name), message))
            else:
                low = value
        if self.min_s > self.max_s:
            faults = [(("min_s",), f"{self.min_s:g} is more than max_s {self.max_s:g}")]
        elif not self.min_s <= self.mean_s <= self.max_s:
            faults.append((("mean_s",), f"{self.mean_s:g} is not between min_s and max_s"))
        if faults:
            raise validation_error(faults)
        return self

    @classmethod
    def of(
        cls,
        seconds: Sequence[float],
        quantiles: Sequence[float],
        *,
        rows: int,
        bucket: int = 0,
        variant: str = "",
        peak_rss_bytes: int | None = None,
        gpu_bytes: int | None = None,
    ) -> Point:
        """Summarize the runs of a shape.

        Args:
            seconds: Of each run.
            quantiles: To keep, each more than 0 and less than 1.
        """
        ordered = sorted(seconds)
        lowest, highest = ordered[0], ordered[-1]
        return cls(
            rows=rows,
            bucket=bucket,
            variant=variant,
            runs=len(ordered),
            # The sum is rounded, so that the mean of equal times could lie beside all of them.
            mean_s=min(max(math.fsum(ordered) / len(ordered), lowest), highest),
            min_s=lowest,
            max_s=highest,
            quantiles_s={f"p{100 * quantile:g}": _quantile(ordered, quantile) for quantile in sorted(set(quantiles))},
            peak_rss_bytes=peak_rss_bytes,
            gpu_bytes=gpu_bytes,
        )

    def quantile(self, quantile: float) -> float:
        """The quantile of the runs, in seconds, interpolated between kept ones."""
        known = [(0.0, self.min_s), *((part, value) for part, _, value in self._ordered()), (1.0, self.max_s)]
        at = min(max(bisect_left(known, (quantile, 0.0)), 1), len(known) - 1)
        (low, below), (high, above) = known[at - 1], known[at]
        return above if high == quantile else below + (above - below) * (quantile - low) / (high - low)

    def _ordered(self) -> list[tuple[float, str, float]]:
        return sorted((float(name[1:]) / 100, name, value) for name, value in self.quantiles_s.items())


class Fit(Section):
    """The straight line ``alpha_s + beta_s * rows`` through the mean times of one bucket and variant."""

    bucket: int = Field(default=0, ge=0)
    """The bucket."""

    variant: str = ""
    """The variant; empty for the model itself."""

    alpha_s: float = Field(ge=0, allow_inf_nan=False)
    """Time of a batch however many rows it has."""

    beta_s: float = Field(ge=0, allow_inf_nan=False)
    """Time of each row on top."""

    residuals_s: dict[str, float]
    """By rows: how much longer a batch takes than the line says."""

    @model_validator(mode="after")
    def _check(self) -> Fit:
        if self.alpha_s + self.beta_s <= 0:
            raise validation_error(
                [(("beta_s",), "alpha_s and beta_s cannot both be 0: executions would take no time")]
            )
        return self


def fit_points(points: Sequence[Point]) -> tuple[Fit, ...]:
    """Fit lines through the mean times per bucket and variant: least squares, nonnegative."""
    groups: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        groups.setdefault((point.variant, point.bucket), []).append(point)
    fits = []
    for (variant, bucket), group in groups.items():
        alpha, beta = fit_affine((point.rows, point.mean_s) for point in group)
        residuals = {str(point.rows): point.mean_s - (alpha + beta * point.rows) for point in group}
        fits.append(Fit(bucket=bucket, variant=variant, alpha_s=alpha, beta_s=beta, residuals_s=residuals))
    return tuple(fits)


def fit_affine(points: Iterable[tuple[int, float]]) -> tuple[float, float]:
    """Fit ``seconds = alpha + beta * rows`` by least squares, both nonnegative and not both 0.

    If all points have the same rows, the slope is unknown: then half of the time counts as fixed.

    Args:
        points: ``(rows, seconds)``, at least one, rows at least 1, seconds positive.

    Returns:
        ``(alpha, beta)`` in seconds and seconds per row.
    """
    samples = list(points)
    count = len(samples)
    mean_rows = sum(rows for rows, _ in samples) / count
    mean_seconds = sum(seconds for _, seconds in samples) / count
    variance = sum((rows - mean_rows) ** 2 for rows, _ in samples)
    if variance <= 0.0:
        return mean_seconds / 2, mean_seconds / 2 / mean_rows
    covariance = sum((rows - mean_rows) * (seconds - mean_seconds) for rows, seconds in samples)
    beta = covariance / variance
    alpha = mean_seconds - beta * mean_rows
    if beta < 0.0:
        return mean_seconds, 0.0
    if alpha < 0.0:
        return 0.0, sum(r * s for r, s in samples) / sum(r * r for r, _ in samples)
    return alpha, beta


def _quantile(ordered: Sequence[float], quantile: float) -> float:
    """The interpolated quantile of sorted values."""
    place = quantile * (len(ordered) - 1)
    at = int(place)
    above = ordered[min(at + 1, len(ordered) - 1)]
    # Of equal neighbours rounding must not make another value.
    return min(max(ordered[at] + (above - ordered[at]) * (place - at), ordered[at]), above)
