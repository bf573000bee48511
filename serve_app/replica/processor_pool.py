"""Runs a replica's processor: media become tensors, and tensors become answers.

Small media for built-in processors are converted in the event loop, all others in threads, the urgent ones first. A
processor is foreign code whose call may hang. No part waits for it beyond deadlines: an entry ends at its deadline
regardless of its call, and earlier its neighbours in the bundle go on without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from math import inf
from threading import Lock
from typing import Any, Final, Generic, TypeVar, cast

from serve_app.errors import InferenceFailed, InvalidRequest, ServeAppError
from serve_app.payloads import (
    EXPIRED,
    NOT_IN_TIME,
    RETURNED,
    EntryResult,
    Failure,
    Media,
    Success,
    Tensors,
    Texts,
)
from serve_app.processors.processor import Processor
from serve_app.processors.quick import quick_of
from serve_app.replica.call_threads import CallThreads
from serve_app.replica.staged import Staged
from serve_app.timers import call_at

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

_PATIENCE: Final = 0.75
"""Part of its time for which an entry waits for the calls of others in its bundle, to have the rest for itself."""

_BEHIND_S: Final = 1.0
"""What a class prepares goes before what a less urgent one has asked for less than this long ago, seconds. No class
waits for ever, then."""

_AT_ONCE_S: Final = 0.001
"""For so long the event loop makes tensors or answers before others get their turn, seconds."""


class ProcessorPool:
    """Runs a processor in threads. Entries with a client's tensors pass unchanged.

    Args:
        processor: ``None`` for models of tensors.
        threads: Size of the pool.
    """

    def __init__(self, name: str, processor: Processor | None, threads: int) -> None:
        self._name = name
        self._processor = processor
        self._is_quick = quick_of(processor)
        self._most = threads
        self._threads = CallThreads(name, threads)
        self._lock = Lock()
        self._returned = 0  # calls that go on although their entries went back to their routers

    def close(self) -> None:
        """End idle threads, and leave the others. Idempotent."""
        self._threads.close()

    def stalled_s(self) -> float:
        """Seconds that every thread has been in its present call; 0.0 while one is free."""
        return self._threads.stalled_s()

    def stuck(self, limit_s: float) -> int:
        """The number of threads in one call for longer than this; see `CallThreads.stuck`."""
        return self._threads.stuck(limit_s)

    def submit(self, method: str, work: Callable[[], None]) -> Future[None]:
        """Run other work in a thread. Raises ``RuntimeError`` after `close`."""
        return self._threads.submit(method, work)

    async def preprocess(self, staged: Staged, media: Sequence[int]) -> None:
        """Fill in the tensors of media entries at these positions, or their errors."""
        media = await self._at_once(staged, media, self._preprocess_entry, staged.tensors)
        if not media:
            return
        due = time.monotonic() + _BEHIND_S * min(staged.entries[index].priority for index in media)
        calls = _Calls(media, "preprocess", partial(self._preprocess_entry, staged), self._threads, due)
        ready = [index for index, tensors in enumerate(staged.tensors) if not isinstance(tensors, Failure)]
        left = await self._wait(staged, calls, ready)
        for index, tensors in calls.ended.items():
            staged.tensors[index] = tensors
        for index in left:
            staged.tensors[index] = self._given_up(staged, index, calls)

    async def _at_once(
        self, staged: Staged, media: Sequence[int], call: Callable[[Staged, int], _T], made: list[Any]
    ) -> Sequence[int]:
        """Convert in place if that is faster than waking a thread. Returns the remaining positions."""
        if self._is_quick is None:
            return media
        left: list[int] = []
        until = time.monotonic() + _AT_ONCE_S
        for index in media:
            if not self._is_quick(cast("Media | Texts", staged.entries[index].payload)):
                left.append(index)
                continue
            if time.monotonic() > until:
                await asyncio.sleep(0)
                until = time.monotonic() + _AT_ONCE_S
            made[index] = call(staged, index)
        return left

    def _preprocess_entry(self, staged: Staged, index: int) -> Tensors | Failure:
        payload = staged.entries[index].payload
        if index in staged.recalled:
            return RETURNED
        if staged.deadlines[index] <= time.monotonic():
            return EXPIRED
        try:
            return self._media_processor().preprocess(cast("Media | Texts", payload))
        except ServeAppError as error:
            return Failure(error.code, error.message)
        except BaseException:  # the seam to foreign code, which may even exit: the other entries are answered
            logger.exception("%s could not preprocess request %s", self._name, staged.entries[index].origin)
            return Failure(InferenceFailed.code, f"model {self._name} failed to preprocess this request")

    async def postprocess(self, staged: Staged) -> None:
        """Turn results into answers. An entry without a result was not run in time."""
        media: list[int] = []
        ready: list[int] = []
        for index, entry in enumerate(staged.entries):
            result = staged.results[index]
            if result is None:
                tensors = staged.tensors[index]
                staged.results[index] = tensors if isinstance(tensors, Failure) else EXPIRED
            elif isinstance(result, Success):
                (ready if isinstance(entry.payload, dict) else media).append(index)
        left = await self._at_once(staged, media, self._postprocess_entry, staged.results)
        if not left:
            return
        ready += [index for index in media if index not in left]
        calls = _Calls(left, "postprocess", partial(self._postprocess_entry, staged), self._threads)
        left = await self._wait(staged, calls, ready)
        for index, answer in calls.ended.items():
            staged.results[index] = answer
        for index in left:
            staged.results[index] = self._given_up(staged, index, calls)

    def _postprocess_entry(self, staged: Staged, index: int) -> EntryResult:
        payload = cast("Media | Texts", staged.entries[index].payload)
        result = cast("Success", staged.results[index])
        try:
            inputs = cast("Tensors", staged.tensors[index])
            return Success(self._media_processor().postprocess(payload, result.value, inputs))
        except ServeAppError as error:
            return Failure(error.code, error.message)
        except BaseException:  # as in `_preprocess_entry`
            logger.exception("%s could not postprocess request %s", self._name, staged.entries[index].origin)
            return Failure(InferenceFailed.code, f"model {self._name} failed to postprocess this request")

    def _media_processor(self) -> Processor:
        if self._processor is None:
            raise InvalidRequest(f"model {self._name} takes tensors only")
        return self._processor

    async def _wait(self, staged: Staged, calls: _Calls[_T], ready: Sequence[int]) -> Sequence[int]:
        """Wait for calls until each has ended, its entry has expired, or others must go on without it.

        Args:
            ready: Entries that need no call, and could go on.

        Returns:
            Entries whose calls have not ended.
        """
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        deadlines = staged.deadlines
        leave_at = [began + _PATIENCE * (deadline - began) for deadline in deadlines]
        try:
            woken = calls.start(loop, self._most)
            while True:
                pending, made = calls.state()
                now = time.monotonic()
                able = [*ready, *(index for index, each in made.items() if not isinstance(each, Failure))]
                leave = min([leave_at[index] for index in able if deadlines[index] > now], default=inf)
                # One that is pending may be ready when its own patience ends.
                looks = [
                    leave_at[index] if leave_at[index] > now else deadlines[index]
                    for index in pending
                    if deadlines[index] > now
                ]
                if leave <= now or not looks:
                    break
                timer = call_at(loop, min(leave, *looks), woken.set)
                try:
                    await woken.wait()
                finally:
                    timer.cancel()
                woken.clear()
        finally:
            left = calls.leave()
        return left

    def _given_up(self, staged: Staged, index: int, calls: _Calls[_T]) -> Failure:
        """The failure of an entry whose call has not ended.

        An unexpired entry returns to its router, like one at the gate that does not run. If its call hangs, the
        repetition may cost another thread: at most half of them may be lost like this.
        """
        if staged.deadlines[index] <= time.monotonic():
            return EXPIRED
        with self._lock:
            self._returned += 1
            full = self._returned > self._most // 2
        if not calls.when_ended(index, self._one_less):
            self._one_less()
        elif full:
            return NOT_IN_TIME
        return RETURNED

    def _one_less(self) -> None:
        with self._lock:
            self._returned -= 1


class _Calls(Generic[_T]):
    """The calls of one method for a bundle's entries. May outlive their waiter.

    Args:
        indexes: Of the entries.
        method: For messages.
        call: Calls the method for an entry. Must not raise.
        due: See `CallThreads.submit`; by default before all preprocessing: answers go first.

    Attributes:
        ended: Results until the waiter left.
    """

    def __init__(
        self,
        indexes: Sequence[int],
        method: str,
        call: Callable[[int], _T],
        threads: CallThreads,
        due: float = -inf,
    ) -> None:
        self._waiting = deque(indexes)
        self._begun: set[int] = set()
        self._missing = len(indexes)
        self._method = method
        self._call: Callable[[int], _T] | None = call
        self._threads = threads
        self._due = due
        self._lock = Lock()
        self._late: dict[int, Callable[[], None]] = {}
        self.ended: dict[int, _T] = {}

    def start(self, loop: asyncio.AbstractEventLoop, most: int) -> asyncio.Event:
        """Start calls in several threads; a hanging one blocks only its thread.

        Returns:
            Set when all have ended.
        """
        over = asyncio.Event()
        work = partial(self._run, loop, over)
        for _ in range(min(most, self._missing)):
            self._threads.submit(self._method, work, self._due)
        return over

    def state(self) -> tuple[list[int], dict[int, _T]]:
        """Entries with unended calls, and the results of the others."""
        with self._lock:
            return [*self._begun, *self._waiting], dict(self.ended)

    def leave(self) -> Sequence[int]:
        """Stop waiting: unstarted calls never start, later results are dropped.

        Returns:
            Entries whose calls have not ended.
        """
        with self._lock:
            self._call = None
            return [*self._begun, *self._waiting]

    def when_ended(self, index: int, then: Callable[[], None]) -> bool:
        """Register a callback for the end of an entry's call, after `leave`.

        Returns:
            Whether the call is running; otherwise the callback is ignored.
        """
        with self._lock:
            if index not in self._begun:
                return False
            self._late[index] = then
            return True

    def _run(self, loop: asyncio.AbstractEventLoop, over: asyncio.Event) -> None:
        while True:
            if self._threads.yields(self._due):
                with contextlib.suppress(RuntimeError):  # closed: nothing else begins, and this goes on
                    self._threads.submit(self._method, partial(self._run, loop, over), self._due)
                    return
            with self._lock:
                call = self._call
                if call is None or not self._waiting:
                    return
                index = self._waiting.popleft()
                self._begun.add(index)
            self._threads.begin(self._method)
            made = call(index)
            del call
            with self._lock:
                self._begun.discard(index)
                then = self._late.pop(index, None)
                if self._call is not None:
                    self.ended[index] = made
                    self._missing -= 1
                all_ended = not self._missing
            del made
            if then is not None:
                then()
            if all_ended:
                with contextlib.suppress(RuntimeError):  # the event loop has ended
                    loop.call_soon_threadsafe(over.set)
