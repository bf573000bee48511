"""How long a model is short of replicas after it has lost one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_FORGOTTEN_AFTER_S: Final = 600.0
"""Then there is no telling whether it was scaled down meanwhile."""


class Recovery:
    """Measures from the loss of a replica until as many are usable as were listed.

    Args:
        usable: The usable replicas of a model.
        observe: Called with the model and the seconds that it took.

    Attributes:
        pending: Whether `check` has anything to look for.
    """

    def __init__(self, usable: Callable[[str], int], observe: Callable[[str, float], None]) -> None:
        self._usable = usable
        self._observe = observe
        self._open: dict[str, tuple[float, int]] = {}
        self.pending = False

    def lost(self, model: str, before: int, now: float) -> None:
        """A replica has been lost.

        Args:
            model: Of what.
            before: How many were listed until then. If as many are usable now, it had been missed already.
            now: Seconds.
        """
        if self._usable(model) < before:
            self._open.setdefault(model, (now, before))
            self.pending = True

    def forget(self, model: str) -> None:
        """The model was removed, and will not recover."""
        self._open.pop(model, None)

    def check(self, now: float) -> None:
        """See who has recovered."""
        for model, (since, before) in list(self._open.items()):
            recovered = self._usable(model) >= before
            if recovered:
                self._observe(model, now - since)
            if recovered or now - since > _FORGOTTEN_AFTER_S:
                del self._open[model]
        self.pending = bool(self._open)
