"""Runs answered requests again, alone, to detect whether sharing a run changed their answers.

The proof at load (`serve_app.replica.proof`) tries a few inputs, and the graph's analysis may be wrong. So a small part
of the computing time goes to requests that shared a run: one at a time runs again alone, in class `low`, when the
session is otherwise idle, and the answers are compared. A difference above the tolerance ends shared runs for its
build, and is reported to the log, the routers and the proof's record.

A build without any known input at load is tried with its first requests.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from threading import Lock
from time import monotonic
from typing import Protocol

import numpy as np

from serve_app.backends.backend import Backend
from serve_app.backends.batch import fits, rows_of
from serve_app.backends.joining.experiment import Difference, difference, finite, leading_part, sensitivity
from serve_app.errors import ServeAppError
from serve_app.payloads import Joinable, Tensors
from serve_app.processors.processor import Processor, pads_to_buckets
from serve_app.replica.joining import Joining
from serve_app.replica.proof import ProofContext, try_requests
from serve_app.replica.staged import BackgroundWork

logger = logging.getLogger(__name__)

_REQUESTS, _ROWS = 3, 4
"""So many first requests, or rows of them, are enough to try a build with."""

_ROUNDING = 8.0
"""A difference of up to so many times what the last bits of a request do to its answer is rounding."""

_SAVED = 4.0
"""Time for checks is saved up to that of so many runs."""


class BackgroundSubmit(Protocol):
    """Queues a job for the session, in class `low`. Thread-safe."""

    def __call__(self, job: BackgroundWork, rows: int, bucket: int, variant: str, sender: str) -> None:
        """Return at once. One of the job's methods is called eventually, unless the session closes first."""


class Verification:
    """Decides what runs again, and handles the result. For threads that hold the session.

    Args:
        backends: By variant. Loaded.
        processor: ``None`` for models of tensors.
        joining: Which requests may share runs; changed when an answer differs.
        share: Part of shared runs' computing time to spend; 0: none.

    Attributes:
        checked: Requests run again.
        deviated: Those with a difference above the tolerance.
    """

    def __init__(
        self,
        proofs: ProofContext,
        backends: Mapping[str, Backend],
        processor: Processor | None,
        joining: Joining,
        share: float,
        submit_background: BackgroundSubmit,
    ) -> None:
        self._proofs = proofs
        self._backends = backends
        self._processor = processor
        self._joining = joining
        self._share = share
        self._submit_background = submit_background
        self._credit_s = 0.0
        self._turn = 0
        self._pending = False
        self._first: dict[str, list[Tensors]] = {}
        self._lock = Lock()
        self.checked = 0
        self.deviated = 0

    def choose(self, variant: str, seconds: float, entries: int) -> int | None:
        """Choose the entry of a run to run again: its position, or ``None``.

        Args:
            seconds: Duration of the run, which bounds that of one entry alone.
            entries: Number of entries that shared it, or 1 that was cut.
        """
        if not self._share:
            return None
        with self._lock:
            self._credit_s = min(self._credit_s + self._share * seconds, _SAVED * seconds)
            if self._pending or self._credit_s < seconds or not self._joining.of(variant).joins:
                return None
            self._turn += 1
            return self._turn % entries

    def check(
        self,
        variant: str,
        inputs: Tensors,
        outputs: Tensors,
        bucket: int,
        sender: str,
        *,
        made: bool,
        padded_to: int | None = None,
    ) -> None:
        """Queue a request's repetition and comparison.

        Args:
            inputs: Not padded to others' size. Copied, since the memory is the router's.
            outputs: From the shared run.
            bucket: Its own cost bucket.
            sender: Its router.
            made: Whether the processor made its inputs.
            padded_to: Their padded size in the shared run; default its own bucket's.
        """
        self._pending = True
        mine = {name: array.copy() for name, array in inputs.items()}
        kept = {name: array.copy() for name, array in outputs.items()}
        padded: Tensors | None = None
        if made and self._processor is not None:
            if pads_to_buckets(self._processor) or self._joining.of(variant).padding == "sizes":
                mine = self._processor.pad(mine, bucket)
            elif self._joining.of(variant).pads:
                if lengths := self._processor.lengths(mine):
                    row = min(range(len(lengths)), key=lengths.__getitem__)
                    mine = self._processor.cut(mine, [row], lengths[row])
                    kept = {name: array[row : row + 1] for name, array in kept.items()}
                padded = self._processor.pad(mine, padded_to or bucket)
        self._submit_background(
            _Check(self, variant, mine, kept, padded, made=made), rows_of(mine) or 1, bucket, variant, sender
        )

    def offer(self, variant: str, inputs: Tensors, sender: str) -> None:
        """Offer an answered request to a build that is still to be tried."""
        if not self._joining.may_try(variant, inputs):
            return
        with self._lock:
            if self._pending:
                return
            first = self._first.setdefault(variant, [])
            if first and not fits([first[0], inputs]):
                first.clear()
            first.append({name: array.copy() for name, array in inputs.items()})
            rows = sum(map(rows_of, first))
            if len(first) < _REQUESTS and rows < _ROWS:
                return
            self._pending = True
        requests = {name: np.concatenate([each[name] for each in first]) for name in inputs}
        self._submit_background(_Trial(self, variant, requests), rows, 0, variant, sender)

    def compared(self, variant: str, found: Difference, spent_s: float, *, padding: bool = False) -> None:
        """Handle the result of a check, and whether padding alone explains the difference."""
        with self._lock:
            self._pending = False
            self._credit_s -= spent_s
            self.checked += 1
            self.deviated += not found.allowed
        before = self._joining.of(variant)
        if not found.allowed:
            what = "was padded" if padding else "shared a run"
            reason = (
                f"in service, output {found.output!r} of a request that {what} differed{found.by} from what it gets"
                " alone; set batching.tolerance if that is meant"
            )
            if padding:
                self._store_verdict(variant, before._replace(padding="changes", reason=reason))
                return
            deviation = finite(found.relative)
            self._store_verdict(variant, before._replace(verdict="dependent", reason=reason, deviation=deviation))
        elif before.joins and found.relative > before.deviation:
            verdict = "close" if before.verdict == "exact" else before.verdict
            self._store_verdict(variant, before._replace(verdict=verdict, deviation=found.relative))

    def tried(self, variant: str, verdict: Joinable) -> None:
        """Handle the result of a trial."""
        self._pending = False
        self._first.pop(variant, None)
        self._joining.change(variant, verdict)

    def refused(self, variant: str, why: str) -> None:
        """Handle the failure of answered requests in a trial: no others are tried, to bound the attempts."""
        reason = f"requests that had been answered failed when they were tried together: {why}"
        self.tried(variant, self._joining.of(variant)._replace(verdict="unproven", reason=reason))

    def dropped(self) -> None:
        """Handle a dropped job."""
        self._pending = False

    def again(self, variant: str, inputs: Tensors) -> Tensors:
        """Run a request alone."""
        return self._backends[variant].run_whole(inputs)

    def is_rounding(self, variant: str, inputs: Tensors, alone: Tensors, found: Difference) -> bool:
        """Whether a difference is within the effect of the last bits of the request's own numbers."""
        if not np.isfinite(found.relative):
            return False
        return found.relative <= _ROUNDING * sensitivity(self._backends[variant], inputs, alone)

    def try_with(self, variant: str, requests: Tensors) -> Joinable:
        """Try a build with these rows."""
        return try_requests(self._proofs, variant, self._backends[variant], requests, self._joining.of(variant))

    def rounding(self, variant: str) -> float:
        """The build's rounding; see `serve_app.payloads.Joinable`."""
        return self._joining.of(variant).rounding

    @property
    def tolerance(self) -> float | None:
        """The tolerance; see `serve_app.backends.joining.experiment.difference`."""
        return self._proofs.tolerance

    def _store_verdict(self, variant: str, verdict: Joinable) -> None:
        self._joining.change(variant, verdict)
        self._proofs.keep(variant, verdict)


