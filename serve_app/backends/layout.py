"""Describes where the rows of a model's tensors are, and derives the served signature."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from serve_app.errors import ConfigError
from serve_app.payloads import ModelSignature, TensorSpec


class Layout(NamedTuple):
    """Where the rows of a model's tensors are.

    Attributes:
        rows: Whether there are rows. Otherwise the tensors keep the declared shapes.
        axes: Row axis by tensor name, default 0.
    """

    rows: bool = True
    axes: Mapping[str, int] = {}


ROWS_FIRST = Layout()
NO_ROWS = Layout(rows=False)


class ServedSignature(NamedTuple):
    """A model's tensors as served.

    Attributes:
        signature: With rows, dimension 0 is ``-1`` everywhere, also where the file fixes it: the model runs in pieces.
            An output of undeclared rank is shown as ``(-1,)``. Without rows: as declared.
        fixed_rows: The number of rows that the model takes, or ``None`` if it takes any or has no rows.
    """

    signature: ModelSignature
    fixed_rows: int | None


def served(declared: ModelSignature, layout: Layout, *, model: str) -> ServedSignature:
    """Derive the served signature.

    Raises:
        ConfigError: A model with rows has no input, an input has no row dimension, or inputs disagree about the number
            of rows. Lists all faults.
    """
    if not layout.rows:
        return ServedSignature(declared, None)
    problems: list[str] = []
    fixed_rows = _fixed_rows(declared.inputs, layout, problems.append)
    if problems:
        raise ConfigError(tuple(f"model {model!r}: {problem}" for problem in problems))
    inputs, outputs = (
        tuple(_in_front(spec, layout.axes.get(spec.name, 0)) for spec in specs)
        for specs in (declared.inputs, declared.outputs)
    )
    # A request with an optional input is run as it came: that input has the shape of the file, and no rows.
    return ServedSignature(ModelSignature(inputs, outputs, declared.optional), fixed_rows)


def rows_to(array: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
    """Move the rows from dimension 0 to the model's axis."""
    return np.ascontiguousarray(np.moveaxis(array, 0, axis)) if axis else array


def rows_from(array: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
    """Move the rows to dimension 0."""
    return np.ascontiguousarray(np.moveaxis(array, axis, 0)) if 0 < axis < array.ndim else array


def declared_shape(spec: TensorSpec) -> tuple[int, ...]:
    """The declared shape; empty if the file declares no rank."""
    return spec.shape if spec.ranked else ()


def _in_front(spec: TensorSpec, axis: int) -> TensorSpec:
    shape = declared_shape(spec)
    return TensorSpec(spec.name, spec.datatype, (-1, *shape[:axis], *shape[axis + 1 :]), axis)


def _fixed_rows(inputs: Iterable[TensorSpec], layout: Layout, report: Callable[[str], None]) -> int | None:
    sizes: dict[str, int] = {}
    for spec in inputs:
        axis, shape = layout.axes.get(spec.name, 0), declared_shape(spec)
        if len(shape) > axis:
            sizes[spec.name] = shape[axis]
        else:
            report(
                f"input {spec.name!r} has no declared dimension {axis}: every input must have one, which is its rows"
            )
    if not inputs:
        report("it takes no input, so requests have no rows")
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{name!r} {'any' if size < 0 else size}" for name, size in sizes.items())
        report(f"dimension 0 of every input must be the same number of rows, found {found}")
    rows = next(iter(sizes.values()), -1)
    if rows == 0:
        report("its inputs are fixed to 0 rows")
    return rows if rows >= 0 else None
