"""Calls of foreign code that do not return: who waits for them, and for how long."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx_models
import pytest
import python_models
from runtime_harness import acquired, batch_same_turn, tensor, until

from serve_app.backends.backend import Backend, Processing
from serve_app.backends.description import describe_build
from serve_app.backends.kind import BuildSettings
from serve_app.backends.onnx.backend import OnnxBackend
from serve_app.backends.python.kind import PYTHON
from serve_app.payloads import Bundle, Failure, Media, ModelSignature, Success, Tensors, Texts, WireEntry
from serve_app.processors.of_model import ModelProcessor
from serve_app.processors.processor import Processor
from serve_app.replica.worker import Worker
from serve_app.scheduling.settings import ModelScheduling

SHORT_S = 0.05
LONG_S = 60.0


class Hanging(Processor):
    """Hangs in the method that a text names, until it is let go."""

    def __init__(self) -> None:
        self.inside = threading.Semaphore(0)
        self.go = threading.Event()
        self.calls: list[str] = []

    def preprocess(self, payload: Media | Texts) -> Tensors:
        assert isinstance(payload, Texts)
        self._hang("preprocess", payload)
        return {"x": np.full((1, 1), len(payload.texts[0]), np.float32)}

    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors | None = None) -> Any:
        assert isinstance(payload, Texts)
        self._hang("postprocess", payload)
        return outputs["y"][0, 0].item()

    def example(self, rows: int, bucket: int) -> Tensors:
        return {"x": np.zeros((rows, 1), np.float32)}

    def _hang(self, method: str, payload: Texts) -> None:
        self.calls.append(method)
        if payload.texts[0] == method:
            self.inside.release()
            assert self.go.wait(LONG_S)
        elif payload.texts[0] == "exit":
            raise SystemExit


@pytest.fixture
def processor() -> Iterator[Hanging]:
    """Is let go in the end."""
    made = Hanging()
    yield made
    made.go.set()


@pytest.fixture
def make_worker(
    make_backend: Callable[[onnx_models.Kind], OnnxBackend], processor: Hanging
) -> Iterator[Callable[[int], Worker]]:
    """Makes workers with so many threads for the processor."""
    workers: list[Worker] = []

    def make(threads: int) -> Worker:
        workers.append(worker_of(make_backend("add_one"), processor, threads))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


def worker_of(backend: Backend, processor: Processor | None, threads: int = 1, **more: Any) -> Worker:
    """A worker of one backend."""
    return Worker(
        scheduling=ModelScheduling("m", 8, slo_s=LONG_S),
        backends={"": backend},
        processor=processor,
        preprocess_threads=threads,
        batch=batch_same_turn,
        **more,
    )


def text(word: str, budget_s: float = LONG_S) -> WireEntry:
    """An entry of one text."""
    return WireEntry(2, budget_s, 1, "", Texts([word], {}))


async def answers(worker: Worker, *entries: WireEntry) -> list[Any]:
    """The answer to each entry, or the code of its error."""
    found = (await worker.run(Bundle(list(entries)))).results
    return [answer.value if isinstance(answer, Success) else answer.code for answer in found]


async def lose_a_thread(worker: Worker, processor: Hanging) -> None:
    """Have a call hang for which nobody waits any more."""
    running = asyncio.ensure_future(worker.run(Bundle([text("preprocess")])))
    await acquired(processor.inside)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("method", ["preprocess", "postprocess"])
async def test_an_entry_ends_with_its_deadline_whatever_the_processor_does(
    make_worker: Callable[[int], Worker], method: str
) -> None:
    """And a thread that is left answers those who come later."""
    worker = make_worker(2)
    assert await answers(worker, text(method, SHORT_S)) == ["deadline_exceeded"]
    assert await answers(worker, text("a")) == [2.0]


async def test_nobody_waits_behind_a_call_that_hangs(make_worker: Callable[[int], Worker]) -> None:
    """Entries of the same bundle are decoded by the other threads, and answered."""
    worker = make_worker(2)
    entries = [text("preprocess", SHORT_S), *map(text, ("a", "ab", "abc", "abcd"))]
    assert await answers(worker, *entries) == ["deadline_exceeded", 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("method", ["preprocess", "postprocess"])
async def test_entries_go_on_without_one_that_would_make_them_late(
    make_worker: Callable[[int], Worker], method: str
) -> None:
    """It goes back to its router, as it has time left."""
    assert await answers(make_worker(2), text(method), text("a", 4.0)) == ["returned", 2.0]


async def test_no_more_than_half_of_the_threads_are_lost_to_what_goes_back(
    make_worker: Callable[[int], Worker], processor: Hanging
) -> None:
    """An entry that hangs everywhere would otherwise take every thread, one after the other."""
    worker = make_worker(3)
    urgent = WireEntry(1, 4.0, 1, "", tensor(1.0))
    first = asyncio.ensure_future(worker.run(Bundle([text("preprocess"), urgent])))
    await acquired(processor.inside)
    second = asyncio.ensure_future(worker.run(Bundle([text("preprocess"), urgent])))
    found = [(await bundle).results[0] for bundle in (first, second)]
    assert [answer.code for answer in found if isinstance(answer, Failure)] == ["returned", "deadline_exceeded"]


async def test_what_has_not_begun_goes_back(make_worker: Callable[[int], Worker], processor: Hanging) -> None:
    """Where the only thread is lost, others are not asked at all, and those that have time try it elsewhere."""
    worker = make_worker(1)
    await lose_a_thread(worker, processor)
    assert await answers(worker, text("a", SHORT_S), text("ab", SHORT_S)) == ["deadline_exceeded"] * 2
    urgent = WireEntry(1, 1.0, 1, "", tensor(1.0))
    found = (await worker.run(Bundle([text("abc"), urgent]))).results
    assert isinstance(found[0], Failure)
    assert found[0].code == "returned"
    assert processor.calls == ["preprocess"]


async def test_threads_that_are_stuck_show(
    make_worker: Callable[[int], Worker], processor: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    """The health check fails when all are; each method is told once."""
    worker = make_worker(2)
    await lose_a_thread(worker, processor)
    assert (worker.calls_stalled_s(), worker.stuck_calls(0.0), worker.stuck_calls(LONG_S)) == (0.0, 1, 0)
    await lose_a_thread(worker, processor)
    assert worker.calls_stalled_s() > 0.0
    assert worker.stuck_calls(0.0) == 2
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [message.partition(" has lasted")[0] for message in told] == ["m: a call of preprocess"]
    processor.go.set()
    assert await answers(worker, text("a")) == [2.0]
    await until(lambda: worker.calls_stalled_s() == 0.0)


async def test_a_processor_that_exits_fails_its_entry_alone(make_worker: Callable[[int], Worker]) -> None:
    """`SystemExit` is a failure like others."""
    assert await answers(make_worker(1), text("exit"), text("a")) == ["inference_failed", 2.0]


class Wedged:
    """A backend whose run does not return."""

    signature = ModelSignature((), ())
    device = "cpu"

    def __init__(self) -> None:
        self.inside = threading.Semaphore(0)
        self.go = threading.Event()
        self.closed = False

    def load(self) -> None:
        """Nothing to load."""

    def run(self, inputs: Tensors) -> Tensors:
        self.inside.release()
        assert self.go.wait(LONG_S)
        return inputs

    run_whole = run

    def close(self) -> None:
        self.closed = True


async def test_a_close_leaves_a_run_alone_that_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so."""
    backend = Wedged()
    worker = worker_of(backend, None, close_s=0.0)
    running = asyncio.ensure_future(worker.run(Bundle([WireEntry(2, LONG_S, 1, "", tensor(1.0))])))
    await acquired(backend.inside)
    worker.close()
    assert backend.closed
    assert "m: closed inside a run that does not end: its thread is left alone" in caplog.messages
    backend.go.set()
    assert [type(answer) for answer in (await running).results] == [Success]


