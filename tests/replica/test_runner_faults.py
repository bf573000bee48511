"""Faults of our own in lending the session: they cost the bundles concerned, and show in the health check."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from threading import Event, Thread
from typing import Any, NoReturn

import pytest
from runtime_harness import batch_same_turn, tensor

from serve_app.payloads import Bundle, BundleResult, Execution, ModelSignature, Success, Tensors, WireEntry
from serve_app.replica.worker import BatchTogether, Worker
from serve_app.scheduling.gate import Gate
from serve_app.scheduling.settings import ModelScheduling
from serve_app.threads import in_thread


class AddOne:
    """A backend that runs at once."""

    signature = ModelSignature((), ())

    def __init__(self, device: str) -> None:
        self.device = device
        self.exits = False

    def load(self) -> None:
        """Nothing to load."""

    def run(self, inputs: Tensors) -> Tensors:
        """Add one, or end the thread."""
        if self.exits:
            raise SystemExit
        return {"y": inputs["x"] + 1}

    run_whole = run

    def close(self) -> None:
        """Nothing to free."""


class Stage:
    """Workers over such a backend."""

    def __init__(self) -> None:
        self.made: list[Worker] = []
        self.backend = AddOne("gpu")

    def worker(self, *, in_loop: bool = False, batch: BatchTogether = batch_same_turn, **scheduling: Any) -> Worker:
        """One worker. In the event loop its runs are short."""
        self.backend = AddOne("cpu" if in_loop else "gpu")
        self.made.append(
            Worker(
                scheduling=ModelScheduling("m", 4, slo_s=60.0, **scheduling),
                backends={"": self.backend},
                processor=None,
                preprocess_threads=1,
                batch=batch,
                warm_up=[Execution(1, 0, 1e-5), Execution(4, 0, 1e-5)],
            )
        )
        return self.made[-1]


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Closes its workers."""
    made = Stage()
    yield made
    for worker in made.made:
        worker.close()


def bundle(*values: float) -> Bundle:
    """One entry per value."""
    return Bundle([WireEntry(2, 60.0, 1, "", tensor(value)) for value in values])


async def outcomes(*running: asyncio.Task[BundleResult]) -> list[Any]:
    """The value of every entry, or the code of its error."""
    async with asyncio.timeout(30.0):
        results = await asyncio.gather(*running)
    return [
        answer.value["y"][0, 0] if isinstance(answer, Success) else answer.code
        for result in results
        for answer in result.results
    ]


def ask(worker: Worker, *values: float) -> asyncio.Task[BundleResult]:
    """Run a bundle in a task of its own."""
    return asyncio.ensure_future(worker.run(bundle(*values)))


def broken(*_: Any) -> NoReturn:
    """A bug."""
    raise ZeroDivisionError


@pytest.mark.parametrize("in_loop", [False, True], ids=["thread", "event loop"])
@pytest.mark.parametrize(
    ("owner", "method"),
    [(Gate, "add"), (Gate, "next"), (Gate, "observe"), (Gate, "ended")],
    ids=["add", "next", "observe", "ended"],
)
async def test_a_bug_fails_the_bundles_concerned_and_the_health_check(
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    in_loop: bool,
    owner: type,
    method: str,
) -> None:
    """Nobody waits for ever, and the session is not lost with it."""
    worker = stage.worker(in_loop=in_loop)
    assert await outcomes(ask(worker, 1.0)) == [2.0]
    assert not worker.broken
    with monkeypatch.context() as patched:
        patched.setattr(owner, method, broken)
        found = await outcomes(ask(worker, 1.0), ask(worker, 2.0, 3.0))
    assert found == ["inference_failed"] * 3
    assert worker.broken
    assert "must be replaced" in caplog.text
    assert worker.stalled_s() == 0.0
    assert await outcomes(ask(worker, 1.0), ask(worker, 2.0)) == [2.0, 3.0]


async def test_a_run_that_ends_its_thread(stage: Stage) -> None:
    """The thread does not end."""
    worker = stage.worker()
    stage.backend.exits = True
    assert await outcomes(ask(worker, 1.0)) == ["inference_failed"]
    assert worker.broken
    stage.backend.exits = False
    assert await outcomes(ask(worker, 1.0)) == [2.0]


async def test_a_thread_that_cannot_be_started(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bundles fail, one alone as well as several that were joined."""
    worker = stage.worker()
    start = Thread.start
    done = Event()

    def refuse(thread: Thread) -> None:
        if thread.name in {"session", "answers"}:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(Thread, "start", refuse)
        with suppress(RuntimeError):
            while True:  # those that have done the work of other workers
                in_thread("session", done.wait)
        assert await outcomes(ask(worker, 1.0)) == ["inference_failed"]
    done.set()
    assert worker.broken
    assert await outcomes(ask(worker, 1.0)) == [2.0]
