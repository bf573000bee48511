"""One node of a graph with what is known of its inputs: what the rules of the operators look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from rowproof.onnx_graph.dimensions import ONE, Dim, Shape, named, product
from rowproof.onnx_graph.values import Kind, Value, constant, constant_array

_LONGEST = 64
"""Whole numbers that are followed one by one; shapes, axes and pads are fewer."""


BY_PLACE = "tells rows by their places in the batch"
PICKS_BY_PLACE = "picks rows by their places in the batch"


class Obstacle(Exception):
    """What a node does to rows, in words that follow its name.

    Attributes:
        dependent: Rows are known to be mixed, counted or told by their places; else nobody knows.
    """

    dependent = False


class Mixes(Obstacle):
    """Rows depend on each other, on their number or on their places."""

    dependent = True


class Unknown(Obstacle):
    """Rows may be independent; these rules cannot say."""


class Sizes:
    """Sizes that a whole graph shares: the number of rows, and new symbols."""

    def __init__(self, batch: Dim) -> None:
        self.batch = batch
        self._made = 0
        self._cuts: dict[Dim, Dim] = {}

    def fresh(self) -> Dim:
        """The size of an axis that no rule knows, and that has nothing to do with the number of rows."""
        self._made += 1
        return named(f"#{self._made}")

    def number(self) -> Dim:
        """A whole number of any sign that has nothing to do with the number of rows."""
        self._made += 1
        return named(f"?{self._made}")

    def cut(self, size: Dim, start: Dim | None, end: Dim | None, step: Dim | None) -> Dim:
        """The size of what a slice leaves of an axis."""
        numbers = [None if bound is None else bound.literal for bound in (size, start, end, step)]
        known = [number for number in numbers if number is not None]
        if len(known) == 4 and known[3]:
            return Dim(len(range(known[0])[known[1] : known[2] : known[3]]))
        made = self.fresh()
        if (start, step) == (Dim(0), ONE) and end is not None and end.is_size and (size.literal or 0) > 1:
            self._cuts[made] = end
        return made

    def wider(self, one: Dim, other: Dim) -> Dim:
        """The size of an axis that two tensors have in common, as broadcasting makes it."""
        if one in (ONE, other):
            return other
        if other == ONE:
            return one
        for dim in (one, other):
            if dim.literal is not None or dim.has_batch:
                return dim
        # What a slice up to a size leaves is as long as that, or shorter and longer than 1: then nothing fits it.
        if self._cuts.get(one) == other:
            return other
        return one if self._cuts.get(other) == one else self.fresh()

    def block_of(self, dim: Dim) -> Dim | None:
        """How many places of an axis of this size are each row's; None where it does not hold whole rows."""
        block = dim.over(self.batch)
        return None if block is None or block.has_batch or block.coefficient == 0 or not block.is_size else block

    def rows(self, shape: Sequence[Dim], axis: int, block: Dim) -> Value:
        """Rows along an axis of this shape, whose size there is put right."""
        dims = list(shape)
        dims[axis] = self.batch.times(block)
        if any(dim.has_batch for place, dim in enumerate(dims) if place != axis):
            raise Mixes("makes more than one axis as long as the batch")
        return Value(Kind.ROWS, tuple(dims), axis=axis, block=block)

    def elements_of(self, value: Value) -> tuple[Dim | None, ...] | None:
        """What whole numbers of rank 0 or 1 hold; None where even their count is unknown."""
        if value.shape is None or len(value.shape) > 1:
            return None
        if value.elements is not None:
            return value.elements
        if value.kind is not Kind.CONST:
            return None
        array = value.array
        if array is not None and array.size <= _LONGEST and array.dtype.kind in "iub":
            return tuple(Dim(int(number)) for number in array.reshape(-1))
        count = product(value.shape).literal
        return None if count is None or count > _LONGEST else tuple(self.number() for _ in range(count))


