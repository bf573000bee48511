"""Predicts the time of a batch of b rows: the measured points as its shape, scaled by a quantile of recent ratios.

The *shape* of a cost bucket consists of straight lines through the points of its profile. Without a profile the points
are the medians of observations. Each execution, never a round trip, is divided by the shape. These ratios are kept
twice: in a cell per power of two, rows rounded up, and in the pool of the bucket. The prediction at a point and at a
power of two is the shape times a quantile of its cell's ratios, or the pool's if that is more and the cell has few. A
running maximum makes these predictions monotone, and straight lines join them.

The quantile is the element ``floor(q * (n - 1))`` of the sorted window: never the largest of two or more, so one
outlier has little effect. One ratio alone has none. While the pool has few, the profile still counts: a quantile below
1 is then raised to the largest ratio, up to 1. Few ratios of a cell are less than half a window.

Sources: the sliding window of recent executions is Clockwork's (OSDI 2020), the key by input length Orloj's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import TypeAlias

_CELLS = 11
"""Cells end at 1, 2, 4 ... 1,024 rows; the last one has all larger numbers, too."""
_ENDS = tuple(1 << cell for cell in range(_CELLS))
_MAX_BUCKETS = 64
"""Beyond that the bucket observed least recently is dropped."""
_MAX_BETWEEN = 4096
_MEDIAN = 0.5
PAYS = 0.95
"""Rows join a batch if they add at most this fraction of their time in a run of their own."""
_RUN_S = 0.0002
"""Further cost of a run: the gate, threads, and answers."""
_EXPLORE = 16
_SAY = 2
"""A single ratio may be an outlier."""
_OLD = 2
"""A cell without executions of its own is valid for this many windows of the bucket's executions."""
_FEW = 4
"""This many executions that all took less than profiled show that the profile is wrong."""

_Sample: TypeAlias = tuple[int, float, float]
"""Rows, seconds, and the ratio of these to the shape."""


class _Ratios:
    """The last executions of a cell or a bucket, with their ratios to the shape."""

    __slots__ = ("enough", "latest", "ranked", "samples")

    def __init__(self, window: int) -> None:
        self.enough = window / 2
        self.latest = 0  # the number of its bucket's execution that it learned from last
        self.samples: deque[_Sample] = deque(maxlen=window)
        # Their ratios, ascending.
        self.ranked: list[float] = []

    def add(self, sample: _Sample) -> None:
        samples, ranked = self.samples, self.ranked
        if len(samples) == samples.maxlen:
            del ranked[bisect_left(ranked, samples[0][2])]
        samples.append(sample)
        insort(ranked, sample[2])

    def reshape(self, shape: Callable[[int], float]) -> None:
        samples = [(rows, seconds, seconds / shape(rows)) for rows, seconds, _ in self.samples]
        self.samples.clear()
        self.samples.extend(samples)
        self.ranked = sorted(ratio for _, _, ratio in samples)

    def quantile(self, quantile: float, floor: float) -> float:
        """No less than ``floor`` while there are few."""
        ranked = self.ranked
        count = len(ranked)
        if count < _SAY:
            return floor
        ratio = ranked[int(quantile * (count - 1))]
        return ratio if count >= self.enough or ratio > floor else floor

    def middle(self) -> tuple[int, float]:
        """The median of the rows, and that of the seconds."""
        at = (len(self.samples) - 1) // 2
        return sorted(rows for rows, _, _ in self.samples)[at], sorted(seconds for _, seconds, _ in self.samples)[at]


class _Line:
    """The predictions of a bucket for one quantile."""

    __slots__ = ("predicted", "quantile", "slope", "stale", "values")

    def __init__(self, quantile: float) -> None:
        self.quantile = quantile
        self.stale = True
        # At the curve's corners, and the slope after the last one.
        self.values: list[float] = []
        self.slope = 0.0
        # By rows, what was asked for since something was last learned: the same few again and again.
        self.predicted: dict[int, float] = {}


