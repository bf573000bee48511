"""Whether each row of a model's outputs depends on the same row of its inputs alone, proven from its graph.

Requests of different clients share a batch along one axis. That is right only if no row depends on its neighbours, on
their number or on its own place. The proof is an abstract interpretation of the graph: each value is a constant,
numbers computed from sizes, rows in blocks along an axis, or mixed (`values.py`); rules for each operator say what it
makes of them (`operators_*.py`). What no rule knows is not proven.

The proof is about the operators as ONNX and ONNX Runtime define them. That a batch is computed in another order than a
row, and therefore rounds otherwise, is not its business. Sizes of other axes are taken to be the same in all requests
of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from rowproof.onnx_graph.advice import advice_on
from rowproof.onnx_graph.dimensions import ONE, ROWS_IN_BATCH, Dim, named
from rowproof.onnx_graph.graph import Walk
from rowproof.onnx_graph.operation import Sizes
from rowproof.onnx_graph.operators import NEWEST, OLDEST
from rowproof.onnx_graph.skeleton import read_skeleton
from rowproof.onnx_graph.values import Kind, Value
from rowproof.result import RowProof

PROVEN = "the graph treats rows one by one"


def prove_rows(model_file: Path, *, axes: Mapping[str, int] | None = None) -> RowProof:
    """As `prove_rows_of`, of a file. Its weights are not read, neither in it nor beside it.

    Never raises: a file that cannot be read is one of which nothing is proven.
    """
    try:
        model = read_skeleton(model_file)
    except Exception as error:  # of any kind: nothing is proven then
        return RowProof(
            False, f"the model {error}" if isinstance(error, ValueError) else f"the file cannot be read: {error}"
        )
    found = prove_rows_of(model, axes=axes)
    return found if found.independent else found._replace(advice=advice_on(found.reason))


def prove_rows_of(model: Any, *, axes: Mapping[str, int] | None = None) -> RowProof:
    """Whether a model's rows are independent of each other, of their number and of their places.

    Where all inputs fix the size of the batch at a number, the proof is for batches of exactly that many rows. An
    initializer that is also an input counts as the constant it is: a request that gives such an input has to run alone.

    Args:
        model: An `onnx.ModelProto`, which is not changed. Large weights may be missing.
        axes: The batch axis of inputs and outputs by name; the first for those that are not named.

    Returns:
        The proof or what prevents it. Never raises: a graph that cannot be followed is not proven.
    """
    try:
        found = _proof(model, dict(axes or {}), {})
        names = {} if found.independent else _shared_names(model, dict(axes or {}))
        if names:
            # Exporters give the same axis of all inputs one name. It counts only if the server sees to it.
            again = _proof(model, dict(axes or {}), names)
            if again.independent:
                return again._replace(equal_sizes=tuple(sorted(map(tuple, names.values()))))
        return found
    except Exception as error:  # a strange graph is one that nothing is proven of
        return RowProof(False, f"the graph cannot be followed ({type(error).__name__}: {error})")


def _is_runtimes(domain: str) -> bool:
    """Whether ONNX Runtime has operators of its own in a domain, which it prefers to a model's functions."""
    return not domain or domain.startswith(("ai.onnx", "com.microsoft", "com.ms.", "org.pytorch.aten"))


class _NotRows(Exception):
    """The inputs have no common rows."""


def _shared_names(model: Any, axes: Mapping[str, int]) -> dict[str, list[tuple[str, int]]]:
    """Names that sizes of several inputs have in common, and which sizes those are; the number of rows is not one."""
    found: dict[str, list[tuple[str, int]]] = {}
    rows: set[str] = set()
    for info in model.graph.input:
        dims = info.type.tensor_type.shape.dim
        for axis, dim in enumerate(dims):
            if axis == axes.get(info.name, 0) % len(dims):
                rows.add(dim.dim_param)
            elif dim.dim_param:
                found.setdefault(dim.dim_param, []).append((info.name, axis))
    return {name: places for name, places in found.items() if len(places) > 1 and name not in rows}


def _proof(model: Any, axes: Mapping[str, int], names: Mapping[str, Sequence[tuple[str, int]]]) -> RowProof:
    opsets = {("" if one.domain == "ai.onnx" else one.domain): int(one.version) for one in model.opset_import}
    opsets.setdefault("", NEWEST)
    own = next((function for function in model.functions if _is_runtimes(function.domain)), None)
    if own is not None:
        name = f"{own.domain}.{own.name}" if own.domain else own.name
        return RowProof(False, f"function {name} has the name of an operator that ONNX Runtime may run instead")
    if not OLDEST <= opsets[""] <= NEWEST:
        return RowProof(False, f"operators of opset {opsets['']} are not known, only those of {OLDEST} to {NEWEST}")
    defaults = {tensor.name for tensor in model.graph.initializer}
    defaults.update(tensor.values.name for tensor in model.graph.sparse_initializer)
    inputs = [info for info in model.graph.input if info.name not in defaults]
    try:
        batch = _batch(inputs, axes)
    except _NotRows as problem:
        return RowProof(False, str(problem))
    sizes = Sizes(batch)
    graph = _inferred(model).graph
    alike = {place: name for name, places in names.items() for place in places}
    scope = {info.name: _input(info, sizes, axes.get(info.name, 0), alike) for info in inputs}
    walk = Walk(sizes, opsets)
    values = walk.outputs(graph, scope)
    if not values:
        return RowProof(False, "the model has no outputs")
    named = [(info.name, value) for info, value in zip(graph.output, values, strict=True)]
    verdicts = [verdict for name, value in named if (verdict := _verdict(name, value, axes.get(name, 0))) is not None]
    # A reason that is known to prevent it says more than one that leaves it open.
    verdicts.sort(key=lambda verdict: (not verdict.random, not verdict.dependent))
    if verdicts:
        return verdicts[0]
    if walk.obstacle is not None:
        return RowProof(False, f"{walk.obstacle.reason}, though no output needs it")
    return RowProof(True, PROVEN)


