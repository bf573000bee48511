"""The interface for observing the dispatcher, e.g. by metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from serve_app.domain.priority import Priority
from serve_app.payloads import BundleResult
from serve_app.scheduling.entry import Entry


class Observer(Protocol):
    """Observes all events of entries and bundles. Must not raise and must be fast."""

    def rejected(self, model: str, priority: Priority, code: str) -> None:
        """An entry was refused at once."""

    def ended(self, entry: Entry, outcome: str, queue_s: float, total_s: float) -> None:
        """An accepted entry ended.

        ``outcome`` is ``ok``, ``cancelled``, ``given_up``, ``poisoned``, or an error code. An answer in
        parts ends it with the first, when its ``deadline`` is already that of the whole.
        """

    def part(self, model: str) -> None:
        """A part of an answer arrived. The first also ends its entry with ``ok``."""

    def stream_ended(self, model: str, outcome: str, seconds: float) -> None:
        """A streamed answer ended, with the time since its request arrived.

        ``outcome`` is ``ok``, ``cancelled``, or an error code.
        """

    def fell_back(self, entry: Entry) -> None:
        """A fallback, ``variant``, answered an entry for the exact model. Reported besides its end."""

    def bundle_done(self, model: str, rows: int, entries: int, result: BundleResult) -> None:
        """A bundle came back."""

    def served(self, entries: Sequence[Entry], result: BundleResult) -> None:
        """Entries of a returned bundle were answered."""

    def replica_lost(self, model: str) -> None:
        """A bundle failed with its replica."""

    def replica_unresponsive(self, model: str) -> None:
        """A replica was unresponsive for too long."""

    def recovered(self, model: str, seconds: float) -> None:
        """A model has as many usable replicas again as before a loss."""
