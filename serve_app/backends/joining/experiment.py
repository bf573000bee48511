"""The experiment: compares a request's answers alone and in a batch, on the serving session.

A graph proves that rows are independent, or a class declares it (`serve_app.backends.kind.ModelFile`). Neither covers
the kernels: they may sum in another order for another number of rows, and a faulty one may do worse. So rows run alone
and in batches of several sizes, at both ends, beside neighbours that are ordinary, a hundred times larger, and NaN, and
the answers are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from serve_app.backends.backend import Backend, SessionLost
from serve_app.backends.batch import assemble
from serve_app.backends.joining.drawing import Draw
from serve_app.errors import ServeAppError
from serve_app.payloads import DTYPES, PROVEN, Joinable, Tensors

TOLERANCES: Final[Mapping[str, float]] = MappingProxyType(
    {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
)
"""Largest difference by dtype, relative to the largest value of the output; 0 for what is not listed.

A sum of k products in another order differs by about sqrt(k) roundings: 1e-5 of FP32 is that for k = 7,000, and 1e-12
of FP64 has room to spare. FP16 and BF16 are summed in FP32 and rounded once: 2e-3 and 1.6e-2 are two of their
roundings, one of each side.
"""

GRAPH: Final = "the graph treats rows one by one"
"""What a graph says that proves it."""

_UNTRIED: Final = ", but there is no input to try it with: "

_PAIRS: Final = ((1, 1), (1, 3), (2, 1), (5, 2), (3, 8), (5, 33))
"""Rows of a request and of its neighbours. A full batch follows where one is larger."""

_NEIGHBOURS: Final = (1.0, 100.0, 1.0, np.nan, 10.0, 100.0, 1.0)
"""What the floats of the neighbours are multiplied by, in turn."""

_AT_LEAST: Final = 2
"""Pairs that are tried however long they take."""


class Difference(NamedTuple):
    """How far apart two answers are.

    Attributes:
        relative: The largest difference relative to the output's largest value; ``inf`` for other shapes, differing
            text or booleans, and NaN opposite a number.
        allowed: Whether it is within the tolerance.
    """

    relative: float
    allowed: bool
    output: str

    def or_worse(self, other: Difference) -> Difference:
        """The worse of both: not allowed, or larger."""
        return other if (other.allowed, -other.relative) < (self.allowed, -self.relative) else self

    @property
    def by(self) -> str:
        """Its size in words; empty if it is no number."""
        return f" by {self.relative:.2g} of its largest value" if np.isfinite(self.relative) else ""


SAME: Final = Difference(0.0, allowed=True, output="")


def difference(alone: Tensors, together: Tensors, tolerance: float | None, rounding: float = 0.0) -> Difference:
    """Compare a request's answer alone with its answer in a shared run.

    Args:
        together: The request's rows only.
        tolerance: For numbers; see `serve_app.backends.description.JoinSettings`.
        rounding: Without a tolerance, floats may differ by twice this, since either may be this far from the right
            value.
    """
    worst = SAME
    for name, expected in alone.items():
        relative = _relative(expected, together[name])
        limit = TOLERANCES.get(expected.dtype.name, 0.0) if tolerance is None else tolerance
        if tolerance is None and limit:
            limit = max(limit, 2 * rounding)
        worst = worst.or_worse(Difference(relative, relative <= limit, name))
    return worst


def of_floats(expected: Tensors, found: Tensors) -> Difference:
    """The largest difference of floats of one shape. A label may flip by rounding and change a number of results."""
    alike = {
        name: array
        for name, array in expected.items()
        if _holds_floats(array) and array.shape == found[name].shape and np.isfinite(array).all()
    }
    worst = difference(alike, found, None)
    return worst if np.isfinite(worst.relative) else SAME


def try_joining(
    backend: Backend,
    draw: Draw,
    *,
    max_rows: int,
    tolerance: float | None,
    budget_s: float,
    clock: Callable[[], float] = perf_counter,
    claim: str = GRAPH,
    rounding: float = 0.0,
) -> Joinable:
    """Run rows alone and together, and return the verdict.

    Args:
        backend: Loaded; its file declares that rows are independent.
        draw: Makes inputs that the backend runs.
        budget_s: Time for all runs, seconds. The first two pairs always run.
        claim: The file's claim, from `claim_of`.

    Raises:
        ServeAppError: The model does not run these inputs.
    """
    began, worst, slowest = clock(), SAME, 0.0
    tried: list[tuple[int, int]] = []
    first = draw(1, 0, 1.0)
    again = difference(backend.run_whole(first), backend.run_whole(first), tolerance, rounding)
    if not again.allowed:
        return Joinable(
            "dependent",
            f"output {again.output!r} differs from run to run on the same input{again.by}: the model draws random"
            " numbers or keeps a state, so nobody can tell whether runs may be shared",
        )
    full = [(1, max_rows - 1)] if max_rows > sum(_PAIRS[-1]) else []
    for number, (rows, neighbours) in enumerate([*_PAIRS, *full]):
        others = min(neighbours, max(1, max_rows - rows))
        weight = 2 * (rows + others)
        if len(tried) >= _AT_LEAST and clock() - began + slowest * weight > budget_s:
            break
        start = clock()
        request = draw(rows, 2 * number + 1, 1.0 if number % 2 else 10.0)
        found = _beside_one_of(backend, request, draw, others, number, tolerance, rounding)
        slowest = max(slowest, (clock() - start) / weight)
        tried.append((rows, others))
        worst = worst.or_worse(found)
        if not worst.allowed:
            allowed = "" if tolerance is None else f" ({tolerance:g}): raise it, or leave it out"
            return Joinable(
                "dependent",
                f"output {worst.output!r} of {rows} rows differs{worst.by} beside {others} others, more than"
                f" batching.tolerance allows{allowed}",
                finite(worst.relative),
            )
    sizes, beside = zip(*tried, strict=True)
    runs = f"{len(tried)} requests of 1 to {max(sizes)} rows, alone and beside {_range(beside)} others"
    if worst.relative == 0.0:
        return Joinable("exact", f"{claim}; {runs}: the same bit for bit")
    return Joinable(
        "close",
        f"{claim}; {runs}: output {worst.output!r} differs{worst.by}{rounding_note(worst, rounding)}",
        worst.relative,
    )


def _beside_one_of(
    backend: Backend,
    request: Tensors,
    draw: Draw,
    others: int,
    number: int,
    tolerance: float | None,
    rounding: float,
) -> Difference:
    """Compare a request beside one neighbour of a pair, or beside ordinary ones if the model refuses those."""
    try:
        return _beside(backend, request, draw(others, 2 * number + 2, _NEIGHBOURS[number]), tolerance, rounding)
    except SessionLost:
        raise
    except ServeAppError:
        return _beside(backend, request, draw(others, 2 * number + 2, 1.0), tolerance, rounding)


def _beside(
    backend: Backend, request: Tensors, others: Tensors, tolerance: float | None, rounding: float
) -> Difference:
    """Compare a request alone with the same request in front of and behind others."""
    alone = backend.run_whole(request)
    rows = len(next(iter(request.values())))
    worst = SAME
    for parts, place in (((request, others), slice(None, rows)), ((others, request), slice(-rows, None))):
        together = backend.run(assemble(parts))
        own = {name: array[place] for name, array in together.items()}
        worst = worst.or_worse(difference(alone, own, tolerance, rounding))
    return worst


def try_padding(
    backend: Backend,
    request: Tensors,
    pad: Callable[[Tensors], Tensors],
    larger: Tensors | None,
    *,
    tolerance: float | None,
    rounding: float = 0.0,
) -> Difference:
    """Compare the answer to an input with the answer to the same input padded to a larger size.

    For outputs that grow with the inputs, only the leading part counts: the rest answers padding.

    Args:
        larger: Another input of the padded size. Both also run together, either one in front. ``None``: they share no
            runs.

    Raises:
        ServeAppError: The model does not run these inputs.
    """
    alone, padded = backend.run_whole(request), pad(request)
    worst = difference(alone, leading_part(backend.run_whole(padded), alone), tolerance, rounding)
    if larger is not None:
        other, rows = backend.run_whole(larger), len(next(iter(request.values())))
        for parts, mine, others in (
            ((padded, larger), slice(None, rows), slice(rows, None)),
            ((larger, padded), slice(-rows, None), slice(None, -rows)),
        ):
            together = backend.run(assemble(parts))
            own = {name: array[mine] for name, array in together.items()}
            worst = worst.or_worse(difference(alone, leading_part(own, alone), tolerance, rounding))
            theirs = {name: array[others] for name, array in together.items()}
            worst = worst.or_worse(difference(other, theirs, tolerance, rounding))
    return worst


def leading_part(outputs: Tensors, alone: Tensors) -> Tensors:
    """The part of a padded input's outputs that answers the input."""
    return {
        name: array[tuple(map(slice, alone[name].shape))] if array.ndim == alone[name].ndim else array
        for name, array in outputs.items()
    }


