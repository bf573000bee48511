"""The proof of a replica: whether requests to each build of its model may share runs, found on the loaded sessions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from serve_app.backends.backend import Backend, SessionLost
from serve_app.backends.joining.drawing import Draw, Varied
from serve_app.backends.joining.experiment import GRAPH, Difference, claim_of, try_joining, try_padding, untried
from serve_app.backends.joining.verdict_store import VerdictStore
from serve_app.backends.samples import Samples
from serve_app.errors import ServeAppError
from serve_app.payloads import PROVEN, UNVERIFIED, Joinable, Tensors
from serve_app.processors.processor import Processor
from serve_app.replica.joining import told

logger = logging.getLogger(__name__)

_BESIDE_REQUESTS_S = 0.1
"""For how long an experiment may have the session while requests wait, seconds. Its first pairs are tried anyhow."""

_PART = 0.1
"""The experiments may take this part of the time that loading and warming up took."""

_LEAST_S = 0.05


class ProofContext(NamedTuple):
    """How the proofs of one replica are made.

    Attributes:
        model: The model's name, for messages.
        max_rows: Most rows of a batch.
        tolerance: See `serve_app.backends.description.JoinSettings`.
        budget_s: Time for the experiments of all builds, seconds.
        records: Where verdicts are kept; ``None``: nowhere.
        keys: By variant, what its verdict depends on; see `serve_app.backends.joining.verdict_store.record_key`.
    """

    model: str
    max_rows: int
    tolerance: float | None = None
    budget_s: float = 0.5
    records: VerdictStore | None = None
    keys: Mapping[str, str] = {}

    def find(self, variant: str) -> Joinable | None:
        """The verdict that was kept of a build, or ``None``."""
        return None if self.records is None or variant not in self.keys else self.records.find(self.keys[variant])

    def keep(self, variant: str, verdict: Joinable) -> None:
        """Keep the verdict on a build."""
        if self.records is not None and variant in self.keys:
            self.records.keep(self.keys[variant], verdict)


def proof_budget_s(spent_s: float) -> float:
    """Time for the experiments of a replica whose loading and warming up took so long, seconds."""
    return max(_LEAST_S, _PART * spent_s)


def prove_replica(
    proofs: ProofContext,
    backends: Mapping[str, Backend],
    joinable: Mapping[str, Joinable],
    processor: Processor | None,
    samples: Samples,
    examples: Mapping[str, Tensors],
) -> dict[str, Joinable]:
    """Try every build of which the graph says that its rows do not depend on each other.

    Args:
        proofs: How.
        backends: By variant. Loaded.
        joinable: By variant, what the graph and the configuration say.
        processor: The model's; it makes the inputs where there is one.
        samples: Inputs of a model without a processor.
        examples: By variant, the smallest input that has run in its warm-up.

    Returns:
        The verdicts by variant.

    Raises:
        SessionLost: A session has ended.
    """
    verdicts = {}
    for variant, backend in backends.items():
        verdict = joinable[variant]
        if verdict.verdict == PROVEN:
            known = proofs.find(variant)
            claim, example = claim_of(verdict), examples.get(variant)
            verdict = known or _tried(proofs, backend, processor, samples, example, len(backends), claim)
            if known is None and verdict.verdict != PROVEN:
                proofs.keep(variant, verdict)
        build = f"{proofs.model}, variant {variant}" if variant else proofs.model
        fine = verdict.joins and verdict.verdict != UNVERIFIED
        logger.log(logging.INFO if fine else logging.WARNING, "%s: %s", build, told(verdict))
        verdicts[variant] = verdict
    return verdicts


def try_requests(
    proofs: ProofContext, variant: str, backend: Backend, requests: Tensors, claim: str = GRAPH
) -> Joinable:
    """The verdict on a build by rows of real requests, where no other input was known to run.

    Args:
        proofs: How.
        variant: The build.
        backend: It runs there. Loaded.
        requests: The rows.
        claim: What its file says, as `claim_of` tells it.

    Raises:
        ServeAppError: The model does not run them.
    """
    draw = Varied(partial(_repeated, requests), tuple(requests))
    verdict = try_joining(
        backend, draw, max_rows=proofs.max_rows, tolerance=proofs.tolerance, budget_s=_BESIDE_REQUESTS_S, claim=claim
    )
    proofs.keep(variant, verdict)
    return verdict


def _tried(
    proofs: ProofContext,
    backend: Backend,
    processor: Processor | None,
    samples: Samples,
    example: Tensors | None,
    builds: int,
    claim: str,
) -> Joinable:
    try:
        draw = _drawing(backend, processor, samples, example)
        verdict = try_joining(
            backend,
            draw,
            max_rows=proofs.max_rows,
            tolerance=proofs.tolerance,
            budget_s=proofs.budget_s / builds,
            claim=claim,
        )
        if processor is None or not processor.bucket_invariant or len(processor.buckets) < 2:
            return verdict
        found = _padded(backend, draw, processor, proofs.tolerance)
    except SessionLost:
        raise
    except ServeAppError as error:
        return untried(error, claim)
    if found.allowed and found.relative > verdict.deviation:
        padded = f"padding to the size of others changes output {found.output!r} by {found.relative:.2g} of its largest"
        verdict = verdict._replace(deviation=found.relative, reason=f"{verdict.reason}; {padded} value")
        return verdict._replace(verdict="close") if verdict.joins else verdict
    if found.allowed:
        return verdict
    return verdict._replace(
        pads=False,
        reason=f"{verdict.reason}; padding to the size of others changes output {found.output!r}, so only requests of"
        " one size share runs",
    )


def _padded(backend: Backend, draw: Draw, processor: Processor, tolerance: float | None) -> Difference:
    """What padding the smallest size to the next and to the largest changes, whichever changes more.

    Masks say that there is something everywhere, as a processor makes them: whatever else they held, the padding would
    be hidden behind numbers that no request has.
    """
    smallest = processor.buckets[0]

    def drawn(rows: int, seed: int, scale: float) -> Tensors:
        example = processor.example(rows, smallest)
        masks = _masks(example, processor.pad(example, processor.buckets[1]))
        return {**draw(rows, seed, scale), **{name: example[name] for name in masks}}

    found = [
        try_padding(backend, drawn, partial(processor.pad, bucket=larger), tolerance=tolerance)
        for larger in sorted({processor.buckets[1], processor.buckets[-1]})
    ]
    return min(found, key=lambda difference: (difference.allowed, -difference.relative))


def _masks(example: Tensors, padded: Tensors) -> list[str]:
    """Inputs that are 1 where there is something, and 0 where there is padding."""
    return [
        name
        for name, array in example.items()
        if array.ndim == 2 and array.dtype.kind in "biu" and bool((array == 1).all()) and not padded[name][:, -1].any()
    ]


def _drawing(backend: Backend, processor: Processor | None, samples: Samples, example: Tensors | None) -> Varied:
    """A way to make rows that the model runs. Raises what it said to the first of them where there is none."""
    ways: list[tuple[Callable[[int, int], Tensors], tuple[str, ...]]] = []
    if processor is not None:
        smallest = min(processor.buckets, default=0)
        ways.append((lambda rows, _: processor.example(rows, smallest), ()))
    else:
        ways.append((partial(samples.draw, like=example), samples.given))
        if example is not None:
            ways.append((partial(_repeated, example), samples.given))
            ways.append((partial(_repeated, example), tuple(example)))
    refusal: ServeAppError | None = None
    try:
        for way, kept in ways:
            draw = Varied(way, kept)
            try:
                draw.learn(backend)
                backend.run_whole(draw(2, 0, 1.0))
            except SessionLost:
                raise
            except ServeAppError as error:
                refusal = refusal or error
            else:
                return draw
        assert refusal is not None
        raise refusal
    finally:
        del refusal  # it knows this frame, and the inputs with it


def _repeated(example: Tensors, rows: int, seed: int) -> Tensors:
    """So many rows of an example, from another one on for each seed."""
    return {name: array[(np.arange(rows) + seed) % len(array)] for name, array in example.items()}
