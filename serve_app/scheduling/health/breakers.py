"""The breakers of one model, one per build, and the fate of entries whose breaker is open.

An entry for the exact model goes to the first of the model's fallbacks whose breaker lets it through; one that names a
variant, or forbids fallbacks, is refused with the time until the next probe. The same holds for entries queued when a
breaker opens. Failures of an ejected replica do not count for its model.
"""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

from serve_app.errors import ModelUnavailable
from serve_app.scheduling.decisions import Change, Rejection
from serve_app.scheduling.entry import EXACT_ONLY, Entry
from serve_app.scheduling.health.breaker import BundleOutcome, CircuitBreaker, State
from serve_app.scheduling.health.ejection import Ejection
from serve_app.scheduling.queueing.queue import ModelQueue
from serve_app.scheduling.settings import BreakerSettings, ModelScheduling
from serve_app.scheduling.slots import Replica, Slots

_SHORTEST_RETRY_S = 1.0


class Refused(NamedTuple):
    """An entry that was queued when its breaker opened, with the refusal."""

    entry: Entry
    why: Rejection


class Breakers:
    """The breakers of one model.

    Args:
        limited: Receives the breakers that are not closed; read when fallbacks are chosen.

    Attributes:
        by_variant: All breakers so far; the exact model's is under ``""``.
        ejection: Of the model's replicas.
        tripped: Whether any of them is not closed.
        refused: Number of entries refused so far, by requested variant.
        changes: Changes since they were last taken.
    """

    __slots__ = ("_limited", "_model", "_settings", "by_variant", "changes", "ejection", "refused", "tripped")

    def __init__(self, model: ModelScheduling, settings: BreakerSettings, limited: dict[str, CircuitBreaker]) -> None:
        self._model = model
        self._settings = settings
        self._limited = limited
        self.by_variant: dict[str, CircuitBreaker] = {}
        self.ejection = Ejection(settings)
        self.tripped = False
        self.refused: dict[str, int] = {}
        self.changes: list[Change] = []

    def observe(self, variant: str, outcome: BundleOutcome, replica: Replica, slots: Slots, now: float) -> None:
        """Count one answer of a replica, before its slot is released."""
        if replica.ejected_until is not None:
            return
        breaker = self.by_variant.get(variant)
        if breaker is None:
            breaker = self.by_variant[variant] = CircuitBreaker(self._settings, now)
        ejection = self.ejection
        if (outcome is BundleOutcome.FAILURE or ejection.records) and ejection.observe(outcome, replica, slots, now):
            breaker.forgive()
            assert replica.ejected_until is not None
            self.changes.append(Change(self._model.name, variant, replica.name, "ejected", replica.ejected_until - now))
            return
        before = breaker.state
        breaker.observe(outcome, now)
        if breaker.state is not before:
            self._changed(variant, breaker, now)

    def admit(self, entry: Entry, now: float) -> Rejection | None:
        """Let an entry pass, to a fallback if need be, or return the refusal.

        Args:
            entry: Not queued. Its variant and batch key change if a fallback takes it.
        """
        if not self.tripped:
            return None
        self.poll(now)
        if self._admits(entry.variant, entry):
            return None
        if not entry.batch_key:
            for fallback in self._model.fallbacks:
                if self._admits(fallback, entry):
                    entry.variant = entry.batch_key = fallback
                    return None
        builds = (entry.variant,) if entry.batch_key else ("", *self._model.fallbacks)
        return self._refuse(entry.variant, builds, now)

    def precheck(self, now: float) -> Rejection | None:
        """Refuse early if no build of the model would take an entry. Reserves nothing."""
        if not self.tripped:
            return None
        self.poll(now)
        builds = ("", *self._model.variants)
        for variant in builds:
            breaker = self.by_variant.get(variant)
            if breaker is None or breaker.has_room():
                return None
        return self._refuse("", builds, now)

    def poll(self, now: float) -> None:
        """Let probes through breakers that have been open for long enough."""
        for variant, breaker in self.by_variant.items():
            if breaker.state is State.OPEN:
                breaker.poll(now)
                if breaker.state is not State.OPEN:
                    self._changed(variant, breaker, now)

    @property
    def next_poll(self) -> float:
        """When `poll` changes anything, seconds; ``inf``: not before another event."""
        return min([breaker.next_poll for breaker in self._limited.values()], default=inf)

    def sweep(self, queue: ModelQueue, now: float) -> list[Refused]:
        """Remove queued entries of open breakers, or move them to a fallback. The caller ends those returned."""
        self.poll(now)
        refused: list[Refused] = []
        for variant, breaker in self._limited.items():
            if breaker.state is not State.OPEN:
                continue
            for batch_key in (variant,) if variant else ("", EXACT_ONLY):
                for waiting in (*queue.fresh, *queue.retry):
                    while (entry := waiting.take_head(batch_key)) is not None:
                        why = self.admit(entry, now)
                        if why is None:
                            waiting.push(entry)
                        else:
                            refused.append(Refused(entry, why))
        return refused

    def snapshot(self, slots: Slots, now: float) -> dict[str, Any]:
        """The breakers and the ejected replicas, JSON-able; see docs/faults.md."""
        return {
            "builds": {
                variant or "exact": {
                    "state": breaker.state.value,
                    "since_s": now - breaker.since,
                    "failures": breaker.failures,
                    "retry_in_s": breaker.retry_in_s(now),
                    "reason": breaker.reason,
                }
                for variant, breaker in self.by_variant.items()
            },
            "ejected_replicas": {
                name: {"retry_in_s": max(0.0, replica.ejected_until - now)}
                for name, replica in slots.replicas.items()
                if replica.ejected_until is not None
            },
        }

    def _admits(self, variant: str, entry: Entry) -> bool:
        breaker = self.by_variant.get(variant)
        return breaker is None or breaker.admit(entry)

    def _refuse(self, variant: str, builds: tuple[str, ...], now: float) -> Rejection:
        self.refused[variant] = self.refused.get(variant, 0) + 1
        retry_s = max(_SHORTEST_RETRY_S, min(self.by_variant[build].retry_in_s(now) for build in builds))
        what = f"model {self._model.name}" + (f", variant {variant}," if variant else "")
        return Rejection(
            ModelUnavailable.code,
            f"the circuit breaker of {what} is open after repeated failures; try again in {retry_s:.0f} s",
            retry_s,
        )

    def _changed(self, variant: str, breaker: CircuitBreaker, now: float) -> None:
        if breaker.state is State.CLOSED:
            del self._limited[variant]
        else:
            self._limited[variant] = breaker
        self.tripped = bool(self._limited)
        self.changes.append(
            Change(
                self._model.name,
                variant,
                None,
                breaker.state.value,
                breaker.retry_in_s(now),
                breaker.reason if breaker.state is State.OPEN else "",
            )
        )
