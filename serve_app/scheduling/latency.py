"""How long a batch of b rows takes at a model: an online quantile per (bucket, rows), shaped by an affine prior.

Samples are execution times only, never round trips. They fall into cells by cost bucket and by rows rounded up to a
power of two. Within a cell each sample is divided by the shape ``alpha + beta * rows`` of its bucket, and the quantile
of these ratios, times the shape, is the cell's prediction: so that 5 rows and 8 rows may share a cell, and a cell that
was never seen follows its neighbours' ratio. Predictions at the powers of two are made monotone by a running maximum
and joined by straight lines.

The quantile is the element ``floor(q * (n - 1))`` of the sorted window: never the largest of two or more, so one
outlier moves nothing much. While a seeded cell is nearly empty the prior counts as one more sample in it.

Sources: the sliding window of recent executions per batch size is Clockwork's (OSDI 2020), the affine shape Nexus'
(SOSP 2019), the key by input length Orloj's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable
from math import inf

_KNOTS = 11
"""Predictions are held at 1, 2, 4 ... 1,024 rows; above that the last one continues with the shape's slope."""
_MAX_BUCKETS = 64
"""Beyond that the bucket observed least recently is forgotten."""
_FEW = 4
_NO_KNOT = (_KNOTS, 1.0)


class _Cell:
    """The last samples of one (bucket, rows rounded up)."""

    __slots__ = ("dirty", "ranked", "ratio", "ratios", "samples")

    def __init__(self, window: int) -> None:
        self.samples: deque[tuple[int, float]] = deque(maxlen=window)
        # Of the samples, what they took over what the shape says; by age, and ascending.
        self.ratios: deque[float] = deque(maxlen=window)
        self.ranked: list[float] = []
        self.ratio = 1.0
        self.dirty = True

    def add(self, rows: int, seconds: float, shape: float) -> None:
        self.samples.append((rows, seconds))
        if len(self.ratios) == self.ratios.maxlen:
            del self.ranked[bisect_left(self.ranked, self.ratios[0])]
        ratio = seconds / shape
        self.ratios.append(ratio)
        insort(self.ranked, ratio)
        self.dirty = True

    def reshape(self, alpha: float, beta: float) -> None:
        self.ratios.clear()
        self.ratios.extend(seconds / (alpha + beta * rows) for rows, seconds in self.samples)
        self.ranked = sorted(self.ratios)
        self.dirty = True


