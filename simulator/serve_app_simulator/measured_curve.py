"""The cost of a batch by a profile, between and beyond the shapes that were measured."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from serve_app.config.profile import Profile


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """The mean execution time: straight lines through the points of a bucket, and on along the bucket's fit.

    Outside of the rows measured the fit is scaled to meet the point at the edge. Between two buckets it is a straight
    line; outside of them it goes in proportion, half of a smaller one's cost being fixed, as in `LatencyModel`.

    Attributes:
        lines: Per bucket, ascending: the bucket, rows ascending, their mean seconds, and the fit's alpha and beta.
    """

    lines: tuple[tuple[int, tuple[int, ...], tuple[float, ...], float, float], ...]

    @classmethod
    def of(cls, profile: Profile, variant: str = "", quantile: float | None = None) -> MeasuredCurve:
        """The curve of a variant, or of the model itself.

        It goes through the means, or through ``quantile`` of each point: the median suits a profile whose machine had
        other work too. Raises KeyError if the variant was not measured.
        """
        lines = []
        for fit in sorted((fit for fit in profile.fits if fit.variant == variant), key=lambda fit: fit.bucket):
            points = sorted(
                (point.rows, point.mean_s if quantile is None else point.quantile(quantile))
                for point in profile.shapes
                if (point.variant, point.bucket) == (variant, fit.bucket)
            )
            if points:
                rows, seconds = zip(*points, strict=True)
                lines.append((fit.bucket, rows, seconds, fit.alpha_s, fit.beta_s))
        if not lines:
            raise KeyError(variant)
        return cls(tuple(lines))

    def __call__(self, rows: int, bucket: int = 0) -> float:
        """Seconds."""
        at = bisect_left(self.lines, bucket, key=lambda line: line[0])
        if at < len(self.lines) and self.lines[at][0] == bucket:
            return self._along(at, rows)
        if 0 < at < len(self.lines):
            low, high = self.lines[at - 1][0], self.lines[at][0]
            below, above = self._along(at - 1, rows), self._along(at, rows)
            return below + (above - below) * (bucket - low) / (high - low)
        at = min(at, len(self.lines) - 1)
        nearest = self.lines[at][0]
        seconds = self._along(at, rows)
        if nearest <= 0:
            return seconds
        return seconds * (bucket / nearest if bucket > nearest else 0.5 + 0.5 * bucket / nearest)

    def _along(self, line: int, rows: int) -> float:
        _, known, seconds, alpha, beta = self.lines[line]
        at = bisect_left(known, rows)
        if at < len(known) and known[at] == rows:
            return seconds[at]
        if 0 < at < len(known):
            part = (rows - known[at - 1]) / (known[at] - known[at - 1])
            return seconds[at - 1] + (seconds[at] - seconds[at - 1]) * part
        edge = 0 if at == 0 else len(known) - 1
        return seconds[edge] * (alpha + beta * rows) / (alpha + beta * known[edge])
