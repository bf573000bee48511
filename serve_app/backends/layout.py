"""Where the rows of a model's tensors are, and what the configuration says of joining them."""

from __future__ import annotations

from collections.abc import Mapping
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
