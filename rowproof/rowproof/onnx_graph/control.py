"""If, Loop and Scan: the graphs inside them, with rows that pass through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from rowproof.onnx_graph.dimensions import Dim, Shape
from rowproof.onnx_graph.operation import Mixes, Operation, Sizes, Unknown
from rowproof.onnx_graph.values import Kind, Value, constant, mixed, without_content, worst

Scope: TypeAlias = dict[str, Value]


class Walk(Protocol):
    """What goes over the graphs inside."""

    sizes: Sizes

    def outputs(self, graph: Any, scope: Scope) -> list[Value]:
        """Values of a graph's outputs."""
        ...


_ROUNDS = 5
"""How often the state of a loop is looked at until it stays what it is."""


def controlled(walk: Walk, op: Operation, scope: Scope) -> list[Value]:
    """Outputs of an If, Loop or Scan."""
    if op.kind == "If":
        return _branches(walk, op, scope)
    spoiled = worst(value for value in op.inputs if value is not None)
    if spoiled is not None:
        return [spoiled] * len(op.outputs)
    return _loop(walk, op, scope) if op.kind == "Loop" else _scan(walk, op, scope)


def _branches(walk: Walk, op: Operation, scope: Scope) -> list[Value]:
    condition = op.inputs[0]
    assert condition is not None
    if condition.kind is Kind.MIXED:
        return [condition] * len(op.outputs)
    if condition.kind is not Kind.CONST:
        raise Mixes("goes one way for the whole batch")
    known = condition.array
    if known is not None:
        branch = "then_branch" if bool(known.reshape(-1)[0]) else "else_branch"
        return walk.outputs(op.attributes[branch].g, scope)
    both = [walk.outputs(op.attributes[branch].g, scope) for branch in ("then_branch", "else_branch")]
    return [_either(walk.sizes, one, other) for one, other in zip(*both, strict=True)]


def _either(sizes: Sizes, one: Value, other: Value, loose: set[Dim] | None = None) -> Value:
    """What is known where it may be one or the other.

    Args:
        sizes: Of the graph.
        one: What comes first.
        other: What may stand there as well.
        loose: Sizes of ``one`` that may be any number in each round of a loop; those made here are added.
    """
    spoiled = worst((one, other))
    if spoiled is not None:
        return spoiled
    if {Kind.SIZES, Kind.ROW_INDEX, Kind.INDEX_TUPLES} & {one.kind, other.kind}:
        return mixed("a branch or a loop gives the number of rows or their places", dependent=True)
    loose = set() if loose is None else loose
    if one.kind is Kind.CONST and other.kind is Kind.CONST:
        known = one.shape is not None and other.shape is not None and len(one.shape) == len(other.shape)
        return constant(_common(sizes, one.dims, other.dims, loose) if known else None)
    same = one.kind is other.kind and (one.rank, one.axis, one.block) == (other.rank, other.axis, other.block)
    if not same:
        return mixed("what goes through a branch or a loop is not always rows of the same kind")
    return replace(one, shape=_common(sizes, one.dims, other.dims, loose), span=None)


def _common(sizes: Sizes, one: Shape, other: Shape, loose: set[Dim]) -> Shape:
    dims = []
    for left, right in zip(one, other, strict=True):
        dim = left
        if left != right and left not in loose:
            dim = sizes.fresh()
            loose.add(dim)
        dims.append(dim)
    return tuple(dims)


def _alike(one: Value, other: Value) -> bool:
    return (one.kind, one.shape, one.axis, one.block) == (other.kind, other.shape, other.axis, other.block)