class _Curve:
    """Everything known of one cost bucket."""

    __slots__ = ("alpha", "beta", "cells", "dirty", "predicted", "seeded", "shape", "tail", "values")

    def __init__(self) -> None:
        self.cells: list[_Cell | None] = [None] * _KNOTS
        self.alpha = 0.0
        self.beta = 0.0
        # What the shape says at the knots.
        self.shape: list[float] = []
        self.seeded = False
        self.dirty = True
        self.values: list[float] = []
        self.tail = 0.0
        # By rows, what was asked for since the cells last changed: the same few again and again.
        self.predicted: dict[int, float] = {}

    def add(self, rows: int, seconds: float, window: int) -> None:
        cell = self.cells[knot_of(rows)]
        if cell is None and not self.seeded:
            self.place(rows, seconds, window)
            self.fit(sample for other in self.cells if other is not None for sample in other.samples)
            return
        if cell is None:
            cell = self.cells[knot_of(rows)] = _Cell(window)
        cell.add(rows, seconds, self.alpha + self.beta * rows)
        self.dirty = True

    def place(self, rows: int, seconds: float, window: int) -> None:
        """Take a sample in before a `fit`."""
        knot = knot_of(rows)
        cell = self.cells[knot]
        if cell is None:
            cell = self.cells[knot] = _Cell(window)
        cell.samples.append((rows, seconds))

    def fit(self, points: Iterable[tuple[int, float]]) -> None:
        alpha, beta = self.alpha, self.beta = fit_affine(points)
        self.shape = [alpha + beta * (1 << knot) for knot in range(_KNOTS)]
        self.dirty = True
        for cell in self.cells:
            if cell is not None:
                cell.reshape(alpha, beta)

    def refresh(self, quantile: float) -> None:
        """Recompute the predictions at the knots from the cells that changed."""
        known: list[tuple[int, float]] = []
        for knot, cell in enumerate(self.cells):
            if cell is None:
                continue
            if cell.dirty:
                ratios = cell.ranked
                if self.seeded and len(ratios) < _FEW:
                    ratios = ratios.copy()
                    ratios.insert(bisect_left(ratios, 1.0), 1.0)
                cell.ratio = ratios[int(quantile * (len(ratios) - 1))]
                cell.dirty = False
            known.append((knot, cell.ratio))
        values: list[float] = []
        highest = 0.0
        left, left_ratio = known[0]
        following = iter(known[1:])
        right, right_ratio = next(following, _NO_KNOT)
        for knot, seconds in enumerate(self.shape):
            if knot >= right:
                left, left_ratio = right, right_ratio
                right, right_ratio = next(following, _NO_KNOT)
            ratio = left_ratio
            if left < knot and right < _KNOTS:
                ratio += (right_ratio - ratio) * (knot - left) / (right - left)
            seconds *= ratio  # noqa: PLW2901 - of the shape, corrected by what was measured
            highest = max(highest, seconds)
            values.append(highest)
        self.values = values
        self.tail = self.beta * known[-1][1]
        self.predicted.clear()
        self.dirty = False

    def predict(self, rows: int) -> float:
        knot = (rows - 1).bit_length()
        if knot >= _KNOTS:
            return self.values[-1] + self.tail * (rows - (1 << (_KNOTS - 1)))
        seconds = self.values[knot]
        if rows != 1 << knot:
            low_rows = 1 << (knot - 1)
            low = self.values[knot - 1]
            seconds = low + (seconds - low) * (rows - low_rows) / low_rows
        self.predicted[rows] = seconds
        return seconds


