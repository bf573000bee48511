"""Where the rows of a model's tensors are, and what its signature is with them in front."""

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
        rows: Whether there are any. Otherwise the tensors are served with the shapes that the model's file declares.
        axes: The axis of the rows by the name of a tensor, 0 where it is not named.
    """

    rows: bool = True
    axes: Mapping[str, int] = {}


ROWS_FIRST = Layout()
NO_ROWS = Layout(rows=False)


class ServedSignature(NamedTuple):
    """A model's tensors as they are served.

    Attributes:
        signature: Of a model with rows, dimension 0 is ``-1`` everywhere, also where the file fixes it: it is run in
            pieces. An output whose rank the model does not declare is shown as ``(-1,)``. Without rows: as declared.
        fixed_rows: The number of rows that the model takes, or ``None`` when it takes any or has none.
    """

    signature: ModelSignature
    fixed_rows: int | None


def served(declared: ModelSignature, layout: Layout, *, model: str) -> ServedSignature:
    """The signature that a model is served with.

    Args:
        declared: With the shapes that the model's file declares.
        layout: Where its rows are.
        model: The model's name, for messages.

    Raises:
        ConfigError: Of a model with rows: it has no input, an input has no dimension for them, or the inputs disagree
            about their number. Every fault found is named.
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
    """Move the rows from dimension 0 to where the model has them."""
    return np.ascontiguousarray(np.moveaxis(array, 0, axis)) if axis else array


def rows_from(array: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
    """Move the rows to dimension 0."""
    return np.ascontiguousarray(np.moveaxis(array, axis, 0)) if 0 < axis < array.ndim else array


def declared_shape(spec: TensorSpec) -> tuple[int, ...]:
    """The shape as the file declares it; empty where it does not say how many dimensions there are."""
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
