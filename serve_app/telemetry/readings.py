"""Metrics read at each scrape from existing numbers, at no cost for requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serve_app.telemetry.model_names import ModelNames, Samples

__all__ = ["Gauge", "Readings", "Samples", "Total"]

Source = TypeVar("Source")


class Gauge(Generic[Source]):
    """A number that rises and falls.

    Args:
        read: Makes samples from the table's source.
        together: Merges values of models without series of their own.
    """

    _SUFFIX: ClassVar = ""
    _RISES: ClassVar = False

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        read: Callable[[Source], Samples],
        *,
        together: Callable[[float, float], float] = float.__add__,
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._read = read
        self.together = together

    def families(self, source: Source, names: ModelNames | None = None) -> Iterator[Metric]:
        """The present metrics; ``names``: see `Readings`."""
        family = self._family(self._name, self._documentation)
        samples = self._read(source)
        if names is not None and self._labels[:1] == ("model",):
            samples = names.joined(samples, self.together, total=self._RISES)
        for labels, value in samples:
            family.add_metric(labels, value)
        yield family

    def _family(self, name: str, documentation: str) -> GaugeMetricFamily | CounterMetricFamily:
        return GaugeMetricFamily(name, documentation, labels=self._labels)


class Total(Gauge[Source]):
    """A counter; its name has no suffix ``_total`` here. Otherwise like `Gauge`."""

    _SUFFIX = "_total"
    _RISES = True

    def _family(self, name: str, documentation: str) -> GaugeMetricFamily | CounterMetricFamily:
        return CounterMetricFamily(name, documentation, labels=self._labels)


class Readings(Collector, Generic[Source]):
    """A table of metrics.

    Args:
        source: Makes the common source, once per scrape.
        names: Models with series of their own; ``None``: all.
    """

    def __init__(
        self, table: Sequence[Gauge[Source]], source: Callable[[], Source], names: ModelNames | None = None
    ) -> None:
        self._table = table
        self._source = source
        self._names = names

    def collect(self) -> Iterator[Metric]:
        """Implement `Collector`."""
        source = self._source()
        for metric in self._table:
            yield from metric.families(source, self._names)
