"""The next batch is put on the device while one runs.

    event loop         says which bundles would go next (`Ahead.want`), and which have gone without a run (`forget`)
    a pool's thread    prepares their batch, one after the other, always the latest that is wanted
    whoever runs       takes the batch if it is of the bundles that really go (`take`), and otherwise nothing

So at most one batch is ready and one more in the making, and buffers are kept for few. Nobody is committed to a batch:
what is not taken is discarded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition, Thread, current_thread
from typing import Protocol

from serve_app.inference.backend import Prepared, PreparingBackend
from serve_app.runtime.staged import SMALL_BYTES, Staged

logger = logging.getLogger(__name__)


class Submit(Protocol):
    """Has work done in another thread."""

    def __call__(self, work: Callable[[], None], /) -> object:
        """Raises ``RuntimeError`` when there is none any more."""


@dataclass(slots=True, eq=False)
class Ready:
    """A batch that will be run once, or discarded.

    Attributes:
        bundles: Whose rows it has, one behind the other.
        backend: What has prepared it.
        batch: What that has made; ``None`` when it has been run or discarded.
    """

    bundles: Sequence[Staged]
    backend: PreparingBackend
    batch: Prepared | None

    def claim(self) -> Prepared | None:
        """What to run now. It is the caller's then."""
        batch, self.batch = self.batch, None
        return batch

    def discard(self) -> None:
        """Give it up, unless it has been claimed. Idempotent."""
        batch = self.claim()
        if batch is not None:
            self.backend.discard(batch)


@dataclass(slots=True, eq=False)
class _Next:
    """Bundles that are to be prepared.

    Attributes:
        bundles: In the order of the gate.
        begun: Whether a thread is at it, or has been.
        done: Whether that has ended.
        dropped: Whether nobody wants it any more.
        ready: What came of it; ``None`` also where they do not make one batch.
    """

    bundles: Sequence[Staged]
    begun: bool = False
    done: bool = False
    dropped: bool = False
    ready: Ready | None = None


class Ahead:
    """Prepares the batch of the bundles that would go next. Its methods may be called from any thread.

    Args:
        prepare: Makes a batch of bundles; ``None`` where they cannot be one. Does not raise.
        submit: Has that done in another thread.
    """

    def __init__(self, prepare: Callable[[Sequence[Staged]], Ready | None], submit: Submit) -> None:
        self._prepare = prepare
        self._submit = submit
        self._changed = Condition()
        self._next: _Next | None = None
        self._submitted = False
        self._thread: Thread | None = None
        self._closed = False

    def want(self, bundles: Sequence[Staged]) -> None:
        """Prepare these, and nothing else. A few kilobytes are left alone: whoever runs them copies them sooner."""
        worth = sum(staged.nbytes for staged in bundles) > SMALL_BYTES
        with self._changed:
            if self._next is not None:
                if worth and set(self._next.bundles) == set(bundles):
                    return
                self._drop(self._next)
            if not worth or self._closed:
                return
            self._next = _Next(bundles)
            if self._submitted:
                return  # and found by the thread when it has done what it is at
            try:
                self._submit(self._work)
                self._submitted = True
            except RuntimeError:
                logger.debug("the threads have ended, and nothing is prepared any more")

    def forget(self, staged: Staged) -> None:
        """A bundle will not be run. What was prepared with it is discarded."""
        with self._changed:
            if self._next is not None and staged in self._next.bundles:
                self._drop(self._next)

    def take(self, bundles: Sequence[Staged]) -> Ready | None:
        """The batch of just these bundles, in any order, if it has been begun. Another one is discarded.

        What is not finished is waited for: to begin anew would take longer.
        """
        with self._changed:
            found = self._next
            if found is None:
                return None
            if not found.begun or set(found.bundles) != set(bundles):
                self._drop(found)
                return None
            self._next = None
            while not found.done:
                self._changed.wait()
            return found.ready

    def close(self) -> None:
        """Discard what is ready, and wait for what is in the making. Idempotent."""
        with self._changed:
            self._closed = True
            if self._next is not None:
                self._drop(self._next)
            # A garbage collection in the pool's thread may have come upon the last reference.
            while self._thread is not None and self._thread is not current_thread():
                self._changed.wait()

    def _drop(self, unwanted: _Next) -> None:
        """Nobody wants what is wanted now. The lock is held."""
        self._next = None
        unwanted.dropped = True
        if unwanted.ready is not None:
            unwanted.ready.discard()

    def _work(self) -> None:
        """In a thread: prepare what is wanted, until it is done."""
        while (wanted := self._begin()) is not None:
            ready = None
            try:
                ready = self._prepare(wanted.bundles)
            finally:
                self._end(wanted, ready)

    def _begin(self) -> _Next | None:
        with self._changed:
            wanted = self._next
            if wanted is None or wanted.begun:
                self._submitted = False
                return None
            wanted.begun = True
            self._thread = current_thread()
            return wanted

    def _end(self, wanted: _Next, ready: Ready | None) -> None:
        with self._changed:
            wanted.done = True
            wanted.ready = ready
            try:
                if wanted.dropped and ready is not None:
                    ready.discard()
            except Exception:  # the thread goes on with what is wanted next
                logger.exception("a batch that nobody wants could not be discarded")
            finally:  # somebody may wait for this, whatever the backend raises
                self._thread = None
                self._changed.notify_all()
