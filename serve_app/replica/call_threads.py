"""Threads for calls that may never return: counted, never joined.

A thread cannot be ended from outside. One with a hanging call is lost until the call returns or the process ends; these
threads are daemons, so that the process can end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from heapq import heappop, heappush
from itertools import count
from math import inf
from threading import Condition, get_ident
from typing import TypeAlias

from serve_app.threads import in_thread

logger = logging.getLogger(__name__)

_Work: TypeAlias = tuple[Future[None], str, Callable[[], None]]


class CallThreads:
    """A thread-safe pool of threads.

    Args:
        most: Size of the pool; threads start with the work that needs them.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._lock = Condition()
        self._started = 0
        self._closed = False
        self._waiting: list[tuple[float, int, _Work]] = []  # a heap, by due and number
        self._numbers = count()
        self._inside: dict[int, tuple[str, float]] = {}  # by thread: the method that it calls, and since when
        self._told: set[str] = set()

    def submit(self, method: str, work: Callable[[], None], due: float = -inf) -> Future[None]:
        """Run work in a thread. Raises ``RuntimeError`` after `close`, and if no thread can be started.

        Args:
            method: Name of the call, for messages.
            due: Earlier times go first.
        """
        future: Future[None] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the threads of model {self._name} were closed")
            if self._started < self._most:
                self._start()
            heappush(self._waiting, (due, next(self._numbers), (future, method, work)))
            self._lock.notify()
        return future

    def yields(self, due: float) -> bool:
        """Whether waiting work precedes this due time."""
        with self._lock:
            return bool(self._waiting) and self._waiting[0][0] < due

    def begin(self, method: str) -> None:
        """Mark the beginning of another call in the current thread."""
        with self._lock:
            self._inside[get_ident()] = method, time.monotonic()

    def stalled_s(self) -> float:
        """Seconds that every thread has been in its present call; 0.0 while one is free."""
        with self._lock:
            since = [began for _, began in self._inside.values()]
        return time.monotonic() - max(since) if len(since) == self._most else 0.0

    def stuck(self, limit_s: float) -> int:
        """The number of threads in one call for longer than this. The log mentions each method once."""
        now = time.monotonic()
        with self._lock:
            stuck = [(method, now - began) for method, began in self._inside.values() if now - began > limit_s]
        for method, lasted_s in stuck:
            if method not in self._told:
                self._told.add(method)
                logger.error(
                    "%s: a call of %s has lasted %.0f s: its thread is lost until it returns; %d of %d threads are",
                    self._name,
                    method,
                    lasted_s,
                    len(stuck),
                    self._most,
                )
        return len(stuck)

    def close(self) -> None:
        """Start no more work. Running calls continue. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            waiting, self._waiting = self._waiting, []
            self._lock.notify_all()
        for _, _, (future, _, _) in waiting:
            future.cancel()

    def _start(self) -> None:
        try:
            in_thread("processor", self._serve)
        except RuntimeError:  # the system has no more; those that there are do all of it
            if not self._started:
                raise
        else:
            self._started += 1

    def _next(self) -> _Work | None:
        """Wait for the next work; ``None`` at the end."""
        with self._lock:
            self._lock.wait_for(lambda: self._waiting or self._closed)
            return heappop(self._waiting)[2] if self._waiting else None

    def _serve(self) -> None:
        while (item := self._next()) is not None:
            future, method, work = item
            if future.set_running_or_notify_cancel():
                self.begin(method)
                try:
                    work()
                except BaseException as error:  # a bug, reported to the waiter
                    future.set_exception(error)
                else:
                    future.set_result(None)
                finally:
                    with self._lock:
                        del self._inside[get_ident()]
            del item, future, work  # drop references before waiting for the next
