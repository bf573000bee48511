"""Threads for calls of code that may never return: they are counted, and never waited for.

A thread cannot be ended from outside. One whose call hangs is lost until the call returns, or the process ends; these
threads are daemons, so that the process can.
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
    """A pool of threads. To be used from any thread.

    Args:
        name: The model's name, for messages.
        most: How many there are; each starts with the work that it is needed for.
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
        """Have work done in one of the threads. Raises ``RuntimeError`` after `close`, and where none can be started.

        Args:
            method: What it calls, for messages.
            work: Must not raise.
            due: What is due earlier goes first.
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
        """Whether something waits that goes before what is due then."""
        with self._lock:
            return bool(self._waiting) and self._waiting[0][0] < due

    def begin(self, method: str) -> None:
        """Say in one of the threads that another call begins there."""
        with self._lock:
            self._inside[get_ident()] = method, time.monotonic()

    def stalled_s(self) -> float:
        """For how long every thread has been inside its present call, seconds; 0.0 while one is free."""
        with self._lock:
            since = [began for _, began in self._inside.values()]
        return time.monotonic() - max(since) if len(since) == self._most else 0.0

    def stuck(self, limit_s: float) -> int:
        """How many threads have been inside one call for longer than this. Each method is told once in the log."""
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
        """Begin nothing more. Calls that have begun are left alone. Idempotent."""
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
        """Wait for the next work; ``None`` after the end."""
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
                except BaseException as error:  # a bug; whoever waits is told
                    future.set_exception(error)
                else:
                    future.set_result(None)
                finally:
                    with self._lock:
                        del self._inside[get_ident()]
            del item, future, work  # what they hold is not kept until the next one comes
