"""Metrics that are read when Prometheus asks, where the numbers are kept anyway: requests pay nothing for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Source = TypeVar("Source")
Samples = Iterable[tuple[Sequence[str], float]]
"""Values of the labels, and the number."""


class Gauge(Generic[Source]):
    """A number that rises and falls.

    Args:
        name: Of the metric.
        documentation: For people.
        labels: Names of the labels.
        read: Makes the samples of what the table reads.
        former: The name that it had in version 0.1, under which it is shown as well until version 0.2.
    """

    _SUFFIX: ClassVar = ""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        read: Callable[[Source], Samples],
        *,
        former: str = "",
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._read = read
        self._former = former

    def families(self, source: Source) -> Iterator[Metric]:
        """What there is to say now."""
        family = self._family(self._name, self._documentation)
        for labels, value in self._read(source):
            family.add_metric(labels, value)
        yield family
        if self._former:
            former = self._family(self._former, f"Former name of {self._name}{self._SUFFIX}, until version 0.2.")
            for sample in family.samples:
                former.add_metric(tuple(sample.labels.values()), sample.value)
            yield former

    def _family(self, name: str, documentation: str) -> GaugeMetricFamily | CounterMetricFamily:
        return GaugeMetricFamily(name, documentation, labels=self._labels)


class Total(Gauge[Source]):
    """A number that only rises: a counter, whose name has no suffix ``_total`` here. Otherwise as `Gauge`."""

    _SUFFIX = "_total"

    def _family(self, name: str, documentation: str) -> GaugeMetricFamily | CounterMetricFamily:
        return CounterMetricFamily(name, documentation, labels=self._labels)


class Readings(Collector, Generic[Source]):
    """A table of metrics.

    Args:
        table: The metrics.
        source: Makes what they read, once for all of them.
    """

    def __init__(self, table: Sequence[Gauge[Source]], source: Callable[[], Source]) -> None:
        self._table = table
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        source = self._source()
        for metric in self._table:
            yield from metric.families(source)
