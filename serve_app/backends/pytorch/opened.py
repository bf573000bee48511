"""What opening a model's file comes to, whichever of PyTorch's two formats it is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from serve_app.payloads import ModelSignature


class RowRange(NamedTuple):
    """Numbers of rows that a model takes.

    Attributes:
        least: The fewest.
        most: The most; ``None``: any.
    """

    least: int = 1
    most: int | None = None


class Opened(NamedTuple):
    """A model that can be run.

    Attributes:
        declared: Its tensors, with the shapes that are declared.
        run: Takes the inputs' tensors by name, and gives those of the outputs in the order of the signature. Raises
            whatever PyTorch and the model raise.
        rows: Numbers of rows that it takes, where they are along these axes, by the name of a tensor; 0 for those that
            are not named. Says nothing of a model that fixes them.
        writes: Whether it may write to its inputs.
        free: Lets go of its weights; it cannot be run any more.
    """

    declared: ModelSignature
    run: Callable[[Mapping[str, Any]], Sequence[Any]]
    rows: Callable[[Mapping[str, int]], RowRange]
    writes: bool
    free: Callable[[], None]
