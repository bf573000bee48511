"""Bounds the models with series of their own, however many models pools have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

OTHER: Final = "/other"
"""Label of the members of pools that have no series of their own, together. No model can be called so."""

Samples: TypeAlias = Iterable[tuple[Sequence[str], float]]
"""Values of the labels, and the number."""


class ModelNames:
    """Values of the label ``model``. Models outside pools have their names, and so do the first members.

    A named model keeps its name, and one counted without a name never gets one, so that no counter decreases.

    Args:
        most: Most members with series of their own.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._members: set[str] = set()
        self._labels: dict[str, str] = {}
        self._free = most

    def add_member(self, model: str) -> None:
        """Record a member of a pool."""
        self._members.add(model)

    def settle(self, models: Iterable[str]) -> None:
        """Assign names to counted models, in this order."""
        for model in models:
            self.settled(model)

    def joined(
        self, samples: Samples, together: Callable[[float, float], float] = float.__add__, *, total: bool = False
    ) -> Samples:
        """Samples with a leading label ``model``, merged for models without series of their own.

        Args:
            samples: Of all models.
            together: Merges two values.
            total: Whether they are counters: one above 0 has been counted.
        """
        if not self._members:
            return samples
        found: dict[tuple[str, ...], float] = {}
        for (model, *others), value in samples:
            labels = (self.settled(model) if total and value else self.label(model), *others)
            value = float(value)  # noqa: PLW2901 - what is counted may be whole numbers
            found[labels] = together(found[labels], value) if labels in found else value
        return found.items()

    def label(self, model: str) -> str:
        """The present label of a model."""
        if model not in self._members:
            return model
        return self._labels.get(model) or (model if len(self._members) <= self._most else OTHER)

    def settled(self, model: str) -> str:
        """The permanent label of a counted model."""
        if model not in self._members:
            return model
        label = self._labels.get(model)
        if label is None:
            label = self._labels[model] = model if self._free else OTHER
            self._free -= label is not OTHER
        return label
