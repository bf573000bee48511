"""Ejection: a replica that fails where the others do not gets no work for a while.

A replica is ejected one failure before its model's breaker would open (`scheduling.health.breaker` defines failures):
for ``ejection_s``, and each time again for that much longer, up to ten times as long. Every ``ejection_s`` of work
without another ejection takes one time back. After its return, its first failure ejects it again.

At most the fraction ``max_ejected`` of a model's replicas is ejected, and never the last one that could be chosen.
Failures of the rest count for the breaker. If other replicas disappear later, or are held, some return early, so that
this still holds (`Slots.release_holds`).

Source: Envoy's outlier detection (consecutive failures, ``base_ejection_time``, ``max_ejection_percent``).
"""

from __future__ import annotations

from serve_app.scheduling.health.breaker import BundleOutcome
from serve_app.scheduling.settings import BreakerSettings
from serve_app.scheduling.slots import Replica, Slots

_LONGEST = 10


class _Record:
    """Failures of one replica."""

    __slots__ = ("failures", "times", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.times = 0
        self.until = 0.0


class Ejection:
    """Ejects replicas of one model.

    Attributes:
        count: Ejections so far.
        records: By replicas that have failed.
    """

    __slots__ = ("_settings", "_threshold", "count", "records")

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._threshold = max(1, settings.consecutive_failures - 1)
        self.records: dict[Replica, _Record] = {}
        self.count = 0

    def observe(self, outcome: BundleOutcome, replica: Replica, slots: Slots, now: float) -> bool:
        """Count an answer of a replica that is not ejected. Returns whether it is now."""
        record = self.records.get(replica) if self.records else None
        if outcome is not BundleOutcome.FAILURE:
            if record is not None and outcome is BundleOutcome.ANSWERED:
                record.failures = 0
            return False
        if record is None:
            self.records = {known: record for known, record in self.records.items() if known.listed}
            record = self.records[replica] = _Record()
        record.failures += 1
        if record.failures < self._threshold or not self._may_eject(replica, slots):
            return False
        ejection_s = self._settings.ejection_s
        worked = max(0, int((now - record.until) / ejection_s)) if record.times else 0  # it may have come back early
        record.times = min(_LONGEST, max(0, record.times - worked) + 1)
        record.until = now + record.times * ejection_s
        record.failures = self._threshold - 1
        self.count += 1
        slots.eject(replica, record.until)
        return True

    def _may_eject(self, replica: Replica, slots: Slots) -> bool:
        if not replica.listed or replica.name is None:
            return False
        ejected = sum(other.ejected_until is not None for other in slots.replicas.values())
        others = slots.usable - (replica.held_until is None)
        return others > 0 and ejected + 1 <= self._settings.max_ejected * len(slots.replicas)
