"""Executes the bundles of one batch on the session."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import repeat
from math import inf
from threading import local
from typing import Any, NamedTuple, TypeAlias, cast

from msgspec import Struct

from serve_app.backends.backend import Backend, StreamingBackend
from serve_app.backends.batch import BatchRun, fit, run_assembled, run_entries
from serve_app.backends.outputs import not_finite
from serve_app.errors import InferenceFailed, ServeAppError
from serve_app.payloads import EXPIRED, PROVEN, Execution, Failure, Streamed, Success, Tensors
from serve_app.processors.buckets import bucket_for
from serve_app.processors.processor import Processor, without_padding
from serve_app.replica.joining import Joining
from serve_app.replica.self_test import SelfTest
from serve_app.replica.staged import Assembled, BackgroundWork, Staged
from serve_app.replica.verification import Verification

logger = logging.getLogger(__name__)

Place: TypeAlias = tuple[Staged, int]
"""An entry: its bundle and its position there."""


class Progress(Struct, eq=False):
    """Progress of a run.

    Attributes:
        at: When it was granted, a session's run in it last began or ended, or a part was sent, on the monotonic clock;
            infinite while a part waits for its reader.
    """

    at: float


class Ran(NamedTuple):
    """The outcome of one variant's entries, before their results are filled in."""

    places: Sequence[Place]
    variant: str
    run: BatchRun


