"""Where a replica's processor works: media become tensors, and tensors become answers.

Small media for the server's own processors are done in the event loop, all others in threads, the urgent ones first. A
processor is foreign code, and a call of it may hang. Nobody waits for it then: an entry ends with its deadline whatever
its call does, and before that the entries that it shares a bundle with go on without it.
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
    """Runs a processor in threads. Entries whose client sent tensors pass through as they are.

    Args:
        name: The model's name, for messages.
        processor: ``None`` for a model that takes tensors only.
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
        """End the threads that are idle, and leave the others alone. Idempotent."""
        self._threads.close()

    def stalled_s(self) -> float:
        """For how long every thread has been inside its present call, seconds; 0.0 while one is free."""
        return self._threads.stalled_s()

    def stuck(self, limit_s: float) -> int:
        """How many threads have been inside one call for longer than this; see `CallThreads.stuck`."""
        return self._threads.stuck(limit_s)

    def submit(self, method: str, work: Callable[[], None]) -> Future[None]:
        """Have other work done in one of the threads. Raises ``RuntimeError`` after `close`."""
        return self._threads.submit(method, work)

    async def preprocess(self, staged: Staged, media: Sequence[int]) -> None:
        """Fill in the tensors of the entries at these positions, which hold media or texts, or why there are none."""
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
        """Do here what takes less time than to wake a thread. Returns the positions that are left for the threads."""
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
        """Wait for calls, until none is waited for any more: its entry has expired, or others must go on without it.

        Args:
            staged: The bundle.
            calls: Those of its entries.
            ready: Its entries that need no call, and could go on.

        Returns:
            The entries whose calls have not ended.
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
        """What becomes of an entry whose call has not ended.

        One whose time is not over goes back to its router, as what waits at the gate and is not run does. Where its
        call has begun, that may cost another thread if the call hangs: half of them may be lost so, and no more.
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
    """The calls of one method for entries of a bundle. Nobody may be waiting any more when one ends.

    Args:
        indexes: Of the entries.
        method: Its name, for messages.
        call: Calls it for an entry. Must not raise.
        threads: Where.
        due: See `CallThreads.submit`; by default before all that is prepared: answers on their way out go first.

    Attributes:
        ended: What calls have made, until they were left.
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
        """Begin in so many threads at once; a call that hangs holds up only its thread.

        Returns:
            Is set when all have ended.
        """
        over = asyncio.Event()
        work = partial(self._run, loop, over)
        for _ in range(min(most, self._missing)):
            self._threads.submit(self._method, work, self._due)
        return over

    def state(self) -> tuple[list[int], dict[int, _T]]:
        """The entries whose calls have not ended, and what the others have made."""
        with self._lock:
            return [*self._begun, *self._waiting], dict(self.ended)

    def leave(self) -> Sequence[int]:
        """Wait for nothing any more: what has not begun never will, and what ends later is dropped.

        Returns:
            The entries whose calls have not ended.
        """
        with self._lock:
            self._call = None
            return [*self._begun, *self._waiting]

    def when_ended(self, index: int, then: Callable[[], None]) -> bool:
        """Have something done when the call for an entry has ended, after it was left.

        Returns:
            Whether it has begun, and not ended: otherwise nothing is done.
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