class _Curve:
    """The data of one cost bucket."""

    __slots__ = (
        "cell_of", "cells", "corners", "count", "forgotten_after", "known_shape", "pool", "profiled", "shape", "slope",
        "typical", "usual", "window",
    )  # fmt: skip

    def __init__(self, quantile: float, window: int) -> None:
        self.window = window
        # Executions of others after which a cell has learned nothing lately. One that was slow once is not asked for
        # any more, and would stay slow.
        self.forgotten_after = _OLD * window
        self.count = 0
        self.cells: list[_Ratios | None] = [None] * _CELLS
        self.pool = _Ratios(window)
        self.profiled = False
        # The shape: straight from corner to corner, which are the points and the cells' ends.
        self.corners: list[int] = []
        self.cell_of: list[int] = []
        self.shape: list[float] = []
        self.slope = 0.0
        # By rows, what the shape said of them: the same few again and again.
        self.known_shape: dict[int, float] = {}
        self.usual = _Line(quantile)
        self.typical = _Line(_MEDIAN)

    def add(self, rows: int, seconds: float) -> None:
        at = min((rows - 1).bit_length(), _CELLS - 1)
        self.count += 1
        cell = self.cells[at]
        if cell is None or self.count - cell.latest > self.forgotten_after:
            cell = self.cells[at] = _Ratios(self.window)
        cell.latest = self.count
        count = len(cell.samples)
        refits = not self.profiled and count < cell.enough and not count & (count + 1)
        sample = rows, seconds, 1.0 if refits else seconds / (self.known_shape.get(rows) or self.shape_at(rows))
        cell.add(sample)
        self.pool.add(sample)
        if refits:
            self.fit(dict(each.middle() for each in self.cells if each is not None))
        else:
            self.usual.stale = self.typical.stale = True

    def fit(self, points: Mapping[int, float]) -> None:
        """Lead the shape through the points, none above a larger one: a disturbance makes a run longer.

        At either end it continues no lower than if half of the time there was fixed.
        """
        rows = sorted(points)
        seconds = [*accumulate((points[each] for each in reversed(rows)), min)][::-1]
        slopes = [
            (b - a) / (more - less) for (less, more), (a, b) in zip(pairwise(rows), pairwise(seconds), strict=True)
        ]
        self.slope = max([seconds[-1] / rows[-1] / 2, *slopes[-1:]])
        if rows[-1] < _ENDS[-1]:
            seconds.append(seconds[-1] + self.slope * (_ENDS[-1] - rows[-1]))
            rows.append(_ENDS[-1])
        if rows[0] > 1:
            seconds.insert(0, seconds[0] - min([seconds[0] / rows[0] / 2, *slopes[:1]]) * (rows[0] - 1))
            rows.insert(0, 1)
        self.corners = sorted({*rows, *_ENDS})
        self.cell_of = [min((corner - 1).bit_length(), _CELLS - 1) for corner in self.corners]
        self.shape = [_along(rows, seconds, 0.0, corner) for corner in self.corners]
        self.known_shape.clear()
        for ratios in (self.pool, *self.cells):
            if ratios is not None:
                ratios.reshape(self.shape_at)
        self.usual.stale = self.typical.stale = True

    def shape_at(self, rows: int) -> float:
        seconds = self.known_shape.get(rows)
        if seconds is None:
            seconds = _along(self.corners, self.shape, self.slope, rows)
            if rows <= self.corners[-1]:
                self.known_shape[rows] = seconds
        return seconds

    def draw(self, line: _Line) -> None:
        """Recompute the predictions at the corners."""
        quantile, pool = line.quantile, self.pool.ranked
        floor = 1.0
        if not self.profiled and len(pool) >= _SAY:
            floor = 0.0  # the shape consists of the samples themselves
        elif len(pool) >= _FEW:
            floor = min(1.0, pool[-1])
        pooled = self.pool.quantile(quantile, floor)
        oldest = self.count - self.forgotten_after
        ratios = [pooled] * _CELLS
        for at, each in enumerate(self.cells):
            if each is not None and each.latest >= oldest:
                ratios[at] = each.quantile(quantile, pooled)
        line.values = values = []
        highest = 0.0
        for seconds, cell in zip(self.shape, self.cell_of, strict=True):
            scaled = seconds * ratios[cell]
            if scaled > highest:  # noqa: PLR1730 - a call for each would take as long as all the rest
                highest = scaled
            values.append(highest)
        line.slope = self.slope * ratios[-1]
        line.predicted = dict(zip(self.corners, values, strict=True))
        line.stale = False

    def predict(self, rows: int, line: _Line) -> float:
        if line.stale:
            self.draw(line)
        seconds = line.predicted.get(rows)
        if seconds is None:
            seconds = _along(self.corners, line.values, line.slope, rows)
            if rows <= self.corners[-1]:
                line.predicted[rows] = seconds
        return seconds


