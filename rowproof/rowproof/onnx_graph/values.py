"""What is known of a tensor in a graph: whether and how its elements belong to rows of the batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rowproof.onnx_graph.dimensions import ONE, Dim, Shape

SMALL = 4096
"""Elements of a constant that are kept; what is larger is known by its shape alone."""


class Kind(Enum):
    """How a tensor hangs together with the rows of the batch."""

    CONST = "const"
    """Neither what the inputs hold nor how many rows there are matters. Sizes of the inputs' other axes may."""
    SIZES = "sizes"
    """Whole numbers computed from sizes, the number of rows among them; never from what the inputs hold."""
    ROWS = "rows"
    """Block i along one axis depends on row i of the inputs only, wherever it stands and whatever its neighbours."""
    ROW_INDEX = "row index"
    """Whole numbers; those of block i along one axis say where row i is: ``i * stride + r``, 0 <= r < ``stride``."""
    INDEX_TUPLES = "index tuples"
    """Coordinates along the last axis; of those of block i along another one, number ``row_coordinate`` is i."""
    MIXED = "mixed"
    """Anything else, or nobody knows."""


class Span(NamedTuple):
    """Whole numbers: multiples of ``step``, from 0 to less than ``below``, which is a multiple of it, too."""

    step: Dim
    below: Dim


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor. Which fields count depends on ``kind``.

    Attributes:
        kind: See `Kind`.
        shape: Its sizes; None where even the rank is unknown. Of ROWS, ROW_INDEX and INDEX_TUPLES always known, and
            free of the number of rows in every axis but its own.
        axis: ROWS, ROW_INDEX, INDEX_TUPLES: where the rows are.
        block: ROWS, ROW_INDEX, INDEX_TUPLES: how many places of that axis belong to one row.
        stride: ROW_INDEX: how far the numbers of one row are from those of the next.
        row_coordinate: INDEX_TUPLES: which coordinate is the row's place.
        span: CONST and ROWS: what range its whole numbers are known to be in. ROW_INDEX: that of r; None where r is 0.
        array: CONST: what it holds, where that is known and small.
        elements: CONST and SIZES: its elements in symbols, in the order of memory. None is a number that may depend on
            the number of rows in some way or other.
        reason: MIXED: why.
        dependent: MIXED: it is known to mix rows, or to know their number or places.
        random: MIXED: it is drawn by chance.
    """

    kind: Kind
    shape: Shape | None = None
    axis: int = -1
    block: Dim = ONE
    stride: Dim = ONE
    row_coordinate: int = -1
    span: Span | None = None
    array: npt.NDArray[Any] | None = None
    elements: tuple[Dim | None, ...] | None = None
    reason: str = ""
    dependent: bool = False
    random: bool = False

    @property
    def place(self) -> int:
        """ROWS: the rows' axis counted from the right, the last axis being 1."""
        return len(self.dims) - self.axis

    @property
    def dims(self) -> Shape:
        """The shape of a value that has one: ROWS always."""
        assert self.shape is not None
        return self.shape

    @property
    def rank(self) -> int:
        """The number of axes of a value with a shape."""
        return len(self.dims)

    def at(self, place: int) -> Dim:
        """The size of an axis counted from the right; one beyond the first, as broadcasting has it."""
        dims = self.dims
        return dims[-place] if place <= len(dims) else ONE


def constant(shape: Shape | None = None) -> Value:
    """A constant of which at most the shape is known."""
    return Value(Kind.CONST, shape)


def constant_array(array: npt.NDArray[Any]) -> Value:
    """A constant that is known."""
    small = array if array.size <= SMALL else None
    return Value(Kind.CONST, tuple(map(Dim, array.shape)), array=small)


def sizes(elements: Sequence[Dim | None], shape: Sequence[int] | None = None) -> Value:
    """Whole numbers by symbols: a constant where none has to do with the number of rows. A vector by default."""
    if shape is None:
        shape = (len(elements),)
    if all(element is not None and element.literal is not None for element in elements):
        numbers = np.array([element.literal for element in elements if element is not None], dtype=np.int64)
        return constant_array(numbers.reshape(shape))
    free = all(element is not None and not element.has_batch for element in elements)
    return Value(Kind.CONST if free else Kind.SIZES, tuple(map(Dim, shape)), elements=tuple(elements))


def mixed(reason: str, *, dependent: bool = False, random: bool = False, shape: Shape | None = None) -> Value:
    """What rows cannot be told apart in, and why."""
    return Value(Kind.MIXED, shape, reason=reason, dependent=dependent, random=random)


def without_content(value: Value) -> Value:
    """The same, with what it holds forgotten."""
    return replace(value, array=None, elements=None, span=None) if value.kind in {Kind.CONST, Kind.ROWS} else value


def is_uniform(value: Value, axis: int) -> bool:
    """Whether a known constant is the same at every place along an axis."""
    array = value.array
    if array is None or array.shape[axis] == 0:
        return False
    first = array.take([0], axis=axis)
    return bool(np.all(first == array))


def worst(values: Iterable[Value]) -> Value | None:
    """The first mixed value, one that is known to depend before others."""
    found = [value for value in values if value.kind is Kind.MIXED]
    found.sort(key=lambda value: (not value.random, not value.dependent))
    return found[0] if found else None
