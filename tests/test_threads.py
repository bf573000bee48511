"""Threads that are used again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextvars import ContextVar
from threading import Event, current_thread
from typing import Any
from weakref import ref

import pytest

from serve_app.threads import Task, in_thread

SAID: ContextVar[str] = ContextVar("SAID", default="nothing")


def event_loop() -> asyncio.AbstractEventLoop | None:
    """That of this thread."""
    try:
        return asyncio.get_event_loop()
    except RuntimeError:
        return None


def ended(task: Task) -> Task:
    """Wait for it."""
    assert task.ended.wait(30.0)
    return task


def test_a_thread_whose_work_has_ended_does_the_next() -> None:
    """So that no more threads, and heaps of theirs, are used than there is work at the same time."""
    go = Event()
    first, second = (in_thread("twice", go.wait) for _ in range(2))
    assert first.thread is not second.thread
    assert not first.ended.is_set()
    go.set()
    threads = {ended(first).thread, ended(second).thread}
    again = {ended(in_thread("twice", lambda: None)).thread for _ in range(10)}
    assert again < threads


def test_a_thread_does_work_of_one_name() -> None:
    """What runs need of memory is not held by the threads that load as well."""
    load, run = (ended(in_thread(name, lambda: None)).thread for name in ("load", "run"))
    assert load is not run
    assert [load.name, run.name] == ["load", "run"]
    assert ended(in_thread("load", lambda: None)).thread is load


def test_work_finds_nothing_of_the_work_before() -> None:
    """No variables of its context, and no event loop."""
    found: list[Any] = []

    def work() -> None:
        found.append((current_thread(), SAID.get(), event_loop()))
        SAID.set("something")
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.close()

    thread = [ended(in_thread("clean", work)).thread for _ in range(2)][1]
    assert found == [(thread, "nothing", None)] * 2


@pytest.mark.parametrize("error", [ValueError, SystemExit], ids=["an error", "an exit"])
def test_work_that_fails_does_not_end_the_thread(
    error: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """It is told in the log."""

    def fail() -> None:
        raise error()

    failed = ended(in_thread("unlucky", fail))
    assert "unlucky" in caplog.text
    assert ended(in_thread("unlucky", lambda: None)).thread is failed.thread


def test_nothing_of_the_work_is_held_afterwards() -> None:
    """A thread that waits does not keep the model whose work it did."""

    class Model:
        def work(self) -> None:
            """Nothing."""

    model = Model()
    known = ref(model)
    ended(in_thread("work", model.work))
    del model
    assert known() is None


def test_a_process_that_is_forked_has_threads_of_its_own() -> None:
    """And does not wait for those that are its parent's."""
    program = """
import os, sys
from serve_app.threads import in_thread

def done():
    return in_thread("work", lambda: None).ended.wait(30.0)

assert done()
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0 if done() else 1)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=90.0, check=False).returncode == 0