class LatencyModel:
    """Predicts the execution time of one model.

    Args:
        quantile: Which quantile of a cell's window to predict, 0 to 1.
        window: Samples kept per cell.

    A model that was neither seeded nor observed predicts 0.0 for everything, so that nothing is refused blindly.
    """

    def __init__(self, quantile: float = 0.95, window: int = 32) -> None:
        self._quantile = quantile
        self._window = window
        self._curves: dict[int, _Curve] = {}
        self._buckets: list[int] = []
        # By cost bucket, known or not: the arguments and the answer of `best` since something was last learned.
        self._best: dict[int, tuple[int, float, tuple[int, float]]] = {}

    @property
    def known(self) -> bool:
        """Whether there is anything to predict from."""
        return bool(self._curves)

    @property
    def buckets(self) -> tuple[int, ...]:
        """The cost buckets that were seeded or observed, ascending."""
        return tuple(self._buckets)

    def seed(self, points: Iterable[tuple[int, int, float]]) -> None:
        """Take the points of a warm-up profile as the prior, and as first samples where there are none yet.

        Seeding again, as when one more replica comes up, replaces the prior and keeps what was observed.

        Args:
            points: ``(rows, bucket, seconds)``. Points with rows below 1 or a time that is not positive and finite
                are ignored.
        """
        by_bucket: dict[int, list[tuple[int, float]]] = {}
        for rows, bucket, seconds in points:
            if rows >= 1 and 0.0 < seconds < inf:
                by_bucket.setdefault(bucket, []).append((rows, seconds))
        for bucket, samples in by_bucket.items():
            curve = self._curve(bucket)
            curve.seeded = True
            unmeasured = [cell is None for cell in curve.cells]
            for rows, seconds in samples:
                if unmeasured[knot_of(rows)]:
                    curve.place(rows, seconds, self._window)
            curve.fit(samples)
        self._best.clear()

    def observe(self, rows: int, bucket: int, seconds: float) -> None:
        """Learn from one execution. Nonsense (rows below 1, a time not positive and finite) is ignored."""
        if rows >= 1 and 0.0 < seconds < inf:
            self._curve(bucket).add(rows, seconds, self._window)
            self._curves[bucket] = self._curves.pop(bucket)
            self._best.clear()

    def predict(self, rows: int, bucket: int = 0) -> float:
        """Seconds that a batch of ``rows`` rows takes in ``bucket``. Never decreases with rows. 0.0 when unknown."""
        curve = self._curves.get(bucket)
        if curve is None:
            return self._predict_unseen(rows, bucket)
        if curve.dirty:
            curve.refresh(self._quantile)
        seconds = curve.predicted.get(rows)
        return curve.predict(rows) if seconds is None else seconds

    def rows_within(self, seconds: float, bucket: int, max_rows: int) -> int:
        """The most rows, up to ``max_rows``, predicted to take no longer than ``seconds``; 0 when one row does."""
        if self.predict(max_rows, bucket) <= seconds:
            return max_rows
        low, high = 0, max_rows
        curve = self._curves.get(bucket)
        if curve is not None:
            # Between which knots it is; they are in order, as predictions are.
            knots = bisect_right(curve.values, seconds)
            if not knots:
                return 0
            low = 1 << (knots - 1)
            if knots < _KNOTS:
                high = min(high, 1 << knots)
        while high - low > 1:
            middle = (low + high) // 2
            if self.predict(middle, bucket) <= seconds:
                low = middle
            else:
                high = middle
        return low

    def best(self, bucket: int, max_rows: int, slo_s: float) -> tuple[int, float]:
        """The largest batch within the target: its rows, at least 1, and its server time per row.

        Args:
            bucket: Cost bucket; the next larger known one stands in for an unknown one.
            max_rows: Most rows in a batch.
            slo_s: Latency target of a batch, seconds.

        Returns:
            ``(max_rows, 0.0)`` when unknown.
        """
        cached = self._best.get(bucket)
        if cached is None or cached[0] != max_rows or cached[1] != slo_s:
            if not self._buckets:
                return max_rows, 0.0
            if len(self._best) >= _MAX_BUCKETS:
                self._best.clear()
            known = self._buckets[min(bisect_left(self._buckets, bucket), len(self._buckets) - 1)]
            rows = self.rows_within(slo_s, known, max_rows) or 1
            cached = self._best[bucket] = (max_rows, slo_s, (rows, self.predict(rows, known) / rows))
        return cached[2]

    def _curve(self, bucket: int) -> _Curve:
        curve = self._curves.get(bucket)
        if curve is None:
            if len(self._curves) >= _MAX_BUCKETS:
                del self._curves[next(iter(self._curves))]
            curve = self._curves[bucket] = _Curve()
            self._buckets = sorted(self._curves)
        return curve

    def _predict_unseen(self, rows: int, bucket: int) -> float:
        """Between two known buckets: a straight line. Outside: in proportion, half of a smaller one's cost fixed."""
        buckets = self._buckets
        if not buckets:
            return 0.0
        at = bisect_left(buckets, bucket)
        if 0 < at < len(buckets):
            low, high = buckets[at - 1], buckets[at]
            below, above = self.predict(rows, low), self.predict(rows, high)
            return below + (above - below) * (bucket - low) / (high - low)
        nearest = buckets[0] if at == 0 else buckets[-1]
        seconds = self.predict(rows, nearest)
        if nearest <= 0 or bucket < 0:
            return seconds
        return seconds * (bucket / nearest if bucket > nearest else 0.5 + 0.5 * bucket / nearest)


def knot_of(rows: int) -> int:
    """The cell of a number of rows: the exponent of the next power of two, the last cell taking all beyond."""
    return min((rows - 1).bit_length(), _KNOTS - 1)


def fit_affine(points: Iterable[tuple[int, float]]) -> tuple[float, float]:
    """Fit ``seconds = alpha + beta * rows`` by least squares, both at least 0 and not both 0.

    Points that all have the same rows say nothing of the slope: then half of the time is taken to be fixed.

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
