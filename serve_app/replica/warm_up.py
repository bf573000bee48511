"""A replica's warm-up: every build of its model, with the first inputs that it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from serve_app.backends.backend import Backend
from serve_app.backends.samples import Samples
from serve_app.backends.warm_up import MakeInputs, try_warm_up
from serve_app.payloads import Execution, Tensors
from serve_app.processors.processor import Processor

logger = logging.getLogger(__name__)

_MIDDLE_ROWS = 4


class ReplicaWarmUp(NamedTuple):
    """The result of a replica's warm-up.

    Attributes:
        executions: Measurements of all builds.
        examples: By variant, the smallest input that ran. Variants that ran none are omitted.
        reason: Why the warm-up is incomplete; ``None`` if it is complete.
        middle: An input of middle size of the exact model, if it ran one.
    """

    executions: list[Execution]
    examples: dict[str, Tensors]
    reason: str | None
    middle: Tensors | None = None


def middle_inputs(make_inputs: MakeInputs, max_rows: int, buckets: Sequence[int]) -> Tensors:
    """An input of middle size: a few rows, of the middle cost bucket."""
    return make_inputs(min(_MIDDLE_ROWS, max_rows), sorted(buckets)[len(buckets) // 2] if buckets else 0)


def warm_up_replica(
    model: str,
    backends: Mapping[str, Backend],
    processor: Processor | None,
    samples: Samples,
    *,
    max_rows: int,
    budget_s: float | None,
    fits: Callable[[int, int], bool] | None = None,
) -> ReplicaWarmUp:
    """Warm up every build. A failing model is served nevertheless: the log and the result say so.

    Args:
        backends: By variant. Loaded.
        processor: Makes the inputs, if there is one.
        samples: Inputs of a model without a processor.
        max_rows: Most rows of a batch.
        budget_s: Seconds for all builds. ``None``: costs are known, and each runs once.
        fits: Whether memory suffices for a shape, as for `serve_app.backends.warm_up.warm_up`.
    """
    buckets = (0,) if processor is None else processor.buckets
    executions: list[Execution] = []
    examples: dict[str, Tensors] = {}
    reasons: list[str] = []
    middle: Tensors | None = None
    for variant, backend in backends.items():
        candidates = samples.candidates() if processor is None else iter((processor.example,))
        warm = try_warm_up(
            backend,
            candidates,
            max_rows=max_rows,
            buckets=buckets,
            budget_s=None if budget_s is None else budget_s / len(backends),
            fits=fits,
        )
        executions += [execution._replace(variant=variant) for execution in warm.executions]
        build = f"model {model!r}, variant {variant!r}" if variant else f"model {model!r}"
        if warm.make_inputs is not None:
            examples[variant] = warm.make_inputs(1, min(buckets, default=0))
            if not variant:
                middle = middle_inputs(warm.make_inputs, max_rows, buckets)
            if warm.reason is not None:
                reasons.append(f"{build}: {warm.reason}")
        else:
            advice = f"; {samples.advice}" if processor is None else ""
            reasons.append(f"{build} runs on no known input: {warm.reason}{advice}")
    for reason in reasons:
        logger.error(
            "%s. The model is served without full warm-up; its latency is learned from its first requests", reason
        )
    return ReplicaWarmUp(executions, examples, "; ".join(reasons) or None, middle)
