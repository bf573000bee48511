"""A replica's proof: tests on the loaded sessions whether requests to each build may share runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from serve_app.backends.backend import Backend, CheckedBackend, RuntimeCheck, SessionLost, not_compared
from serve_app.backends.joining.drawing import Varied
from serve_app.backends.joining.experiment import (
    SAME,
    Difference,
    claim_of,
    rounding_note,
    try_joining,
    try_padding,
    untried,
)
from serve_app.backends.joining.verdict_store import VerdictStore
from serve_app.backends.samples import Samples
from serve_app.errors import ConfigError, ServeAppError
from serve_app.payloads import PROVEN, UNVERIFIED, Joinable, Tensors
from serve_app.processors.processor import Processor, pads_to_buckets
from serve_app.replica.joining import told

logger = logging.getLogger(__name__)

_BESIDE_REQUESTS_S = 0.1
"""For how long an experiment may have the session while requests wait, seconds. Its first pairs are tried anyhow."""

_PART = 0.1
"""The experiments may take this part of the time that loading and warming up took."""

_LEAST_S = 0.05


class ProofContext(NamedTuple):
    """The settings of a replica's proofs.

    Attributes:
        max_rows: Most rows of a batch.
        tolerance: See `serve_app.backends.description.JoinSettings`.
        budget_s: Seconds for the experiments of all builds.
        records: Stores verdicts, if possible.
        keys: Record keys of the verdicts by variant, from `serve_app.backends.joining.verdict_store.record_key`.
    """

    model: str
    max_rows: int
    tolerance: float | None = None
    budget_s: float = 0.5
    records: VerdictStore | None = None
    keys: Mapping[str, str] = {}

    def find(self, variant: str) -> Joinable | None:
        """The stored verdict on a build, if any."""
        return None if self.records is None or variant not in self.keys else self.records.find(self.keys[variant])

    def keep(self, variant: str, verdict: Joinable) -> None:
        """Keep the verdict on a build."""
        if self.records is not None and variant in self.keys:
            self.records.keep(self.keys[variant], verdict)


def proof_budget_s(spent_s: float) -> float:
    """Seconds for a replica's experiments, derived from the duration of its load and warm-up."""
    return max(_LEAST_S, _PART * spent_s)


def prove_replica(
    proofs: ProofContext,
    backends: Mapping[str, Backend],
    joinable: Mapping[str, Joinable],
    processor: Processor | None,
    samples: Samples,
    examples: Mapping[str, Tensors],
) -> dict[str, Joinable]:
    """Test every build: whether rows may share runs, if its file proves it, and whether inputs may be padded.

    Args:
        backends: By variant. Loaded.
        joinable: By variant, from graph and configuration.
        processor: Makes the inputs, if there is one.
        samples: Inputs of a model without a processor.
        examples: By variant, the smallest input that ran in the warm-up.

    Raises:
        ConfigError: An optimizer makes answers wrong, and no session can be made without it.
    """
    verdicts = {}
    for variant, backend in backends.items():
        verdict, noted = joinable[variant], False
        known = proofs.find(variant)
        if known is None or verdict.verdict not in {PROVEN, known.verdict}:
            trial = _ProofTrial(proofs, backend, processor, samples, examples.get(variant), len(backends))
            check = trial.checked(verdict)
            noted = noted or (check is not None and bool(check.note))
            found = trial.padded(trial.joined(verdict))
            if check is not None:
                reason = f"{found.reason}; {check.note}" if check.note else found.reason
                found = found._replace(
                    reason=reason, rounding=check.rounding, disabled_optimizers=check.disabled_optimizers
                )
            if found.verdict != PROVEN and found.padding != "untried":
                proofs.keep(variant, found)
        else:
            found = known
            if known.disabled_optimizers and isinstance(backend, CheckedBackend):
                backend.disable(known.disabled_optimizers)
        found = found._replace(equal_sizes=verdict.equal_sizes)
        build = f"{proofs.model}, variant {variant}" if variant else proofs.model
        fine = found.joins and found.verdict != UNVERIFIED and not noted
        logger.log(logging.INFO if fine else logging.WARNING, "%s: %s", build, told(found))
        verdicts[variant] = found
    return verdicts


def try_requests(proofs: ProofContext, variant: str, backend: Backend, requests: Tensors, before: Joinable) -> Joinable:
    """Derive a build's verdict from real requests, if no other input was known to run.

    Args:
        backend: Of the build. Loaded.
        requests: Their rows.
        before: The verdict so far.

    Raises:
        ServeAppError: The model does not run them.
    """
    draw = Varied(partial(_repeated, requests), tuple(requests))
    tried = try_joining(
        backend,
        draw,
        max_rows=proofs.max_rows,
        tolerance=proofs.tolerance,
        budget_s=_BESIDE_REQUESTS_S,
        claim=claim_of(before),
        rounding=before.rounding,
    )
    verdict = before._replace(verdict=tried.verdict, reason=tried.reason, deviation=tried.deviation)
    proofs.keep(variant, verdict)
    return verdict


