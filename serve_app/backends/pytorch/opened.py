"""An opened model, of either of PyTorch's two formats."""

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
        declared: Tensors with the declared shapes.
        run: Takes input tensors by name, returns output tensors in the signature's order. Raises any error of PyTorch
            and the model.
        rows: Numbers of rows that it takes, along these axes by tensor name (default 0). Not for a model that fixes
            them.
        writes: Whether it may write to its inputs.
        free: Frees its weights; it cannot run any more.
    """

    declared: ModelSignature
    run: Callable[[Mapping[str, Any]], Sequence[Any]]
    rows: Callable[[Mapping[str, int]], RowRange]
    writes: bool
    free: Callable[[], None]
