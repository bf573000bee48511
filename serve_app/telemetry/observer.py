"""Who is told of everything that the dispatcher does, as the metrics are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from serve_app.payloads import BundleResult
from serve_app.scheduling.entry import Entry, Priority


class Observer(Protocol):
    """Told of everything that happens to entries and bundles. Must not raise and must be quick."""

    def rejected(self, model: str, priority: Priority, code: str) -> None:
        """An entry was refused at once."""

    def ended(self, entry: Entry, outcome: str, queue_s: float, total_s: float) -> None:
        """An accepted entry ended.

        ``outcome`` is ``ok``, ``cancelled``, ``given_up``, ``poisoned``, or an error code.
        """

    def part(self, model: str) -> None:
        """A part of an answer has come. With the first of them its entry has ended with ``ok``."""

    def stream_ended(self, model: str, outcome: str, seconds: float) -> None:
        """An answer of which parts have come has ended, so long after its request came.

        ``outcome`` is ``ok``, ``cancelled``, or an error code.
        """

    def fell_back(self, entry: Entry) -> None:
        """An entry for the exact model was answered by a fallback, its ``variant``. Told besides its end."""

    def bundle_done(self, model: str, rows: int, entries: int, result: BundleResult) -> None:
        """A bundle came back."""

    def served(self, entries: Sequence[Entry], result: BundleResult) -> None:
        """These entries of a bundle that came back are answered."""

    def replica_lost(self, model: str) -> None:
        """A bundle failed because its replica did."""

    def replica_unresponsive(self, model: str) -> None:
        """A replica was unresponsive for too long."""

    def recovered(self, model: str, seconds: float) -> None:
        """A model has as many usable replicas again as before it lost one."""