def sensitivity(backend: Backend, inputs: Tensors, answer: Tensors) -> float:
    """How far an answer moves when the last bit of every input float moves; 0.0 without floats.

    Where large numbers cancel, their rounding remains: two orders of summation then differ by far more than the
    tolerance, and by about as much as this. (A probe of the condition number: Higham, Accuracy and Stability of
    Numerical Algorithms, chapter 1.)

    Raises:
        ServeAppError: The model does not run these inputs.
    """
    rng = np.random.default_rng(0)
    moved = {
        name: np.nextafter(array, np.where(rng.random(array.shape) < 0.5, -np.inf, np.inf).astype(array.dtype))
        if _holds_floats(array)
        else array
        for name, array in inputs.items()
    }
    return difference(answer, backend.run_whole(moved), None).relative


def _holds_floats(array: npt.NDArray[Any]) -> bool:
    return array.dtype.kind == "f" or array.dtype == DTYPES["BF16"]


def _relative(expected: npt.NDArray[Any], found: npt.NDArray[Any]) -> float:
    if expected.shape != found.shape or expected.dtype.kind in "OSUb" or found.dtype.kind in "OSUb":
        return 0.0 if expected.shape == found.shape and bool((expected == found).all()) else float("inf")
    if expected.size == 0 or expected.tobytes() == found.tobytes():
        return 0.0
    wide = np.longdouble if expected.dtype.itemsize > 4 else np.float64
    left: npt.NDArray[Any] = expected.astype(wide)
    right: npt.NDArray[Any] = found.astype(wide)
    with np.errstate(all="ignore"):
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        if same.all():
            return 0.0
        gap = np.abs(left - right)[~same].max()
        scale = np.abs(left[np.isfinite(left)]).max(initial=0.0)
    if not np.isfinite(gap):
        return float("inf")
    return float(gap / scale) if scale else float("inf")


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least} to {most}" if most > least else str(most)


def rounding_note(found: Difference, rounding: float) -> str:
    """The note that a difference above FP32's tolerance is allowed as rounding; empty for others."""
    if not TOLERANCES["float32"] < found.relative <= 2 * rounding:
        return ""
    return f", within twice the model's own rounding, {rounding:.2g}"


def finite(value: float) -> float:
    """The value as JSON can hold it."""
    return value if np.isfinite(value) else 1.0


def untried(error: ServeAppError, claim: str = GRAPH) -> Joinable:
    """The verdict if the model runs none of the available inputs: the first requests have to serve."""
    return Joinable(PROVEN, f"{claim}{_UNTRIED}{error.message}; give some in warm_up, or wait for the first requests")


def claim_of(verdict: Joinable) -> str:
    """The claim of a model's file in a verdict that no experiment has confirmed yet."""
    return verdict.reason.partition(_UNTRIED)[0]