class _Check:
    """Runs one request again, and compares."""

    def __init__(
        self,
        verification: Verification,
        variant: str,
        inputs: Tensors,
        outputs: Tensors,
        padded: Tensors | None,
        *,
        made: bool,
    ) -> None:
        self._verification = verification
        self._variant = variant
        self._inputs = inputs
        self._outputs = outputs
        self._padded = padded
        self._made = made

    def run(self) -> None:
        verification, start = self._verification, monotonic()
        try:
            alone = verification.again(self._variant, self._inputs)
            together = leading_part(self._outputs, alone) if self._made else self._outputs
            rounding = verification.rounding(self._variant)
            found = difference(alone, together, verification.tolerance, rounding)
            padding = False
            if not found.allowed and self._padded is not None:
                padded = leading_part(verification.again(self._variant, self._padded), alone)
                padding = not difference(alone, padded, verification.tolerance, rounding).allowed
            if not found.allowed and verification.is_rounding(self._variant, self._inputs, alone, found):
                found = Difference(0.0, allowed=True, output=found.output)  # it says nothing of the kernels
        except Exception as error:  # the seam to foreign code: whatever it raises, others are checked another time
            known = isinstance(error, ServeAppError)
            logger.warning(
                "A request that was answered in a shared run failed when it was run again alone",
                exc_info=None if known else error,
            )
            verification.dropped()
            return
        verification.compared(self._variant, found, monotonic() - start, padding=padding)

    def drop(self) -> None:
        self._verification.dropped()


class _Trial:
    """Tries a build with rows of its first requests."""

    def __init__(self, verification: Verification, variant: str, requests: Tensors) -> None:
        self._verification = verification
        self._variant = variant
        self._requests = requests

    def run(self) -> None:
        try:
            verdict = self._verification.try_with(self._variant, self._requests)
        except ServeAppError as error:
            self._verification.refused(self._variant, error.message)
        except Exception as error:  # the seam to foreign code: as in `_Check`
            logger.warning("Requests that were answered failed when they were tried together", exc_info=error)
            self._verification.refused(self._variant, "the model failed")
        else:
            self._verification.tried(self._variant, verdict)

    def drop(self) -> None:
        self._verification.dropped()
