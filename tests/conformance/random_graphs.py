"""Random ONNX graphs, some of which compute each row alone and most of which do not.

A graph grows from its inputs by steps; each takes values that are there and adds another one. Shapes are followed as
far as they are known. Inputs are whole numbers, and a value is *exact* while all it can hold are whole numbers that
FP32 can tell apart. Only exact values are compared, ranked or normalised: otherwise the last bit, in which batches of
different sizes may differ by right, could decide about everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from conformance.alone import Array, Tensors

_T = TypeVar("_T")
_OPSET = 17
_EXACT_BELOW = 2.0**22
MILD = 1000.0
"""What is normalised is not larger: a rounding error would be scaled up with it."""
LARGEST_AXIS = 16
"""No axis of a request is longer."""
_VALUE = 8
_SCALES = (1, 1, 10, 100)

Kind: TypeAlias = Literal["float", "int"]
Dim: TypeAlias = int | str
Shape: TypeAlias = tuple[Dim, ...]

ONNX_TYPES: dict[Kind, int] = {"float": TensorProto.FLOAT, "int": TensorProto.INT64}
NUMPY_TYPES: dict[Kind, np.dtype[Any]] = {"float": np.dtype(np.float32), "int": np.dtype(np.int64)}


class Pick(Protocol):
    """Chooses: Hypothesis, so that a counterexample is made small."""

    def __call__(self, items: Sequence[_T], /) -> _T:
        """One of them; the first is the simplest."""
        ...


class Value(NamedTuple):
    """A tensor of the graph.

    Attributes:
        name: Its name.
        kind: FP32 or INT64.
        shape: A text is a size that varies: ``n``, ``m`` and ``t`` as the requests have it, others unknown.
        bound: No magnitude in it is larger.
        exact: See the module's docstring.
    """

    name: str
    kind: Kind
    shape: Shape
    bound: float
    exact: bool

    @property
    def rank(self) -> int:
        """The number of its axes."""
        return len(self.shape)


@dataclass
class Graph:
    """A graph that grows.

    Attributes:
        pick: Chooses.
        inputs: What it takes.
        values: Every tensor that a step may take.
    """

    pick: Pick
    inputs: list[Value] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    _nodes: list[Any] = field(default_factory=list)
    _constants: list[Any] = field(default_factory=list)
    _used: set[str] = field(default_factory=set)

    def take(self, name: str, kind: Kind, shape: Shape) -> None:
        """Add an input."""
        value = Value(name, kind, shape, float(_VALUE * max(_SCALES)), exact=True)
        self.inputs.append(value)
        self.values.append(value)

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """Add a constant, and return its name."""
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, operator: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> list[str]:
        """Add a node, and return the names of its outputs."""
        names = [f"v{len(self._nodes)}_{number}" for number in range(outputs)]
        self._nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        self._used.update(inputs)
        return names

    def add(self, name: str, like: Value, **changes: Any) -> None:
        """Offer a tensor to the steps to come."""
        value = like._replace(name=name, **changes)
        self.values.append(value._replace(exact=value.exact and value.bound < _EXACT_BELOW))

    def any(self, fits: Callable[[Value], bool] = lambda _: True) -> Value | None:
        """A value that fits; the latest is the simplest choice."""
        found = [value for value in reversed(self.values) if fits(value)]
        return self.pick(found) if found else None

    def unknown(self) -> str:
        """A size that nobody knows."""
        return f"u{len(self._nodes)}"

    def model(self) -> onnx.ModelProto:
        """The graph as it is now. What nothing else takes is an output, three at most."""
        made = [value for value in self.values if value not in self.inputs]
        leaves = [value for value in made if value.name not in self._used][-3:] or made[-1:]
        ends = [(value.name, ONNX_TYPES[value.kind], list(value.shape)) for value in self.inputs]
        graph = helper.make_graph(
            self._nodes,
            "random",
            [helper.make_tensor_value_info(*end) for end in ends],
            [helper.make_tensor_value_info(leaf.name, ONNX_TYPES[leaf.kind], list(leaf.shape)) for leaf in leaves],
            self._constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)


Inputs: TypeAlias = tuple[tuple[Kind, Shape], ...]

ROWS_ONLY: tuple[Inputs, ...] = (
    (("float", ("n", 4)),),
    (("int", ("n", 4)),),
    (("float", ("n",)),),
    (("float", ("n", "t", 3)),),
    (("float", ("n", 3, "t")),),
    (("float", ("n", 4)), ("float", ("n", 4))),
    (("float", ("n", 4)), ("int", ("n",))),
    (("float", ("n", "t", 3)), ("float", ("n", "t"))),
)
"""Inputs whose first axis is the same in all."""

INPUTS: tuple[Inputs, ...] = (
    *ROWS_ONLY,
    (("float", ("n", 4)), ("float", (4,))),
    (("float", ("n", 4)), ("float", ("m", 4))),
    (("float", ("t", "n", 2)), ("float", ("n",))),
    (("float", ("n", 4)), ("float", ())),
    (("float", (4, 3)),),
)
"""What a graph may take."""


def random_graph(pick: Pick, steps: Sequence[Step], inputs: Sequence[Inputs] = INPUTS, *, most: int = 6) -> Graph:
    """Grow one.

    Args:
        pick: Chooses everything.
        steps: What may be added.
        inputs: What it may take.
        most: At most so many steps.
    """
    graph = Graph(pick)
    for number, (kind, shape) in enumerate(pick(inputs)):
        graph.take(f"x{number}", kind, shape)
    for _ in range(pick(range(1, most + 1))):
        pick(steps)(graph)
    if graph.values == graph.inputs:
        negate(graph)
    return graph


def random_inputs(graph: Graph, rng: np.random.Generator, t: int | None = None) -> Tensors:
    """Inputs of one request: few rows, small whole numbers, sometimes times 100.

    Args:
        graph: The graph.
        rng: Chooses.
        t: The size of the axis ``t``; requests share a batch only where it is the same.
    """
    sizes = {"n": int(rng.choice([1, 2, 3, 5, 8])), "m": int(rng.choice([1, 2, 4])), "t": t or int(rng.choice([1, 4]))}
    scale = rng.choice(_SCALES)
    made: Tensors = {}
    for value in graph.inputs:
        shape = tuple(sizes[size] if isinstance(size, str) else size for size in value.shape)
        numbers: Array = scale * rng.integers(-_VALUE, _VALUE + 1, shape)
        made[value.name] = numbers.astype(NUMPY_TYPES[value.kind])
    return made


Step: TypeAlias = Callable[[Graph], None]


def negate(graph: Graph) -> None:
    """What always can be done."""
    if value := graph.any():
        graph.add(graph.node("Neg", [value.name])[0], value)