def _batch(inputs: list[Any], axes: Mapping[str, int]) -> Dim:
    """The number of rows: a symbol, or the number that all inputs fix."""
    if not inputs:
        raise _NotRows("the model has no inputs")
    found: dict[str, str | int] = {}
    for info in inputs:
        kind = info.type.tensor_type
        if not info.type.HasField("tensor_type"):
            raise _NotRows(f"input '{info.name}' is no tensor")
        if not kind.HasField("shape"):
            raise _NotRows(f"input '{info.name}' does not say how many dimensions it has")
        dims = kind.shape.dim
        axis = axes.get(info.name, 0)
        if not -len(dims) <= axis < len(dims):
            raise _NotRows(f"input '{info.name}' has {len(dims)} dimensions, and no rows along dimension {axis}")
        dim = dims[axis]
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            found[info.name] = int(dim.dim_value)
        elif dim.dim_param:
            found[info.name] = str(dim.dim_param)
    unnamed = [info.name for info in inputs if info.name not in found]
    first = next(iter(found), None)
    for name, size in found.items():
        if first is not None and size != found[first]:
            raise _NotRows(f"inputs '{first}' and '{name}' have first dimensions {found[first]!r} and {size!r}")
    if first is None or isinstance(found[first], str):
        return ROWS_IN_BATCH
    if unnamed:
        raise _NotRows(f"inputs '{first}' and '{unnamed[0]}' have first dimensions {found[first]!r} and any")
    size = int(found[first])
    if size < 1:
        raise _NotRows(f"input '{first}' has a first dimension of {size}")
    return Dim(size)


def _input(info: Any, sizes: Sizes, axis: int, alike: Mapping[tuple[str, int], str]) -> Value:
    # Sizes of the same name in several inputs need not be the same: ONNX Runtime does not see to it.
    dims = []
    for place, dim in enumerate(info.type.tensor_type.shape.dim):
        name = alike.get((info.name, place))
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(Dim(int(dim.dim_value)))
        else:
            dims.append(sizes.fresh() if name is None else named(f"#={name}"))
    return sizes.rows(dims, axis % len(dims), ONE)


def _verdict(name: str, value: Value, axis: int) -> RowProof | None:
    """What prevents joining this output; None if nothing does."""
    if value.kind is Kind.MIXED:
        return RowProof(False, value.reason, value.dependent, value.random)
    if value.kind is Kind.SIZES:
        return RowProof(False, f"output '{name}' tells the number of rows", dependent=True)
    if value.kind in {Kind.ROW_INDEX, Kind.INDEX_TUPLES}:
        return RowProof(False, f"output '{name}' tells the places of rows", dependent=True)
    if value.kind is Kind.CONST:
        return RowProof(False, f"output '{name}' is not rows: it does not depend on the inputs")
    if not -value.rank <= axis < value.rank or axis % value.rank != value.axis:
        return RowProof(False, f"output '{name}' is not rows along dimension {axis}: they are along {value.axis}")
    if value.block != ONE:
        return RowProof(False, f"output '{name}' is not rows: it has several for each row of the inputs")
    return None


def _inferred(model: Any) -> Any:
    """The model with functions written out and with the shapes that follow from its operators.

    Shapes that the file declares of anything but its inputs are dropped first: nobody checks them.
    """
    # A process that serves needs no onnx: it is imported where a model is looked at.
    import onnx.shape_inference  # noqa: PLC0415

    if model.functions:
        import onnx.inliner  # noqa: PLC0415

        model = onnx.inliner.inline_local_functions(model)
    stripped = onnx.ModelProto()
    stripped.CopyFrom(model)
    _put_in_order(stripped.graph)
    _undeclared(stripped.graph)
    try:
        return onnx.shape_inference.infer_shapes(stripped)
    except Exception:  # of whatever kind: inference is only a help
        return stripped


def _put_in_order(graph: Any) -> None:
    """Move nodes behind those that make their inputs: ONNX Runtime takes any order, and FP16 converters leave some."""
    maker = {name: at for at, node in enumerate(graph.node) for name in node.output if name}
    needs = [{maker[name] for name in _used(node) if name in maker} for node in graph.node]
    if all(maker < at for at, makers in enumerate(needs) for maker in makers):
        return
    nodes = [type(node).FromString(node.SerializeToString()) for node in graph.node]
    order = TopologicalSorter(dict(enumerate(needs))).static_order()
    del graph.node[:]
    graph.node.extend([nodes[at] for at in order])


def _used(node: Any) -> Iterator[str]:
    """Names of the values that a node needs, and the graphs inside it."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
            for inner in graph.node:
                yield from _used(inner)


def _undeclared(graph: Any, *, inner: bool = False) -> None:
    del graph.value_info[:]
    for info in (*graph.output, *(graph.input if inner else ())):
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _undeclared(attribute.g, inner=True)
            for one in attribute.graphs:
                _undeclared(one, inner=True)
