"""Warm-up: run every shape once before the first client does, and learn what a batch costs."""

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
    """What a warm-up came to.

    Attributes:
        executions: One per shape measured. Fewer than there should be, or none, where the model failed.
        make_inputs: Makes inputs that the model has run; ``None`` where it runs none that was tried.
        reason: Why the model is not warmed up, or not wholly; ``None`` where it is.
    """

    executions: list[Execution]
    make_inputs: MakeInputs | None
    reason: str | None


class Progress(NamedTuple):
    """One step of a warm-up.

    Attributes:
        rows: Rows of the shape.
        bucket: Its cost bucket.
        seconds: What a batch of it takes; ``None`` when it was skipped to stay inside the budget.
        done: Shapes dealt with, this one included.
        total: Shapes in all.
    """

    rows: int
    bucket: int
    seconds: float | None
    done: int
    total: int


def spaced_rows(max_rows: int) -> tuple[int, ...]:
    """Few numbers of rows to fill batches up to: powers of four, and the maximum. They are among `row_buckets`."""
    return (*(rows for rows in row_buckets(max_rows)[:-1:2]), max_rows)


def spaced_buckets(buckets: Sequence[int]) -> tuple[int, ...]:
    """Few cost buckets to measure: all where they are few, otherwise each at least twice the one before, and the last.

    What lies between them is interpolated.
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
    """Every (rows, bucket), the most telling first.

    Single rows come first, those of the ends before those between them, and then twice as many rows of every bucket,
    and so on. What a short budget leaves out is predicted from what it was spent on.
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
    on_progress: Callable[[Progress], None] | None = None,
    fits: Callable[[int, int], bool] | None = None,
    clock: Callable[[], float] = perf_counter,
) -> list[Execution]:
    """Run every shape and measure it.

    A shape is run once cold and then ``repeats`` times; its duration is that of the quickest. The smallest shape
    is always measured. Another is skipped when running it twice is not expected to fit into what is left of the budget;
    its duration is expected to be in proportion to rows times bucket, and no more than that of a larger one. On a CPU,
    once neither of two doublings of a bucket's rows has saved a twentieth of the time per row, its larger shapes are
    skipped: no batch will have them (`serve_app.scheduling.batching.latency.LatencyModel.enough`).

    Args:
        backend: Loaded.
        make_inputs: E.g. `tensor_inputs`, or a processor's own sample.
        max_rows: Most rows of a batch.
        buckets: The model's cost buckets, in units proportional to work (padded length); ``(0,)`` for none.
        repeats: Measured runs per shape, at least 1; fewer once the budget is used up.
        budget_s: Time for all of it, seconds. It can be exceeded by what one shape takes longer than predicted.
        on_progress: Called after every shape.
        fits: Says whether there is memory for these rows of this bucket. Asked right before every shape but the first
            that would be run otherwise.
        clock: Seconds, monotonic.

    Returns:
        One execution per shape measured, in the order of `shapes`. Feed them to the latency model.

    Raises:
        InferenceFailed: The model failed at a shape, which the message names.
        SessionLost: Its session has ended there.
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
            on_progress(Progress(rows, bucket, seconds, done, len(plan)))
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
    """As `warm_up` with the first inputs that the model runs, and without raising for a run that fails.

    Args:
        backend: Loaded.
        candidates: Ways to make inputs, the likeliest first. Another is tried as long as there is time for it.
        max_rows: Most rows of a batch.
        buckets: The model's cost buckets.
        repeats: Measured runs per shape.
        budget_s: Time for all of it, seconds. ``None``: the smallest input is run once, and nothing is measured.
        fits: Says whether there is memory for a shape, as for `warm_up`.
        clock: Seconds, monotonic.

    Raises:
        SessionLost: The session has ended, so that there is nothing to serve.
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

    def note(step: Progress) -> None:
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
        candidates: The likeliest first; at least one.
        bucket: The smallest cost bucket.
        budget_s: Time after which no further one is tried, seconds.
        clock: Seconds, monotonic.

    Raises:
        InferenceFailed: None runs; the message is what the model said to the first of them.
        SessionLost: A session has ended: no further one can be tried.
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
        signature: The model's. An input of rank 0, or whose dimension 0 is fixed, has no rows and is made once.
        sizes: The trailing shape to use for an input, by its name.
        free_size: Size of a dimension that may vary, where ``sizes`` says nothing and there is no bucket. With a bucket
            that dimension has the bucket's size.
        rows: Whether a dimension 0 that may vary is rows; else it is as any other.
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
    """Seconds of a run of this much work, judged by the nearest smaller shape measured and the nearest larger one."""
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
    """Duration of the quickest warm run, seconds. At least one is measured, no more once ``until`` is past.

    What disturbs a run only makes it longer, and the start of a server is full of it.
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