class Executor:
    """Runs the chosen bundles of one batch.

    Any thread may call `assemble` and `finish`; as many threads may call `run` as the backends allow.

    Args:
        backends: By variant.
        processor: Made the tensors of media; ``None`` for models of tensors.
        max_rows: Most rows of a run.
        self_test: Tests whether the model still works after a failed entry, if possible.
        joining: Which requests share runs; ``None``: all.
        refuse_non_finite: Whether NaN or infinity in an output fails the entry.
        lengths: Padded lengths, ascending, including the largest bucket; empty: all buckets.

    Attributes:
        streams: Whether answers are streamed: entries then run one by one, and parts leave by `Staged.outlets`.
        verification: Chooses runs to repeat, if any. Set once, before the first run.
    """

    def __init__(
        self,
        name: str,
        backends: Mapping[str, Backend],
        processor: Processor | None,
        max_rows: int,
        self_test: SelfTest | None = None,
        *,
        joining: Joining | None = None,
        refuse_non_finite: bool = False,
        lengths: Sequence[int] = (),
    ) -> None:
        self._lengths = tuple(lengths)
        self._exact = len(self._lengths) > 1 and self._lengths[-1] == len(self._lengths)
        self._joining = joining or Joining(name)
        self._name = name
        self._backends = backends
        self._processor = processor
        self._max_rows = max_rows
        self._self_test = self_test
        self._refuse_non_finite = refuse_non_finite
        self.streams = bool(backends) and all(isinstance(each, StreamingBackend) for each in backends.values())
        self.verification: Verification | None = None
        self._here = local()  # the progress of this thread's run

    def buckets(self, staged: Staged) -> list[int]:
        """The cost bucket of each entry of a bundle, rounded up to a padded length.

        0 without tensors. An entry without a bucket fails.
        """
        processor = self._processor
        if processor is None:
            return [0] * len(staged.tensors)
        buckets = [0] * len(staged.tensors)
        for index, tensors in enumerate(staged.tensors):
            if isinstance(tensors, Failure):
                continue
            try:
                buckets[index] = bucket = processor.bucket(tensors)
                sizes = self._joining.own_sizes(processor, staged.entries[index])
                if self._exact and not sizes and _is_made(staged, index):
                    buckets[index] = max(processor.lengths(tensors), default=bucket)
                elif self._lengths and not sizes:
                    buckets[index] = bucket_for(bucket, self._lengths)
            except ServeAppError as error:
                staged.tensors[index] = Failure(error.code, error.message)
        return buckets

    def assemble(self, staged: Staged) -> None:
        """Set a bundle's ``batch``, if all its entries fit into one run."""
        try:
            staged.batch = self._assembled(staged)
        except Exception:  # of the processor: whether it concerns all entries shows when they run
            logger.exception(
                "%s: assembling a bundle in advance failed; its requests are assembled when they run", self._name
            )
        staged.assembled = True

    def _assembled(self, staged: Staged) -> Assembled | None:
        if not staged.valid or (staged.rows > self._max_rows and len(staged.entries) > 1):
            return None
        inputs: list[Any] = staged.tensors  # if valid, all of them are
        if self._processor is not None:
            places = [(staged, index) for index in range(len(inputs))]
            buckets = self._buckets(places)
            if len(set(buckets)) != 1:
                return None
            inputs = self._pad(self._processor, places, inputs, buckets)
        rows = inputs[0] if len(inputs) == 1 else fit(inputs)
        return None if rows is None else Assembled(inputs, rows)

    def run(self, bundles: Sequence[Staged], progress: Progress | None = None) -> list[Ran]:
        """Run bundles that share a batch, and record the progress. Failures become outcomes of entries."""
        self._here.progress = progress = progress or Progress(0.0)
        progress.at = time.monotonic()
        if bundles[0].job is not None:
            self._do_job(bundles[0], bundles[0].job)
            return []
        try:
            if self.streams:
                return self._judge(self._run_streams(bundles))
            assembled = None
            for staged in bundles:
                if not staged.complete:
                    break
            else:
                for staged in bundles:
                    if not staged.assembled:
                        self._await_assembly(staged)
                assembled = self._run_assembled(bundles)
            ran = self._run_entries(bundles) if assembled is None else [assembled]
            return self._verify(self._judge(ran))
        finally:
            progress.at = finished = time.monotonic()
            for staged in bundles:
                staged.finished_at = finished

    def _judge(self, ran: list[Ran]) -> list[Ran]:
        """Refuse invalid answers and, after a failure of the model, test whether it still works."""
        for places, variant, run in ran:
            if self._refuse_non_finite and not self.streams:
                run.refuse_non_finite()
            if self._self_test is None:
                continue
            if run.lost:
                self._self_test.give_up()
            if run.failed:
                works = self._self_test.works(variant)
                for staged, _ in places:
                    staged.model_works = works
            elif run.executions:
                self._self_test.answered(variant)
        return ran

    def _run_streams(self, bundles: Sequence[Staged]) -> list[Ran]:
        """Run streamed entries one by one, and send each part."""
        ran: list[Ran] = []
        for staged in bundles:
            staged.executed_at = time.monotonic()
            for index in staged.chosen:
                run = BatchRun()
                ended = staged.outlets[index].stopped or self._run_stream(run, staged, index)
                if ended is not None:
                    staged.results[index] = ended
                    staged.executions += run.executions
                ran.append(Ran([] if ended is not None else [(staged, index)], staged.runs_on, run))
        return ran

    def _run_stream(self, run: BatchRun, staged: Staged, index: int) -> Failure | None:
        """Run an entry, and record its outcome. Returns why the rest of its answer is unwanted, if so."""
        backend, outlet = cast("StreamingBackend", self._backends[staged.runs_on]), staged.outlets[index]
        began, ended = self._progress(), None
        outlet.begin()
        try:
            with closing(backend.stream(cast("Tensors", staged.tensors[index]))) as parts:
                for outputs in parts:
                    now = self._progress()
                    if not run.executions:  # deadlines are for the first part, and so are predictions
                        run.executions.append(Execution(staged.counts[index], 0, now - began))
                    if self._refuse_non_finite:
                        _check_finite(outputs)
                    self._here.progress.at = inf  # the session is well: it waits for the reader, and not for long
                    ended = outlet.put(outputs)
                    self._progress()
                    if ended is not None:
                        break
        except ServeAppError as error:
            run.fail(0, error)
        except Exception:  # the seam to foreign code
            logger.exception("%s failed on request %s", self._name, staged.entries[index].origin)
            run.fail(0, InferenceFailed(f"model {self._name} failed on this request"))
        else:
            if ended is None:
                run.add([0], [staged.counts[index]], cast("Tensors", Streamed(outlet.count, outlet.collected)))
        return ended

    def _do_job(self, staged: Staged, job: BackgroundWork) -> None:
        """Do a job instead of a run."""
        job.run()
        staged.finished_at = self._progress()

    def _verify(self, ran: list[Ran]) -> list[Ran]:
        """Choose answers to verify alone, and requests that may show whether runs can be shared."""
        verification = self.verification
        if verification is None:
            return ran
        for places, variant, run in ran:
            if not run.executions:
                continue
            staged, index = places[0]
            if self._joining.of(variant).verdict == PROVEN:
                for (staged, index), outcome in zip(places, run.outcomes, strict=True):
                    if not isinstance(outcome, ServeAppError):
                        verification.offer(variant, cast("Tensors", staged.tensors[index]), staged.sender)
            elif len(places) > 1 or staged.counts[index] > self._max_rows:
                seconds = sum([execution.seconds for execution in run.executions])
                chosen = verification.choose(variant, seconds, len(places))
                if chosen is None:
                    continue
                staged, index = places[chosen]
                inputs, outputs = staged.tensors[index], run.outcomes[chosen]
                if staged.whole[index] or isinstance(inputs, Failure) or isinstance(outputs, ServeAppError):
                    continue
                made, padded_to = _is_made(staged, index), self._buckets(places)[chosen]
                own, sender = staged.buckets[index], staged.sender
                verification.check(variant, inputs, outputs, own, sender, made=made, padded_to=padded_to)
        return ran

    @staticmethod
    def finish(ran: Sequence[Ran]) -> None:
        """Fill in the results of completed runs."""
        for places, variant, run in ran:
            for (staged, index), outcome in zip(places, run.outcomes, strict=True):
                staged.results[index] = (
                    Failure(outcome.code, outcome.message) if isinstance(outcome, ServeAppError) else Success(outcome)
                )
                if isinstance(outcome, InferenceFailed):
                    logger.error("The model failed on request %s", staged.entries[index].origin)
            if not run.executions:
                continue
            executions = run.executions
            if variant:
                executions = [execution._replace(variant=variant) for execution in executions]
            last: Staged | None = None
            for staged, _ in places:
                if staged is not last:
                    staged.executions.extend(executions)
                    last = staged

    def _run_assembled(self, bundles: Sequence[Staged]) -> Ran | None:
        """Run bundles as assembled; ``None`` unless they fit together and none has expired."""
        variant, bucket = bundles[0].entries[0].variant, bundles[0].bucket
        batches: list[Tensors] = []
        entries: list[Tensors] = []
        counts: list[int] = []
        places: list[Place] = []
        earliest = inf
        for staged in bundles:
            if staged.batch is None or staged.entries[0].variant != variant or staged.bucket != bucket:
                return None
            batches.append(staged.batch.rows)
            entries += staged.batch.entries
            counts += staged.counts
            places.extend(zip(repeat(staged), range(len(staged.entries))))
            earliest = min(earliest, *staged.deadlines)
        backend = self._backends.get(variant)
        if backend is None or variant in self._joining.unbatched_variants:
            return None
        batch = batches[0] if len(batches) == 1 else fit(batches)
        if batch is None:
            return None
        now = time.monotonic()
        if earliest <= now:
            return None
        for staged in bundles:
            staged.executed_at = now
        in_time = partial(self._in_time, places)
        run = run_assembled(backend, batch, entries, counts, self._max_rows, bucket, self._progress, in_time)
        return Ran(places, variant, run)

    def _await_assembly(self, staged: Staged) -> None:
        """Have the bundle assembled, here unless another thread has begun."""
        if staged.assembling is not None and not staged.assembling.cancel():
            staged.assembling.result()
        elif not staged.assembled:
            self.assemble(staged)

    def _run_entries(self, bundles: Sequence[Staged]) -> list[Ran]:
        started = time.monotonic()
        variant = bundles[0].runs_on
        places: list[Place] = []
        for staged in bundles:
            staged.executed_at = started
            for index in staged.chosen:
                if staged.deadlines[index] <= started:
                    staged.results[index] = EXPIRED
                else:
                    places.append((staged, index))
        if not places:
            return []
        return self._run_places(variant, places)

    def _run_places(self, variant: str, places: Sequence[Place]) -> list[Ran]:
        try:
            return [self._run_variant(variant, places)]
        except Exception:
            # E.g. a router that still knows a variant which a redeploy has removed, or a processor that cannot pad.
            logger.exception("%s could not run the entries for its variant %r", self._name, variant)
        if len(places) > 1 and self._processor is not None and variant in self._backends:
            return [ran for place in places for ran in self._run_places(variant, [place])]
        for staged, index in places:
            staged.results[index] = Failure(InferenceFailed.code, f"model {self._name} failed on this request")
        return []

    def _run_variant(self, variant: str, places: Sequence[Place]) -> Ran:
        inputs = [cast("Tensors", staged.tensors[index]) for staged, index in places]
        buckets = None
        if self._processor is not None:
            buckets = self._buckets(places)
            inputs = self._pad(self._processor, places, inputs, buckets)
        in_time = partial(self._in_time, places)
        whole = [staged.counts[index] if self._runs_alone(staged, index) else 0 for staged, index in places]
        run = run_entries(self._backends[variant], inputs, self._max_rows, buckets, self._progress, in_time, whole)
        return Ran(places, variant, run)

    @staticmethod
    def _in_time(places: Sequence[Place], position: int) -> bool:
        """Whether an entry's answer is still wanted."""
        staged, index = places[position]
        return staged.deadlines[index] > time.monotonic()

    def _progress(self) -> float:
        """The clock of the session's runs, read before and after each: so it also records their ends."""
        self._here.progress.at = now = time.monotonic()
        return now

    def _buckets(self, places: Sequence[Place]) -> list[int]:
        """Each entry's bucket in a shared run, as the router prices it.

        Entries use the largest of their buckets if that keeps their answers, otherwise their own: entries of one bucket
        then still share a run. A client's own tensors run unchanged.
        """
        processor = self._processor
        if processor is None:
            return [0] * len(places)
        buckets = [staged.buckets[index] for staged, index in places]
        if processor.bucket_invariant:
            made = [_is_made(staged, index) and self._may_grow(staged, index) for staged, index in places]
            largest = max((bucket for bucket, ours in zip(buckets, made, strict=True) if ours), default=0)
            buckets = [largest if ours else bucket for bucket, ours in zip(buckets, made, strict=True)]
        return buckets

    def _pads(self, processor: Processor, staged: Staged) -> bool:
        """Whether an entry is padded: if that was shown harmless, or the model takes only these sizes."""
        return self._joining.of(staged.runs_on).pads or self._joining.own_sizes(processor, staged.entries[0])

    def _may_grow(self, staged: Staged, index: int) -> bool:
        """Whether an entry's answer stays the same when padded to others' bucket."""
        return not self._runs_alone(staged, index) and self._joining.of(staged.runs_on).pads

    def _runs_alone(self, staged: Staged, index: int) -> bool:
        """Whether an entry runs alone. It may have arrived before that was known."""
        return staged.whole[index] or not self._joining.of(staged.runs_on).joins

    def _pad(
        self,
        processor: Processor,
        places: Sequence[Place],
        inputs: Sequence[Tensors],
        buckets: Sequence[int],
    ) -> list[Tensors]:
        """Pad the processor's tensors to a bucket, to share a run, unless that changes the answer."""
        padded = []
        for (staged, index), tensors, bucket in zip(places, inputs, buckets, strict=True):
            if not _is_made(staged, index):
                padded.append(tensors)
            elif self._pads(processor, staged):
                padded.append(processor.pad(tensors, bucket))
            else:
                padded.append(without_padding(processor, tensors))
        return padded


def _check_finite(outputs: Tensors) -> None:
    for _, name in not_finite(outputs, [1]):
        raise InferenceFailed(f"output {name!r} contains NaN or infinity for this input")


def _is_made(staged: Staged, index: int) -> bool:
    """Whether the processor, not the client, made an entry's tensors."""
    return not isinstance(staged.entries[index].payload, dict)
