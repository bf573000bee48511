"""Which models have series of their own in the metrics: a page has a bounded size, however many models pools have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

OTHER: Final = "/other"
"""Label of the members of pools that have no series of their own, together. No model can be called so."""

Samples: TypeAlias = Iterable[tuple[Sequence[str], float]]
"""Values of the labels, and the number."""


class ModelNames:
    """What the label ``model`` says. Models outside pools have their names there, and so have the first members.

    Who has a name keeps it, and who has been counted without one never gets one, so that no counter goes back.

    Args:
        most: How many members have series of their own, at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._members: set[str] = set()
        self._labels: dict[str, str] = {}
        self._free = most

    def add_member(self, model: str) -> None:
        """Take note of a member of a pool."""
        self._members.add(model)

    def settle(self, models: Iterable[str]) -> None:
        """Decide for models that have been counted, in this order: names go to the first."""
        for model in models:
            self.settled(model)

    def joined(
        self, samples: Samples, together: Callable[[float, float], float] = float.__add__, *, total: bool = False
    ) -> Samples:
        """Samples with the label ``model`` in front, those of models without series of their own made one.

        Args:
            samples: Of all models.
            together: Makes one number of two.
            total: They only rise: one above 0 has been counted.
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
        """What stands for a model now."""
        if model not in self._members:
            return model
        return self._labels.get(model) or (model if len(self._members) <= self._most else OTHER)

    def settled(self, model: str) -> str:
        """What stands for a model that has been counted, from now on."""
        if model not in self._members:
            return model
        label = self._labels.get(model)
        if label is None:
            label = self._labels[model] = model if self._free else OTHER
            self._free -= label is not OTHER
        return label
