"""What the response cache counts, in Prometheus' terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serve_app.router.cache.store import CacheStore
from serve_app.telemetry.series import Count, Counter, Histogram

_REDIS_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)


class CacheMetrics:
    """Counts by model how requests ended that could have come from the cache.

    Attributes:
        answers: By model and result: ``hit``, ``miss`` or ``shared``.
    """

    def __init__(self) -> None:
        self.answers = Counter(
            "serve_app_cache_answers",
            "Answers of models with a response cache: hit (found), miss (executed), shared (with the same in flight).",
            ("model", "result"),
        )

    def register(self, registry: CollectorRegistry, stores: Mapping[str, CacheStore]) -> None:
        """Show them, and the state of the stores by model, on a page of metrics."""
        registry.register(self.answers)
        registry.register(_Stores(stores))


class RedisMetrics:
    """Counts calls to a Redis server.

    Attributes:
        seconds: How long calls took that were answered, by operation.
        up: 1 while the server is asked.
        late: Lookups that were not waited for.
        dropped: Writes that found no room in the queue.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "serve_app_cache_redis_seconds", "Calls to Redis that were answered.", ("operation",), _REDIS_BUCKETS
        )
        self._errors = Counter(
            "serve_app_cache_redis_errors",
            "Calls to Redis that failed or took too long, by operation; value: what was found there was not usable.",
            ("operation",),
        )
        self.up = Count()
        self.late = self._errors.of("late")
        self.dropped = self._errors.of("dropped")
        registry.register(self.seconds)
        registry.register(self._errors)
        registry.register(_Gauge("serve_app_cache_redis_up", "Whether Redis is asked (1) or down (0).", self.up))

    def failed(self, operation: str) -> None:
        """Count a call that failed."""
        self._errors.of(operation).value += 1


class _Gauge(Collector):
    def __init__(self, name: str, documentation: str, count: Count) -> None:
        self._described = (name, documentation)
        self._count = count

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(*self._described, value=self._count.value)


class _Stores(Collector):
    """Reads the stores when Prometheus asks."""

    def __init__(self, stores: Mapping[str, CacheStore]) -> None:
        self._stores = stores

    def collect(self) -> Iterator[Metric]:
        gauges: tuple[tuple[str, str, Callable[[CacheStore], float]], ...] = (
            ("serve_app_cache_bytes", "Memory that cached answers take in the router.", lambda store: store.nbytes),
            ("serve_app_cache_entries", "Cached answers in the router.", len),
        )
        for name, documentation, read in gauges:
            gauge = GaugeMetricFamily(name, documentation, labels=("model",))
            for model, store in self._stores.items():
                gauge.add_metric((model,), read(store))
            yield gauge
        evictions = CounterMetricFamily(
            "serve_app_cache_evictions", "Cached answers that had to make room for others.", labels=("model",)
        )
        for model, store in self._stores.items():
            evictions.add_metric((model,), store.evictions)
        yield evictions