class LatencyModel:
    """Predicts the execution time of one model.

    Args:
        quantile: Of the ratios, 0 to 1.
        window: Ratios kept per cell, and per bucket.

    A model that was neither seeded nor observed predicts 0.0 for everything, so that nothing is refused blindly.

    Attributes:
        known: Whether there is any data.
        buckets: The cost buckets that were seeded or observed, ascending.
    """

    def __init__(self, quantile: float = 0.95, window: int = 32) -> None:
        self._quantile = quantile
        self._window = window
        self._curves: dict[int, _Curve] = {}
        self.known = False
        self.buckets: tuple[int, ...] = ()
        # Whether the buckets are those of a profile: what runs at others teaches these, and is predicted between them.
        self._profiled = False
        self._observed = 0
        # By cost bucket, known or not: the arguments and the answer of `best` since something was last learned.
        self._best: dict[int, tuple[int, float, tuple[int, float]]] = {}
        # The same of `enough`, and by rows and bucket what was predicted between two known buckets.
        self._enough: dict[int, tuple[int, int]] = {}
        self._between: dict[tuple[int, int], float] = {}

    def seed(self, points: Iterable[tuple[int, int, float]]) -> None:
        """Use the points of a profile or a warm-up as the shape of their buckets.

        Seeding again, e.g. when a replica starts, replaces the shape and keeps the observations.

        Args:
            points: ``(rows, bucket, seconds)``; for several of the same rows and bucket the longest time counts. Points
                with rows below 1 or a time that is not positive and finite are ignored.
        """
        by_bucket: dict[int, dict[int, float]] = {}
        for rows, bucket, seconds in points:
            if rows >= 1 and 0.0 < seconds < inf:
                of_bucket = by_bucket.setdefault(bucket, {})
                of_bucket[rows] = max(seconds, of_bucket.get(rows, 0.0))
        for bucket, of_bucket in by_bucket.items():
            curve = self._curve(bucket)
            curve.profiled = True
            curve.fit(of_bucket)
            self._profiled = self._profiled or bucket > 0
        self._best.clear()
        self._enough.clear()
        self._between.clear()

    def observe(self, rows: int, bucket: int, seconds: float) -> None:
        """Learn from one execution. Rows below 1, or a time not positive and finite, are ignored.

        Lengths between two that were profiled are too many to learn each: such an execution teaches both neighbours the
        ratio of its time to their interpolated shapes.
        """
        if rows >= 1 and 0.0 < seconds < inf:
            self._observed += 1
            curve = self._curves.get(bucket)
            if curve is not None or not self._profiled:
                (curve or self._curve(bucket)).add(rows, seconds)
                if len(self._curves) > 1:
                    self._curves[bucket] = self._curves.pop(bucket)
            else:
                ratio = seconds / self._unseen(self._shape, rows, bucket)
                at = bisect_left(self.buckets, bucket)
                for near in self.buckets[max(0, at - 1) : at + 1]:
                    self._curves[near].add(rows, ratio * self._shape(rows, near))
            self._best.clear()  # for every run: a call would cost more
            self._enough.clear()
            self._between.clear()

    def predict(self, rows: int, bucket: int = 0) -> float:
        """Seconds of a batch of ``rows`` rows in ``bucket``. Never decreases with rows. 0.0 if unknown."""
        curve = self._curves.get(bucket)
        if curve is None:
            between = self._between.get((rows, bucket))
            if between is None:
                if len(self._between) >= _MAX_BETWEEN:
                    self._between.clear()
                between = self._between[rows, bucket] = self._unseen(self.predict, rows, bucket)
            return between
        line = curve.usual
        seconds = None if line.stale else line.predicted.get(rows)
        return curve.predict(rows, line) if seconds is None else seconds

    def typical(self, rows: int, bucket: int = 0) -> float:
        """Seconds by the median, whatever the model's quantile; otherwise as `predict`."""
        curve = self._curves.get(bucket)
        return self._unseen(self.typical, rows, bucket) if curve is None else curve.predict(rows, curve.typical)

    def rows_within(self, seconds: float, bucket: int, max_rows: int) -> int:
        """The most rows, up to ``max_rows``, predicted to take at most ``seconds``; 0 if one row takes longer."""
        if self.predict(max_rows, bucket) <= seconds:
            return max_rows
        low, high = 0, max_rows
        curve = self._curves.get(bucket)
        if curve is not None:
            # Between which corners it is; they are in order, as predictions are.
            at = bisect_right(curve.usual.values, seconds)
            if not at:
                return 0
            low = curve.corners[at - 1]
            if at < len(curve.corners):
                high = min(high, curve.corners[at])
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
            bucket: The next larger known one stands in for an unknown one.
            slo_s: Latency target of a batch.

        Returns:
            ``(max_rows, 0.0)`` if unknown.
        """
        cached = self._best.get(bucket)
        if cached is None or cached[0] != max_rows or cached[1] != slo_s:
            if not self.buckets:
                return max_rows, 0.0
            if len(self._best) >= _MAX_BUCKETS:
                self._best.clear()
            known = self.buckets[min(bisect_left(self.buckets, bucket), len(self.buckets) - 1)]
            rows = self.rows_within(slo_s, known, max_rows) or 1
            cached = self._best[bucket] = (max_rows, slo_s, (rows, self.predict(rows, known) / rows))
        return cached[2]

    def enough(self, bucket: int, max_rows: int) -> int:
        """The rows beyond which twice as many save less than a twentieth of the time per row, by the median.

        After every 16th execution it is twice that: sizes that never run cannot show that they would pay, and the
        warm-up may have been disturbed.

        Returns:
            A power of two, or ``max_rows`` if it is less, or nothing is known.
        """
        cached = self._enough.get(bucket)
        if cached is None or cached[0] != max_rows:
            rows = max_rows
            if self.known:
                size = rows = 1
                while size < max_rows:
                    once_s, twice_s = self.typical(size, bucket) + _RUN_S, self.typical(2 * size, bucket) + _RUN_S
                    if twice_s < PAYS * 2 * once_s:
                        rows = 2 * size
                    size *= 2
                if self._observed % _EXPLORE == _EXPLORE - 1:
                    rows *= 2
            if len(self._enough) >= _MAX_BUCKETS:
                self._enough.clear()
            cached = self._enough[bucket] = max_rows, min(rows, max_rows)
        return cached[1]

    def pays(self, rows: int, bucket: int, more: int, of: int) -> bool:
        """Whether rows are cheaper in a batch than in one of their own, padding included, by the median.

        Args:
            rows: Of the batch.
            bucket: Its cost bucket.
            more: The rows that may join it.
            of: Their cost bucket.
        """
        added = self.typical(rows + more, max(bucket, of)) - self.typical(rows, bucket)
        return added <= PAYS * (self.typical(more, of) + _RUN_S)

    def _shape(self, rows: int, bucket: int) -> float:
        return self._curves[bucket].shape_at(rows)

    def _curve(self, bucket: int) -> _Curve:
        curve = self._curves.get(bucket)
        if curve is None:
            if len(self._curves) >= _MAX_BUCKETS:
                del self._curves[next(iter(self._curves))]
            curve = self._curves[bucket] = _Curve(self._quantile, self._window)
            self.buckets = tuple(sorted(self._curves))
            self.known = True
        return curve

    def _unseen(self, predict: Callable[[int, int], float], rows: int, bucket: int) -> float:
        """Between two known buckets: a straight line. Outside: in proportion, half of a smaller one's cost fixed."""
        buckets = self.buckets
        if not buckets:
            return 0.0
        at = bisect_left(buckets, bucket)
        if 0 < at < len(buckets):
            low, high = buckets[at - 1], buckets[at]
            below, above = predict(rows, low), predict(rows, high)
            return below + (above - below) * (bucket - low) / (high - low)
        nearest = buckets[0] if at == 0 else buckets[-1]
        seconds = predict(rows, nearest)
        if nearest <= 0 or bucket < 0:
            return seconds
        return seconds * (bucket / nearest if bucket > nearest else 0.5 + 0.5 * bucket / nearest)


def _along(rows: Sequence[int], seconds: Sequence[float], slope: float, at: int) -> float:
    """The height at ``at`` of straight lines through points in order, with this slope after the last."""
    place = bisect_left(rows, at)
    if place == len(rows):
        return seconds[-1] + slope * (at - rows[-1])
    if rows[place] == at or not place:
        return seconds[place]
    low, below = rows[place - 1], seconds[place - 1]
    return below + (seconds[place] - below) * (at - low) / (rows[place] - low)