class Operation:
    """A node and its inputs.

    Attributes:
        kind: The operator's name.
        domain: Its domain, empty for ONNX's own.
        version: The opset of that domain.
        inputs: By place; None where an optional one is left out.
        outputs: Names, empty where an optional one is left out.
        sizes: Those of the graph.
        attributes: By name, `onnx.AttributeProto`.
    """

    def __init__(
        self,
        node: Any,
        version: int,
        inputs: Sequence[Value | None],
        sizes: Sizes,
        inferred: Mapping[str, tuple[int | None, ...]],
    ) -> None:
        self.kind: str = node.op_type
        self.domain: str = "" if node.domain == "ai.onnx" else node.domain
        self.name: str = node.name
        self.version = version
        self.inputs: list[Value | None] = list(inputs)
        self.outputs: list[str] = list(node.output)
        self.sizes = sizes
        self.attributes: dict[str, Any] = {attribute.name: attribute for attribute in node.attribute}
        self._inferred = inferred

    # --- attributes ---

    def integer(self, name: str, default: int) -> int:
        """A whole number."""
        return int(self.attributes[name].i) if name in self.attributes else default

    def integers(self, name: str) -> list[int] | None:
        """Whole numbers, None where there is no such attribute."""
        return [int(number) for number in self.attributes[name].ints] if name in self.attributes else None

    def text(self, name: str, default: str) -> str:
        """A string."""
        return str(self.attributes[name].s.decode()) if name in self.attributes else default

    # --- inputs ---

    def input(self, place: int) -> Value | None:
        """An input, None where it is left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def operand(self, place: int) -> Value:
        """An input that must be there, with rows or constant, and with a known rank."""
        value = self.input(place)
        if value is None:
            raise Unknown(f"lacks input {place}")
        if value.kind is Kind.SIZES:
            raise Mixes("computes with the number of rows")
        if value.kind in {Kind.ROW_INDEX, Kind.INDEX_TUPLES}:
            raise Mixes(BY_PLACE)
        if value.shape is None:
            raise Unknown(f"has input {place} of unknown rank")
        return value

    def operands(self, start: int = 0) -> list[Value]:
        """All inputs from one on, without those left out, as by `operand`."""
        return [self.operand(place) for place in range(start, len(self.inputs)) if self.inputs[place] is not None]

    def rows(self, place: int = 0, *axes: int) -> Value:
        """An input with rows, along one of these axes where any are named."""
        value = self.operand(place)
        if value.kind is not Kind.ROWS:
            raise Unknown(f"has rows, but not in input {place}")
        if axes and value.axis not in axes:
            raise Unknown(f"is given rows along axis {value.axis}")
        return value

    def like(self, rows: Value, place: int, axis: int) -> None:
        """See that an optional input has the same rows along an axis; left out is fine."""
        value = self.input(place)
        if value is None:
            return
        value = self.operand(place)
        if value.kind is Kind.CONST:
            raise Unknown(f"has a constant in input {place} where rows are needed")
        if value.axis != axis or value.block != rows.block:
            raise Unknown(f"has rows along another axis in input {place}")

    def constants(self, *places: int) -> None:
        """See that these inputs are constant or left out."""
        for place in places:
            value = self.input(place)
            if value is None or value.kind is Kind.CONST:
                continue
            if value.kind is Kind.SIZES:
                raise Mixes("computes with the number of rows")
            if value.kind in {Kind.ROW_INDEX, Kind.INDEX_TUPLES}:
                raise Mixes(BY_PLACE)
            raise Unknown(f"takes input {place} from rows, which is known for constants only")

    def constants_from(self, start: int) -> None:
        """See that all inputs from one on are constant or left out."""
        self.constants(*range(start, len(self.inputs)))

    def scalars(self, *places: int) -> None:
        """See that these inputs are constants of one element, or left out."""
        self.constants(*places)
        for place in places:
            value = self.input(place)
            if value is not None and (value.shape is None or product(value.shape) != ONE):
                raise Unknown(f"has several numbers in input {place}")

    def elements(self, place: int) -> list[Dim | None] | None:
        """The whole numbers in an input; None where it is left out.

        Of those numbers, None is one that may depend on the number of rows in a way that is not known.
        """
        value = self.input(place)
        if value is None:
            return None
        if value.kind is Kind.ROWS:
            raise Unknown(f"takes sizes or places from rows, in input {place}")
        found = self.sizes.elements_of(value)
        if found is None:
            raise Unknown(f"takes sizes or places from input {place}, which is unknown")
        # A multiple of the rows by a number of unknown sign is no size: 0 and -1 mean something else.
        return [None if one is not None and one.has_batch and not one.is_size else one for one in found]

    def numbers(self, place: int) -> list[int] | None:
        """Known whole numbers in an input; None where it is left out."""
        found = self.elements(place)
        if found is None:
            return None
        numbers = [None if element is None else element.literal for element in found]
        if any(number is None for number in numbers):
            raise Unknown(f"takes axes or counts from input {place}, which is unknown")
        return [number for number in numbers if number is not None]

    def counted(self) -> Dim | None:
        """How far a Range from 0 on by 1 goes; None for any other, or where that is not a known size."""
        start, limit, step = (found[0] if (found := self.elements(place)) else None for place in range(3))
        return limit if (start, step) == (Dim(0), ONE) and limit is not None and limit.is_size else None

    def axes(self, place: int | None, rank: int) -> list[int] | None:
        """Axes of an input or of the attribute ``axes``, none negative; None where neither is there."""
        found = self.integers("axes") if "axes" in self.attributes else None
        if found is None and place is not None:
            found = self.numbers(place)
        return None if found is None else [self.axis_of(axis, rank) for axis in found]

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """The attribute of that name, not negative."""
        return self.axis_of(self.integer(name, default), rank)

    def axis_of(self, axis: int, rank: int) -> int:
        """An axis counted from the left."""
        if not -rank <= axis < max(rank, 1):
            raise Unknown(f"has axis {axis} of {rank}")
        return axis % rank if rank else 0

    # --- outputs ---

    def makes(self, place: int) -> bool:
        """Whether an output is there."""
        return place < len(self.outputs) and bool(self.outputs[place])

    def result(self, rows: Value, dims: Sequence[Dim | None], axis: int, output: int = 0) -> Value:
        """Rows of the same blocks along an axis. None for a size is what inference knows, or a new symbol."""
        known = self._inferred.get(self.outputs[output]) if output < len(self.outputs) else None
        if known is not None and len(known) != len(dims):
            known = None
        full: list[Dim] = []
        for place, dim in enumerate(dims):
            number = None if known is None else known[place]
            full.append(
                dim if dim is not None and dim.is_size else self.sizes.fresh() if number is None else Dim(number)
            )
        return self.sizes.rows(full, axis, rows.block)

    def same(self, rows: Value) -> Value:
        """Rows of the same shape: what holds for any function of single elements."""
        return self.sizes.rows(rows.dims, rows.axis, rows.block)

    def constant(self, output: int) -> Value:
        """A constant of the inferred shape."""
        known = self._inferred.get(self.outputs[output])
        if known is None:
            return constant()
        return constant(tuple(self.sizes.fresh() if number is None else Dim(number) for number in known))


Rule: TypeAlias = Callable[[Operation], "Value | Sequence[Value | None]"]

Table: TypeAlias = dict[str, Rule]


def table(rule: Rule, names: str) -> Table:
    """The same rule for several operators, their names parted by spaces."""
    return dict.fromkeys(names.split(), rule)


__all__ = [
    "BY_PLACE",
    "PICKS_BY_PLACE",
    "Mixes",
    "Obstacle",
    "Operation",
    "Rule",
    "Shape",
    "Sizes",
    "Table",
    "Unknown",
    "constant_array",
    "table",
]