def _rounds(
    walk: Walk, run: Callable[[Sequence[Value]], list[Value]], states: Sequence[Value], lead: int
) -> list[Value]:
    """What the states of a loop are in every round, and behind them the outputs of its body then.

    Args:
        walk: Of the model.
        run: The body's outputs for such states.
        states: What comes into the first round.
        lead: Number of the body's outputs before those that are states.
    """
    loose: set[Dim] = set()
    now = [without_content(state) for state in states]
    for _ in range(_ROUNDS):
        found = run(now)
        after = found[lead : lead + len(now)]
        then = [_either(walk.sizes, old, without_content(new), loose) for old, new in zip(now, after, strict=True)]
        spoiled = worst([*then, *found[:lead]])
        if spoiled is not None:
            raise (Mixes if spoiled.dependent else Unknown)(f"has a body in which {spoiled.reason}")
        if all(map(_alike, now, then)):
            return [_loosened(walk.sizes, value, loose) for value in (*now, *found)]
        now = then
    raise Unknown("has a state that does not settle")


def _loosened(sizes: Sizes, value: Value, loose: set[Dim]) -> Value:
    """What is left of sizes that change from round to round: any size."""
    if value.shape is None or loose.isdisjoint(value.shape):
        return value
    return replace(value, shape=tuple(sizes.fresh() if dim in loose else dim for dim in value.shape))


def _loop(walk: Walk, op: Operation, scope: Scope) -> list[Value]:
    body = op.attributes["body"].g
    for place, what in ((0, "as often as"), (1, "as long as")):
        value = op.input(place)
        if value is not None and value.kind is not Kind.CONST:
            raise Mixes(f"runs {what} the batch says")
    states = [_state(value) for value in op.inputs[2:]]
    names = [info.name for info in body.input]

    def run(now: Sequence[Value]) -> list[Value]:
        return walk.outputs(body, {**scope, **dict(zip(names, [constant(()), constant(()), *now], strict=True))})

    found = _rounds(walk, run, states, 1)
    count = len(states)
    if found[count].kind is not Kind.CONST:
        raise Mixes("stops when any of the rows says so")
    return [*found[:count], *(_stacked(walk.sizes, value, 0) for value in found[2 * count + 1 :])]


def _state(value: Value | None) -> Value:
    if value is None:
        raise Unknown("lacks a state")
    if value.kind is Kind.SIZES:
        raise Mixes("computes with the number of rows")
    return value


def _scan(walk: Walk, op: Operation, scope: Scope) -> list[Value]:
    if op.version < 9:
        raise Unknown("is of an opset before 9")
    body = op.attributes["body"].g
    count = len(op.inputs) - op.integer("num_scan_inputs", 1)
    axes = op.integers("scan_input_axes") or [0] * (len(op.inputs) - count)
    slices = []
    for place, axis in zip(range(count, len(op.inputs)), axes, strict=True):
        value = op.operand(place)
        cut = op.axis_of(axis, value.rank)
        dims = [dim for old, dim in enumerate(value.dims) if old != cut]
        if value.kind is Kind.CONST:
            slices.append(constant(tuple(dims)))
        elif value.axis == cut:
            raise Mixes("runs along the rows")
        else:
            slices.append(walk.sizes.rows(dims, value.axis - (value.axis > cut), value.block))
    names = [info.name for info in body.input]

    def run(now: Sequence[Value]) -> list[Value]:
        return walk.outputs(body, {**scope, **dict(zip(names, [*now, *slices], strict=True))})

    found = _rounds(walk, run, [_state(value) for value in op.inputs[:count]], 0)
    made = found[2 * count :]
    places = op.integers("scan_output_axes") or [0] * len(made)
    return [*found[:count], *(_stacked(walk.sizes, value, axis) for value, axis in zip(made, places, strict=True))]


def _stacked(sizes: Sizes, value: Value, axis: int) -> Value:
    """What every round makes, one beside the other."""
    if value.kind is Kind.CONST:
        return constant()
    if value.kind is Kind.MIXED:
        return value
    if value.kind is not Kind.ROWS:
        return mixed("a loop gives the number of rows or their places", dependent=True)
    rank = value.rank + 1
    new = axis % rank
    dims = list(value.dims)
    dims.insert(new, sizes.fresh())
    return sizes.rows(dims, value.axis + (new <= value.axis), value.block)
