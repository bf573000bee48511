"""Where the rows of a model's tensors are, and what the configuration says of joining them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Layout(NamedTuple):
    """Where the rows of a model's tensors are.

    Attributes:
        rows: Whether there are any. Otherwise the tensors are served with the shapes that the model's file declares.
        axes: The axis of the rows by the name of a tensor, 0 where it is not named.
    """

    rows: bool = True
    axes: Mapping[str, int] = {}


ROWS_FIRST = Layout()
NO_ROWS = Layout(rows=False)


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """What the configuration says of sharing runs.

    Attributes:
        join: Whether requests may share runs at all.
        axes: The axis of the rows, of all tensors or by the name of each; ``None``: 0, unless the file fixes the size
            of that dimension to more than 1.
        unverified: Whether they may without proof.
        tolerance: Largest difference that sharing may make to an answer, relative to the largest value of its output;
            ``None`` for a default that depends on the datatype.
    """

    join: bool = True
    axes: int | Mapping[str, int] | None = None
    unverified: bool = False
    tolerance: float | None = None