HANGS = """
    import threading
    import numpy as np

    class Hanging:
        inputs = {"x": ("float32", [-1])}
        outputs = {"y": ("float32", [-1])}

        def setup(self, context):
            self.method, self.path = context.parameters["method"], context.parameters["path"]

        def preprocess(self, request):
            self.hang("preprocess")
            return {"x": np.zeros(1, "float32")}

        def predict(self, batch):
            self.hang("predict")
            return {"y": batch["x"]}

        def hang(self, method):
            if method == self.method:
                with open(self.path, "w"):  # returns when the test reads
                    threading.Event().wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a class has a process of its own on Linux only")
@pytest.mark.parametrize("method", ["preprocess", "predict"])
async def test_a_close_ends_the_process_of_a_class(tmp_path: Path, method: str) -> None:
    """With what it hangs in; and that its session ends then is no loss, for which the replica would be killed."""
    path = tmp_path / "inside"
    os.mkfifo(path)
    file = python_models.write(tmp_path, HANGS)
    layout = describe_build(PYTHON, file, model="m").layout
    given = {"parameters": {"method": method, "path": str(path)}, "environment": {"python": sys.executable}}
    backend = PYTHON.create(
        BuildSettings("m", file, layout=layout, processor_threads=1), PYTHON.options.model_validate(given)
    )
    backend.load()
    processor = ModelProcessor("text-length", backend.signature, cast("Processing", backend))
    lost: list[str] = []
    worker = worker_of(backend, processor, close_s=0.0, on_lost=lambda: lost.append("lost"))
    running = asyncio.ensure_future(worker.run(Bundle([text("a")])))
    opened = await asyncio.to_thread(path.open)
    await asyncio.to_thread(worker.close)
    assert await asyncio.to_thread(opened.read) == ""  # nobody has it open for writing any more: the process has ended
    opened.close()
    (answer,) = (await running).results
    assert isinstance(answer, Failure)
    assert (answer.code, lost) == ("inference_failed", [])


def test_a_process_ends_whatever_its_processor_does(tmp_path: Path) -> None:
    """No thread of it is waited for."""
    program = python_models.write(
        tmp_path,
        """
        import threading
        from serve_app.replica.call_threads import CallThreads

        inside = threading.Semaphore(0)
        threads = CallThreads("m", 1)
        threads.submit("preprocess", lambda: (inside.release(), threading.Event().wait()))
        inside.acquire()
        threads.close()
        print("closed")
        """,
        "program.py",
    )
    ended = subprocess.run([sys.executable, program], check=False, capture_output=True, text=True, timeout=LONG_S)
    assert (ended.returncode, ended.stdout) == (0, "closed\n")
