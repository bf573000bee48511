"""Measures how long a model is short of replicas after a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_FORGOTTEN_AFTER_S: Final = 600.0
"""Later it is unknown whether the model was scaled down meanwhile."""


class Recovery:
    """Measures from the loss of a replica until as many are usable as were listed.

    Args:
        usable: The number of usable replicas of a model.
        observe: Called with the model and the duration, seconds.

    Attributes:
        pending: Whether `check` has anything to look for.
    """

    def __init__(self, usable: Callable[[str], int], observe: Callable[[str, float], None]) -> None:
        self._usable = usable
        self._observe = observe
        self._open: dict[str, tuple[float, int]] = {}
        self.pending = False

    def lost(self, model: str, before: int, now: float) -> None:
        """Record the loss of a replica.

        Args:
            before: Replicas listed until then. If as many are usable now, it had been missed already.
        """
        if self._usable(model) < before:
            self._open.setdefault(model, (now, before))
            self.pending = True

    def forget(self, model: str) -> None:
        """Forget a removed model."""
        self._open.pop(model, None)

    def check(self, now: float) -> None:
        """Report the models that have recovered."""
        for model, (since, before) in list(self._open.items()):
            recovered = self._usable(model) >= before
            if recovered:
                self._observe(model, now - since)
            if recovered or now - since > _FORGOTTEN_AFTER_S:
                del self._open[model]
        self.pending = bool(self._open)
