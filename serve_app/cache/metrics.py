"""What the response cache counts, in Prometheus' terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry

from serve_app.cache.store import CacheStore
from serve_app.telemetry.model_names import ModelNames
from serve_app.telemetry.readings import Gauge, Readings, Samples, Total
from serve_app.telemetry.series import Counter


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
