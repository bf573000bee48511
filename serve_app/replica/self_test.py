"""Does the model still work? Asked after an entry has failed, to tell a bad input from a bad model or replica.

The model is run on an input that it could run when the replica started. If it still can, what failed is to blame on its
input; if it cannot, on the model or this replica. Routers count only the latter towards circuit breakers and ejections
(`serve_app.scheduling.health.breaker`), so nobody can lock others out by sending what no model could run.
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
    """The self-test of one replica. Used by whoever has the session, from several threads where they share it.

    Args:
        name: The model's name, for messages.
        backends: By variant. Loaded already.
        examples: By variant an input that should run.
        joining: Tells which of them have rows; ``None``: all have.
        refuse_non_finite: Whether an output with NaN or infinity is a failure.
        on_lost: Is called when a session has ended, before anything that it was to answer is.
        clock: Seconds, monotonic.
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
        """Drop the examples that do not run now: with them nothing could be told later.

        Raises:
            SessionLost: A session has ended.
        """
        for variant in [variant for variant in self._examples if not self._runs(variant)]:
            logger.info(
                "%s: no self-test input for variant %r; model failures cannot be distinguished from bad requests",
                self._name,
                variant,
            )
            del self._examples[variant]

    @property
    def failing(self) -> bool:
        """Whether a session has ended, or failed so many tests in a row that this replica must be replaced."""
        return self._given_up or any(failures >= _GIVEN_UP_AFTER for failures in tuple(self._failures.values()))

    def give_up(self) -> None:
        """A session has ended: no test is needed to know that this replica must be replaced."""
        self._given_up = True
        if self._on_lost is not None:
            self._on_lost()

    def close(self) -> None:
        """The sessions are being closed: one that ends now is no loss."""
        self._on_lost = None

    def works(self, variant: str) -> bool | None:
        """Whether a build of the model works: as tested now, or within the last second. ``None``: nobody can tell."""
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
        """A build has answered somebody: what failed before was not for good."""
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
