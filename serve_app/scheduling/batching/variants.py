"""Latency per variant: builds of a model differ in speed, and must not spoil the exact model's prediction."""

from __future__ import annotations

from collections.abc import Iterable

from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.health.breaker import ALL, CircuitBreaker


class VariantLatency:
    """The latency models of one model: the exact build's, and one per variant that has run.

    A variant that was neither seeded nor observed is predicted to take as long as the exact model. Variants are made to
    be cheaper, so that is the careful guess.

    Attributes:
        exact: Of the exact model.
        variants: By name, of variants that were seeded or observed.
        limited: The circuit breakers that are not closed: their variants stand in for the exact model for probes only.
        whole: Variants whose requests are run one by one, without sharing a bundle.
    """

    __slots__ = ("exact", "limited", "variants", "whole")

    def __init__(self) -> None:
        self.exact = LatencyModel()
        self.variants: dict[str, LatencyModel] = {}
        self.limited: dict[str, CircuitBreaker] = {}
        self.whole: set[str] = set()

    def of(self, variant: str) -> LatencyModel:
        """The latency model of a variant; ``""`` is the exact model."""
        return self.variants.get(variant, self.exact) if variant else self.exact

    def has(self, variant: str) -> bool:
        """Whether this variant itself was measured, and may stand in for the exact model."""
        return variant in self.variants and (variant not in self.limited or self.limited[variant].has_room())

    def places(self, variant: str) -> int:
        """Number of further entries for which this variant may stand in for the exact model now."""
        breaker = self.limited.get(variant)
        return ALL if breaker is None else breaker.places()

    def observe(self, rows: int, bucket: int, seconds: float, variant: str) -> None:
        """Learn from one execution, as `LatencyModel.observe`."""
        self._learning(variant).observe(rows, bucket, seconds)
        self._drop_unknown(variant)

    def seed(self, points: Iterable[tuple[int, int, float, str]]) -> None:
        """Load warm-up profiles, as `LatencyModel.seed`, of points ``(rows, bucket, seconds, variant)``."""
        by_variant: dict[str, list[tuple[int, int, float]]] = {}
        for rows, bucket, seconds, variant in points:
            by_variant.setdefault(variant, []).append((rows, bucket, seconds))
        for variant, profile in by_variant.items():
            self._learning(variant).seed(profile)
            self._drop_unknown(variant)

    def _learning(self, variant: str) -> LatencyModel:
        return self.variants.setdefault(variant, LatencyModel()) if variant else self.exact

    def _drop_unknown(self, variant: str) -> None:
        """Remove a variant without valid data, since the exact model predicts better than nothing."""
        if variant and not self.variants[variant].known:
            del self.variants[variant]