class _ProofTrial:
    """The experiments with one build.

    Args:
        backend: Loaded.
        processor: ``None`` for models of tensors.
        samples: Inputs of a model without a processor.
        example: The smallest input that ran in the warm-up, if any.
        builds: Number of builds that share the time.
    """

    def __init__(
        self,
        proofs: ProofContext,
        backend: Backend,
        processor: Processor | None,
        samples: Samples,
        example: Tensors | None,
        builds: int,
    ) -> None:
        self._proofs = proofs
        self._backend = backend
        self._processor = processor
        self._samples = samples
        self._example = example
        self._builds = builds
        self._draw: Varied | None = None
        self._rounding = 0.0

    def checked(self, verdict: Joinable) -> RuntimeCheck | None:
        """Compare the runtime with the unoptimized model, if it optimizes."""
        if not isinstance(self._backend, CheckedBackend):
            return None
        try:
            if verdict.verdict == PROVEN or self._processor is not None:
                draw = self._drawing()
                inputs = [draw(2, seed, scale) for seed, scale in ((1, 1.0), (2, 10.0), (3, 1.0))]
            else:  # other inputs may crash the runtime
                inputs = [] if self._example is None else [self._example]
            if not inputs:
                return not_compared("no input is known to run")
            found = self._backend.check(inputs)
        except (SessionLost, ConfigError):
            raise
        except ServeAppError as error:
            return not_compared(f"the model does not run the inputs of the experiment: {error.message}")
        self._rounding = found.rounding
        return found

    def _drawing(self) -> Varied:
        if self._draw is None:
            self._draw = _make_draw(self._backend, self._processor, self._samples, self._example)
        return self._draw

    def joined(self, verdict: Joinable) -> Joinable:
        """Test whether rows may share runs, if the file proves them independent."""
        if verdict.verdict != PROVEN:
            return verdict
        claim = claim_of(verdict)
        try:
            return try_joining(
                self._backend,
                self._drawing(),
                max_rows=self._proofs.max_rows,
                tolerance=self._proofs.tolerance,
                budget_s=self._proofs.budget_s / self._builds,
                claim=claim,
                rounding=self._rounding,
            )
        except SessionLost:
            raise
        except ServeAppError as error:
            return untried(error, claim)

    def padded(self, verdict: Joinable) -> Joinable:
        """Test whether inputs may be padded to others' size, regardless of shared runs."""
        processor = self._processor
        if processor is None or pads_to_buckets(processor):
            return verdict
        try:
            found = self._padded(processor, joins=verdict.joins)
        except SessionLost:
            raise
        except ServeAppError as error:
            reason = (
                f"{verdict.reason}; padding could not be tried, since the model does not run the experiment's inputs"
                f" ({error.message}), so nothing is padded"
            )
            return verdict._replace(padding="untried", reason=reason)
        if found is None:
            reason = f"{verdict.reason}; the model takes no lengths between those that inputs are padded to"
            return verdict._replace(padding="sizes", reason=reason)
        note = rounding_note(found, self._rounding)
        changes = f"padding to the size of others changes output {found.output!r}{found.by}{note}"
        if not found.allowed:
            so = "only requests of one size share runs" if verdict.joins else "nothing is padded"
            reason = f"{verdict.reason}; {changes}, so {so}"
            return verdict._replace(padding="changes", reason=reason)
        if found.relative == 0.0:
            return verdict._replace(padding="exact", reason=f"{verdict.reason}; padding changes nothing")
        verdict = verdict._replace(padding="close", reason=f"{verdict.reason}; {changes}")
        if verdict.joins and found.relative > verdict.deviation:
            joined = "close" if verdict.verdict == "exact" else verdict.verdict
            return verdict._replace(verdict=joined, deviation=found.relative)
        return verdict

    def _padded(self, processor: Processor, *, joins: bool) -> Difference | None:
        """The effect of padding: from the smallest size to the next and the largest, and from one between buckets.

        ``None``: the model runs no size between.
        """
        backend, buckets = self._backend, processor.buckets
        middle, between, rows = buckets[len(buckets) // 2], _between(processor), 2 if joins else 1
        for size in buckets[:2]:
            backend.run_whole(self._sized(processor, size, 1, 1))
        try:
            backend.run_whole(self._sized(processor, between, 1, 1))
        except SessionLost:
            raise
        except ServeAppError:
            return None
        worst = SAME
        for short, long, number in ((buckets[0], buckets[1], 1), (between, middle, rows), (buckets[0], buckets[-1], 1)):
            if short < long:
                request = self._sized(processor, short, number, 1)
                other = self._sized(processor, long, number, 2) if number > 1 else None
                pad, tolerance = partial(processor.pad, bucket=long), self._proofs.tolerance
                found = try_padding(backend, request, pad, other, tolerance=tolerance, rounding=self._rounding)
                worst = worst.or_worse(found)
        return worst

    def _sized(self, processor: Processor, length: int, rows: int, seed: int) -> Tensors:
        """Random inputs of a length.

        Masks are 1 everywhere and lengths are full, as a processor makes them: other values would hide padding behind
        numbers that no request has.
        """
        example = processor.example(rows, length)
        kept = _of_the_processor(example, processor.pad(example, max(length, processor.buckets[-1])))
        return self._drawing().like(lambda rows, _: processor.example(rows, length), kept)(rows, seed, 1.0)


def _between(processor: Processor) -> int:
    """A length that is no bucket, if the processor makes such examples: models may work in windows."""
    length = processor.buckets[0] + 1
    try:
        made = processor.example(1, length)
        return length if any(length in array.shape[1:] for array in made.values()) else processor.buckets[0]
    except Exception:  # the seam to foreign code: a class need not make others than its buckets
        return processor.buckets[0]


def _of_the_processor(example: Tensors, padded: Tensors) -> list[str]:
    """Inputs that mark padding: by 1 for content and 0 elsewhere, or by its length."""
    return [
        name
        for name, array in example.items()
        if array.dtype.kind in "biu"
        and (array.ndim == 1 or (bool((array == 1).all()) and not padded[name][:, -1].any()))
    ]


def _make_draw(backend: Backend, processor: Processor | None, samples: Samples, example: Tensors | None) -> Varied:
    """A way to make rows that the model runs. Without one, raises the model's error for the first."""
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
    """Repeat an example's rows, starting from another one for each seed."""
    return {name: array[(np.arange(rows) + seed) % len(array)] for name, array in example.items()}
