"""What the response cache counts, in Prometheus' terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry

from serve_app.router.cache.store import CacheStore
from serve_app.telemetry.model_names import ModelNames
from serve_app.telemetry.readings import Gauge, Readings, Samples, Total
from serve_app.telemetry.series import Count, Counter, Histogram

_REDIS_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)


class CacheMetrics:
    """Counts by model how requests ended that could have come from the cache.

    Args:
        names: Which models have series of their own.

    Attributes:
        answers: By model and result: ``hit``, ``miss`` or ``shared``.
    """

    def __init__(self, names: ModelNames) -> None:
        self._names = names
        self.answers = Counter(
            "serve_app_cache_answers",
            "Answers of models with a response cache: hit (found), miss (executed), shared (with the same in flight).",
            ("model", "result"),
            names=names,
        )

    def register(self, registry: CollectorRegistry, stores: Mapping[str, CacheStore]) -> None:
        """Show them, and the state of the stores by model, on a page of metrics."""
        registry.register(self.answers)
        registry.register(Readings(_STORES, lambda: stores, self._names))


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
        registry.register(Readings(_REDIS, lambda: self))

    def failed(self, operation: str) -> None:
        """Count a call that failed."""
        self._errors.of(operation).value += 1


_REDIS: Final[tuple[Gauge[RedisMetrics], ...]] = (
    Gauge(
        "serve_app_cache_redis_up",
        "Whether Redis is asked (1) or down (0).",
        (),
        lambda redis: [((), redis.up.value)],
    ),
)


def _of_store(read: Callable[[CacheStore], float]) -> Callable[[Mapping[str, CacheStore]], Samples]:
    return lambda stores: [((model,), read(store)) for model, store in stores.items()]


_STORES: Final = (
    Gauge(
        "serve_app_cache_bytes",
        "Memory that cached answers take in the router.",
        ("model",),
        _of_store(lambda store: store.nbytes),
    ),
    Gauge("serve_app_cache_entries", "Cached answers in the router.", ("model",), _of_store(len)),
    Total(
        "serve_app_cache_evictions",
        "Cached answers that had to make room for others.",
        ("model",),
        _of_store(lambda store: store.evictions),
    ),
)
