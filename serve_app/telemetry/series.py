"""Counters and histograms of one event loop, for Prometheus.

`prometheus_client`'s own, for any number of threads, lock for each number, which is most of the cost of counting a
request. These do not lock, and look the same when scraped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial
from itertools import accumulate
from math import inf
from operator import add
from typing import Any, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from serve_app.telemetry.model_names import ModelNames, Samples

_Declared = TypeVar("_Declared")


class Count:
    """One series of a `Counter`.

    Attributes:
        value: Add to it.
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Counter(Collector):
    """Counts by labels.

    Args:
        name: Without the suffix ``_total``.
        names: Models with series of their own, if the first label is the model; ``None``: all.
    """

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], *, names: ModelNames | None = None
    ) -> None:
        self._described = (name, documentation)
        self._labels = tuple(labels)
        self._names = names
        self._series: dict[tuple[str, ...], Count] = {}

    def of(self, *labels: str) -> Count:
        """The series with these labels, for keeping."""
        return self._series.setdefault(labels, Count())

    def forget(self, first: str) -> None:
        """Drop the series with this first label; kept ones are no longer shown."""
        self._series = {labels: series for labels, series in self._series.items() if labels[0] != first}

    def collect(self) -> Iterator[Metric]:
        """Implement `Collector`."""
        family = CounterMetricFamily(*self._described, labels=self._labels)
        samples: Samples = ((labels, count.value) for labels, count in self._series.items())
        for labels, value in samples if self._names is None else self._names.joined(samples, total=True):
            family.add_metric(labels, value)
        yield family


class Distribution:
    """One series of a `Histogram`."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * len(bounds)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value other than NaN."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def plus(self, other: Distribution) -> Distribution:
        """The sum of both, which have the same bounds."""
        both = Distribution(self._bounds)
        both.counts = list(map(add, self.counts, other.counts))
        both.total = self.total + other.total
        return both


class Histogram(Collector):
    """Counts values in buckets, by labels.

    Args:
        buckets: Upper bounds, ascending and at least 0; infinity is added.
        names: As in `Counter`.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        buckets: Sequence[float],
        *,
        names: ModelNames | None = None,
    ) -> None:
        self._described = (name, documentation)
        self._labels = tuple(labels)
        self._bounds = (*map(float, buckets), inf)
        self._names = tuple(map(floatToGoString, self._bounds))
        self._models = names
        self._series: dict[tuple[str, ...], Distribution] = {}

    def of(self, *labels: str) -> Distribution:
        """The series with these labels, for keeping."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = Distribution(self._bounds)
        return series

    def forget(self, first: str) -> None:
        """Drop the series with this first label; kept ones are no longer shown."""
        self._series = {labels: series for labels, series in self._series.items() if labels[0] != first}

    def collect(self) -> Iterator[Metric]:
        """Implement `Collector`."""
        family = HistogramMetricFamily(*self._described, labels=self._labels)
        for labels, series in self._shown().items():
            buckets = list(zip(self._names, map(float, accumulate(series.counts)), strict=True))
            family.add_metric(labels, buckets, series.total)
        yield family

    def _shown(self) -> dict[tuple[str, ...], Distribution]:
        if self._models is None:
            return self._series
        found: dict[tuple[str, ...], Distribution] = {}
        for (model, *others), series in self._series.items():
            labels = (self._models.settled(model), *others)
            found[labels] = found[labels].plus(series) if labels in found else series
        return found


def histogram(name: str, documentation: str, labels: Sequence[str], buckets: Sequence[float]) -> dict[str, Any]:
    """Metadata of a dataclass's field: a `Histogram`, whose `Distribution` a `Family` assigns to the field."""
    return {"histogram": partial(Histogram, name, documentation, labels, buckets)}


class Family(Collector, Generic[_Declared]):
    """Histograms with the same labels that are observed together.

    Args:
        declared: A dataclass whose fields declare them: ``field(metadata=histogram(...))``.
        names: As in `Counter`.
    """

    def __init__(self, declared: type[_Declared], *, names: ModelNames | None = None) -> None:
        self._declared = declared
        self._metrics: dict[str, Histogram] = {
            each.name: each.metadata["histogram"](names=names)
            for each in fields(declared)  # type: ignore[arg-type]
            if "histogram" in each.metadata
        }

    def of(self, *labels: str, **others: Any) -> _Declared:
        """The series with these labels, for keeping.

        Args:
            others: Other fields of the dataclass.
        """
        return self._declared(**{name: metric.of(*labels) for name, metric in self._metrics.items()}, **others)

    def forget(self, first: str) -> None:
        """Drop the series with this first label; kept ones are no longer shown."""
        for metric in self._metrics.values():
            metric.forget(first)

    def collect(self) -> Iterator[Metric]:
        """Implement `Collector`."""
        for metric in self._metrics.values():
            yield from metric.collect()
