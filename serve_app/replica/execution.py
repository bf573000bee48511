"""What happens to the bundles of one batch while they have the session."""

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
from serve_app.replica.staged import Assembled, Job, Staged
from serve_app.replica.verification import Verification

logger = logging.getLogger(__name__)

Place: TypeAlias = tuple[Staged, int]
"""An entry: its bundle and its position there."""


class Progress(Struct, eq=False):
    """How far a run is.

    Attributes:
        at: When it was granted, or a session's run in it last began or ended, or a part left, on the monotonic clock;
            infinite while a part waits for its reader.
    """

    at: float


class Ran(NamedTuple):
    """What the entries of one variant came to. Their results are still to be filled in."""

    places: Sequence[Place]
    variant: str
    run: BatchRun


class Executor:
    """Runs what the gate has chosen of the bundles of one batch.

    `assemble` may be called in any thread; `run` in as many at once as the backends allow; `finish` in any.

    Args:
        name: The model's name, for messages.
        backends: By variant.
        processor: Made the tensors of media; ``None`` for a model that takes tensors only.
        max_rows: Most rows of a run.
        self_test: Tells whether the model still works when an entry has failed; ``None``: nobody can tell.
        joining: Which requests share runs; ``None``: all do.
        refuse_non_finite: Whether an entry fails whose output holds NaN or infinity.
        lengths: What rows are padded to, ascending, the largest bucket among them; none: to every bucket.

    Attributes:
        streams: Whether answers come in parts: then entries run one by one, and their parts leave by `Staged.outlets`.
        verification: Chooses what is run again; ``None``: nothing is. Set once, before the first run.
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
        """The cost bucket of every entry of a bundle, up to the next length that rows are padded to.

        0 where it has no tensors. One that has no bucket fails.
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
        """Set a bundle's ``batch``, where all of its entries fit into one run."""
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
        """Run bundles that share a batch, and note the progress. What fails is noted as the outcome of its entries."""
        self._here.progress = progress = progress or Progress(0.0)
        progress.at = time.monotonic()
        if bundles[0].job is not None:
            self._do(bundles[0], bundles[0].job)
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
        """Refuse what is no answer, and where the model has failed, find out whether it still works at all."""
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
        """Run entries whose answers come in parts, one by one, and let every part leave."""
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
        """Run an entry, and note what came of it. Returns why the rest of its answer was not wanted, if so."""
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

    def _do(self, staged: Staged, job: Job) -> None:
        """Do a job instead of a run."""
        job.run()
        staged.finished_at = self._progress()

    def _verify(self, ran: list[Ran]) -> list[Ran]:
        """Choose what is run again alone, and what may tell whether runs can be shared."""
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
        """Fill in the results of what ran."""
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
        """Run bundles as they were assembled; ``None`` unless they fit together and nothing has expired."""
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
        """Have the bundle assembled: here, unless somebody else has begun to."""
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
        """Whether somebody still waits for the entry at a position."""
        staged, index = places[position]
        return staged.deadlines[index] > time.monotonic()

    def _progress(self) -> float:
        """The clock of the session's runs. It is read before and after each, so it also notes that one has ended."""
        self._here.progress.at = now = time.monotonic()
        return now

    def _buckets(self, places: Sequence[Place]) -> list[int]:
        """The bucket that each entry costs in a run with the others, as the router prices it.

        Entries go to the largest bucket among them where that leaves their answers as they are, and otherwise each to
        its own: entries of one bucket then still share a run. Clients' own tensors run as they came.
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
        """Whether an entry is padded: where that was shown to change nothing, or the model takes these sizes only."""
        return self._joining.of(staged.runs_on).pads or self._joining.own_sizes(processor, staged.entries[0])

    def _may_grow(self, staged: Staged, index: int) -> bool:
        """Whether an entry's answer stays as it is when it is padded to the bucket of others."""
        return not self._runs_alone(staged, index) and self._joining.of(staged.runs_on).pads

    def _runs_alone(self, staged: Staged, index: int) -> bool:
        """Whether an entry is run by itself. It may wait since a time when that was not known."""
        return staged.whole[index] or not self._joining.of(staged.runs_on).joins

    def _pad(
        self,
        processor: Processor,
        places: Sequence[Place],
        inputs: Sequence[Tensors],
        buckets: Sequence[int],
    ) -> list[Tensors]:
        """Pad what the processor made to its bucket, so that it can share a run; not where that changes its answer."""
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
    """Whether the processor made an entry's tensors, rather than the client."""
    return not isinstance(staged.entries[index].payload, dict)
