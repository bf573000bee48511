"""Threads that are used again: those of a model that is closed do the same work for the next one.

The C library gives a new thread another heap, and keeps what was once needed at its end. A process whose models come
and go, with new threads for each, would get to hold what the runs of one model need in every heap, of which there are 8
for each core. For the same reason a thread that has loaded a model does not run the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextvars import Context
from queue import SimpleQueue
from threading import Event, Thread
from typing import NamedTuple

logger = logging.getLogger(__name__)


class Task(NamedTuple):
    """Work in a thread.

    Attributes:
        thread: Which.
        ended: Is set when it has ended.
    """

    thread: Thread
    ended: Event


class _Thread(Thread):
    def __init__(self, name: str, idle: list[_Thread]) -> None:
        super().__init__(name=name, daemon=True)
        self.orders: SimpleQueue[tuple[Callable[[], object], Event]] = SimpleQueue()
        self._idle = idle

    def run(self) -> None:
        while True:
            ended = self._do(*self.orders.get())
            self._idle.append(self)
            ended.set()

    def _do(self, work: Callable[[], object], ended: Event) -> Event:
        """A method of its own, so that nothing of the work is held afterwards."""
        try:
            Context().run(work)
        except BaseException:  # as it would end a thread of its own
            logger.exception("the thread %s has failed", self.name)
        asyncio.set_event_loop(None)  # a model's code may have set one, and closed it
        return ended


_idle: dict[str, list[_Thread]] = {}
"""By name, those that wait for work, the latest last. What is done with the lists is atomic."""

os.register_at_fork(after_in_child=_idle.clear)  # a child has none of them


def in_thread(name: str, work: Callable[[], object]) -> Task:
    """Have work done in a thread that does nothing else meanwhile. It does not keep the process from ending.

    Args:
        name: Of the work and its thread, one of few: a thread is used again for work of the same name.
        work: Is run in an empty context.

    Raises:
        RuntimeError: No thread could be started.
    """
    idle = _idle.setdefault(name, [])
    try:
        thread = idle.pop()
    except IndexError:
        thread = _Thread(name, idle)
        thread.start()
    ended = Event()
    thread.orders.put((work, ended))
    return Task(thread, ended)
