"""Warm-up: runs each shape before the first client does, and measures the cost of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import NamedTuple, TypeAlias

from serve_app.backends.backend import Backend, SessionLost
from serve_app.backends.synthetic_inputs import SYNTHETIC_INPUTS, filled, shape_of
from serve_app.domain.row_sizes import row_buckets
from serve_app.errors import InferenceFailed, ServeAppError
from serve_app.payloads import Execution, ModelSignature, Tensors
from serve_app.scheduling.batching.latency import PAYS

_FEW_BUCKETS = 8

MakeInputs: TypeAlias = Callable[[int, int], Tensors]
"""Makes valid inputs of (rows, bucket)."""


class WarmUp(NamedTuple):
    """The result of a warm-up.

    Attributes:
        executions: One per shape measured; incomplete or empty if the model failed.
        make_inputs: Makes inputs that the model has run; ``None`` if it ran none.
        reason: Why the warm-up is incomplete; ``None`` if it is complete.
    """

    executions: list[Execution]
    make_inputs: MakeInputs | None
    reason: str | None


class WarmUpProgress(NamedTuple):
    """One step of a warm-up.

    Attributes:
        bucket: Cost bucket; 0 without buckets.
        seconds: Duration of a batch; ``None``: skipped to stay in the budget.
        done: Shapes finished, this one included.
    """

    rows: int
    bucket: int
    seconds: float | None
    done: int
    total: int


def spaced_buckets(buckets: Sequence[int]) -> tuple[int, ...]:
    """A few cost buckets to measure: all if few, otherwise each at least twice the previous, and the last.

    Costs between them are interpolated.
    """
    ordered = sorted(set(buckets)) or [0]
    if len(ordered) <= _FEW_BUCKETS:
        return tuple(ordered)
    chosen = ordered[:1]
    for bucket in ordered:
        if bucket >= max(2 * chosen[-1], 1):
            chosen.append(bucket)
    return (*chosen, ordered[-1]) if chosen[-1] < ordered[-1] else tuple(chosen)


def shapes(max_rows: int, buckets: Sequence[int]) -> list[tuple[int, int]]:
    """Every (rows, bucket), the most informative first.

    Single rows come first, those of the extreme buckets leading, then twice as many rows of each bucket, and so on.
    Shapes beyond a short budget are predicted from the measured ones.
    """
    ordered = spaced_buckets(buckets)
    ends = [(1, ordered[0]), (1, ordered[-1])]
    return list(dict.fromkeys([*ends, *((rows, bucket) for rows in row_buckets(max_rows) for bucket in ordered)]))


def warm_up(
    backend: Backend,
    make_inputs: MakeInputs,
    *,
    max_rows: int,
    buckets: Sequence[int] = (0,),
    repeats: int = 3,
    budget_s: float = 30.0,
    on_progress: Callable[[WarmUpProgress], None] | None = None,
    fits: Callable[[int, int], bool] | None = None,
    clock: Callable[[], float] = perf_counter,
) -> list[Execution]:
    """Run every shape and measure it.

    A shape runs once cold and then ``repeats`` times; the fastest run counts. The smallest shape is always measured.
    Another is skipped if running it twice is not expected to fit into the remaining budget; its expected duration is
    proportional to rows times bucket, at most that of a larger one. On a CPU, once neither of two doublings of a
    bucket's rows has saved a twentieth of the time per row, its larger shapes are skipped: no batch will have them
    (`serve_app.scheduling.batching.latency.LatencyModel.enough`).

    Args:
        backend: Loaded.
        make_inputs: E.g. `tensor_inputs`, or a processor's sample.
        buckets: Cost buckets in units proportional to work (padded length); ``(0,)`` for none.
        repeats: Measured runs per shape, at least 1; fewer after the budget.
        budget_s: Seconds for all. One underpredicted shape may exceed it.
        on_progress: Called after each shape.
        fits: Whether memory suffices for these rows and bucket. Asked right before each shape but the first.

    Returns:
        One per shape measured, in the order of `shapes`, for the latency model.

    Raises:
        InferenceFailed: The model failed at a shape, which the message names.
    """
    started = clock()
    plan = shapes(max_rows, buckets)
    measured: dict[int, float] = {}  # work -> seconds
    per_row: dict[int, list[float]] = {}  # bucket -> seconds per row, of ever more rows
    executions: list[Execution] = []
    for done, (rows, bucket) in enumerate(plan, start=1):
        work = rows * max(bucket, 1)
        left = budget_s - (clock() - started)
        seconds: float | None = None
        known = per_row.setdefault(bucket, [])
        saves = backend.device != "cpu" or len(known) < 3 or min(known[-2:]) < PAYS * known[-3]
        # `fits` comes last: it counts the memory of a shape that it allows.
        if not measured or (saves and 2 * _predict(measured, work) <= left and (fits is None or fits(rows, bucket))):
            seconds = _measure(backend, make_inputs, rows, bucket, repeats, started + budget_s, clock)
            measured[work] = seconds
            known.append(seconds / rows)
            executions.append(Execution(rows, bucket, seconds))
        if on_progress is not None:
            on_progress(WarmUpProgress(rows, bucket, seconds, done, len(plan)))
    return executions


def try_warm_up(
    backend: Backend,
    candidates: Iterable[MakeInputs],
    *,
    max_rows: int,
    buckets: Sequence[int] = (0,),
    repeats: int = 3,
    budget_s: float | None = 30.0,
    fits: Callable[[int, int], bool] | None = None,
    clock: Callable[[], float] = perf_counter,
) -> WarmUp:
    """`warm_up` with the first inputs that the model runs; a failed run does not raise.

    Args:
        candidates: The most likely first. Others are tried while there is time.
        budget_s: Seconds for all. ``None``: run the smallest input once and measure nothing.
    """
    began = clock()
    try:
        make_inputs = first_that_runs([backend], candidates, min(buckets, default=0), budget_s or 0.0, clock)
    except SessionLost:
        raise
    except InferenceFailed as error:
        return WarmUp([], None, error.message)
    if budget_s is None:
        return WarmUp([], make_inputs, None)
    executions: list[Execution] = []

    def note(step: WarmUpProgress) -> None:
        if step.seconds is not None:
            executions.append(Execution(step.rows, step.bucket, step.seconds))

    reason = None
    try:
        warm_up(
            backend,
            make_inputs,
            max_rows=max_rows,
            buckets=buckets,
            repeats=repeats,
            budget_s=budget_s - (clock() - began),
            on_progress=note,
            fits=fits,
            clock=clock,
        )
    except SessionLost:
        raise
    except ServeAppError as error:
        reason = error.message
    return WarmUp(executions, make_inputs, reason)


def first_that_runs(
    backends: Iterable[Backend],
    candidates: Iterable[MakeInputs],
    bucket: int = 0,
    budget_s: float = 30.0,
    clock: Callable[[], float] = perf_counter,
) -> MakeInputs:
    """The first way to make inputs whose smallest input all backends run.

    Args:
        backends: Loaded; builds of one model.
        candidates: The most likely first; at least one.
        bucket: The smallest cost bucket.
        budget_s: Seconds after which no other is tried.

    Raises:
        InferenceFailed: None runs; the message is the model's for the first.
        SessionLost: A session has ended: no other can be tried.
    """
    until = clock() + budget_s
    builds = list(backends)
    refusal: str | None = None  # and not the error: it knows this frame
    for make_inputs in candidates:
        try:
            inputs = make_inputs(1, bucket)
            for backend in builds:
                backend.run(inputs)
        except SessionLost:
            raise
        except ServeAppError as error:
            refusal = refusal or error.message
            if clock() >= until:
                break
        else:
            return make_inputs
    raise InferenceFailed(refusal or "there is no input to try")


def tensor_inputs(
    signature: ModelSignature,
    sizes: Mapping[str, Sequence[int]] | None = None,
    free_size: int = 1,
    *,
    rows: bool = True,
) -> MakeInputs:
    """Inputs for any model: ones (a valid token, a mask that hides nothing), empty strings for BYTES.

    Args:
        signature: An input of rank 0, or with a fixed dimension 0, has no rows and is made once.
        sizes: Trailing shapes by input.
        free_size: Size of a variable dimension without ``sizes`` and bucket. A bucket sets its size.
        rows: Whether a variable dimension 0 is rows.
    """

    def make(count: int, bucket: int) -> Tensors:
        return {
            spec.name: filled(
                spec,
                shape_of(spec, count, (sizes or {}).get(spec.name), bucket or free_size, batched=rows),
                SYNTHETIC_INPUTS[0],
            )
            for spec in signature.inputs
        }

    return make


def _predict(measured: Mapping[int, float], work: int) -> float:
    """Estimated seconds for this work, from the nearest smaller and larger measured shapes."""
    bounds = []
    smaller = [known for known in measured if known <= work]
    if smaller:
        bounds.append(measured[max(smaller)] * work / max(smaller))
    larger = [known for known in measured if known >= work]
    if larger:
        bounds.append(measured[min(larger)])
    return min(bounds)


def _measure(
    backend: Backend,
    make_inputs: MakeInputs,
    rows: int,
    bucket: int,
    repeats: int,
    until: float,
    clock: Callable[[], float],
) -> float:
    """Seconds of the fastest warm run. At least one is measured, no more after ``until``.

    Disturbances only lengthen a run, and a server's start has many.
    """
    inputs = make_inputs(rows, bucket)
    durations: list[float] = []
    try:
        backend.run(inputs)
        while not durations or (len(durations) < repeats and clock() < until):
            start = clock()
            backend.run(inputs)
            durations.append(clock() - start)
    except InferenceFailed as error:
        where = f"{rows} rows" if bucket == 0 else f"{rows} rows of size {bucket}"
        kind = SessionLost if isinstance(error, SessionLost) else InferenceFailed
        raise kind(f"warm-up with {where}: {error.message}") from error
    return min(durations)
