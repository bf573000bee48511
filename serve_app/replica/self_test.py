"""Tests whether the model still works after an entry has failed, to distinguish bad inputs from bad models or replicas.

The model runs an input that it could run at the start. On success the failed input is to blame, otherwise the model or
the replica. Routers count only the latter towards circuit breakers and ejections
(`serve_app.scheduling.health.breaker`), so that clients cannot lock out others with inputs that no model could run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from threading import Lock

from serve_app.backends.backend import Backend, SessionLost
from serve_app.backends.outputs import not_finite
from serve_app.payloads import Tensors
from serve_app.replica.joining import Joining

logger = logging.getLogger(__name__)

_AT_MOST_EVERY_S = 1.0
"""A client that sends bad inputs all the time must not double the replica's work."""

_GIVEN_UP_AFTER = 3
"""Tests in a row that a replica may fail before it asks to be replaced."""


class SelfTest:
    """The self-test of one replica. For threads that hold the session.

    Args:
        backends: By variant. Loaded.
        examples: By variant, an input that should run.
        joining: Which of them have rows; ``None``: all.
        refuse_non_finite: Whether NaN or infinity in an output is a failure.
        on_lost: Called when a session has ended, before its entries are answered.
    """

    def __init__(
        self,
        name: str,
        backends: Mapping[str, Backend],
        examples: Mapping[str, Tensors],
        *,
        joining: Joining | None = None,
        refuse_non_finite: bool = False,
        on_lost: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._backends = backends
        self._examples = dict(examples)
        self._joining = joining or Joining(name)
        self._refuse_non_finite = refuse_non_finite
        self._on_lost = on_lost
        self._clock = clock
        self._verdicts: dict[str, tuple[float, bool]] = {}  # by variant: when, and what
        self._failures: dict[str, int] = {}  # by variant, in a row
        self._given_up = False
        self._lock = Lock()

    def start(self) -> None:
        """Drop examples that do not run now: they could prove nothing later."""
        for variant in [variant for variant in self._examples if not self._runs(variant)]:
            logger.info(
                "%s: no self-test input for variant %r; model failures cannot be distinguished from bad requests",
                self._name,
                variant,
            )
            del self._examples[variant]

    @property
    def failing(self) -> bool:
        """Whether a session has ended, or has failed enough consecutive tests to replace this replica."""
        return self._given_up or any(failures >= _GIVEN_UP_AFTER for failures in tuple(self._failures.values()))

    def give_up(self) -> None:
        """Record that a session has ended: this replica must be replaced without a test."""
        self._given_up = True
        if self._on_lost is not None:
            self._on_lost()

    def close(self) -> None:
        """Ignore sessions that end from now on: they are being closed."""
        self._on_lost = None

    def works(self, variant: str) -> bool | None:
        """Whether a build works, as tested now or within the last second. ``None``: unknown."""
        if variant not in self._examples:
            return None
        with self._lock:  # a second caller gets the first one's verdict
            now = self._clock()
            known = self._verdicts.get(variant)
            if known is not None and now - known[0] < _AT_MOST_EVERY_S:
                return known[1]
            try:
                works = self._runs(variant)
            except SessionLost:
                works = False
            if works:
                self._failures.pop(variant, None)
            else:
                self._failures[variant] = self._failures.get(variant, 0) + 1
                logger.error("%s: self-test of variant %r failed", self._name, variant)
            self._verdicts[variant] = (now, works)
            return works

    def answered(self, variant: str) -> None:
        """Record a successful answer: earlier failures were not permanent."""
        if variant in self._failures:
            with self._lock:
                self._failures.pop(variant, None)
                self._verdicts.pop(variant, None)

    def _runs(self, variant: str) -> bool:
        example = self._examples[variant]
        try:
            backend = self._backends[variant]
            outputs = (backend.run if self._joining.of(variant).rows else backend.run_whole)(example)
            return not (self._refuse_non_finite and not_finite(outputs, [1]))
        except SessionLost:
            raise
        except Exception:  # the seam to foreign code: whatever it raises, the answer is no
            return False
