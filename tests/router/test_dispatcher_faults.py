"""What failed requests leave behind, and what faults of our own cost."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from link_calls import ask
from runtime_harness import MODEL, Transport, classes, make_dispatcher, settle, submit, tensor

from serve_app.domain.service import Answer
from serve_app.errors import InferenceFailed, ServeAppError
from serve_app.payloads import Bundle, BundleResult, Failure, WireEntry
from serve_app.router.dispatcher import Dispatcher
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ModelScheduling, ProcessLimits
from serve_app.telemetry.metrics import RouterMetrics
from serve_app.transport.arena import Arena
from serve_app.transport.link_server import LinkServer
from serve_app.transport.replica_link import connect
from serve_app.transport.send import ReplicaLost, awaiting
from serve_app.transport.ties import TieTable

needs_arena = pytest.mark.skipif(not Arena.supported(), reason="needs memory files")


async def _errors_of(task: asyncio.Task[Answer]) -> str:
    try:
        await task
    except (ServeAppError, asyncio.CancelledError) as error:
        return type(error).__name__
    return ""


def _shared_payload(arena: Arena) -> dict[str, np.ndarray]:
    block = arena.allocate(1 << 16)
    assert block is not None
    return {"x": block.view(np.float32).reshape(1, -1)}


@needs_arena
@pytest.mark.usefixtures("collect_never")
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("answered", ""),
        ("failed", "InferenceFailed"),
        ("expired", "DeadlineExceeded"),
        ("cancelled", "CancelledError"),
    ],
)
async def test_however_a_request_ends_its_tensors_are_freed_at_once(end: str, expected: str) -> None:
    """Routers' memory would otherwise fill up with what has failed until the next full garbage collection."""
    arena = Arena(1 << 20)
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport)
    task = submit(dispatcher, _shared_payload(arena), timeout_s=0.05 if end == "expired" else 30.0)
    sent = await transport.next()
    assert arena.held > 0
    if end == "failed":
        sent.answer.set_result(BundleResult([Failure("inference_failed", "bad")], [], 0.0, 0.0, 0.0))
    elif end == "answered":
        sent.succeed()
    elif end == "cancelled":
        task.cancel()
    assert await _errors_of(task) == expected
    if not sent.answer.done():
        sent.succeed()
    del task, sent
    await settle()
    assert arena.held == 0


@needs_arena
@pytest.mark.usefixtures("collect_never")
async def test_what_a_lost_link_carried_is_freed_at_once() -> None:
    """The arrays of its calls, too."""
    started = asyncio.Event()

    async def never(bundle: Bundle) -> BundleResult:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    arena = Arena(1 << 20)
    server = LinkServer("m", never)
    lost = asyncio.Event()
    link = await connect(server.address, "r", TieTable(), arena, lost.set)

    async def call() -> None:
        with pytest.raises(ReplicaLost):
            await ask(link, Bundle([WireEntry(1, 1.0, 1, "", _shared_payload(arena))]))

    calling = asyncio.create_task(call())
    await started.wait()
    assert arena.held > 0
    server.close()
    await calling
    await lost.wait()
    del calling
    assert arena.held == 0


class Faulty(RouterMetrics):
    """Metrics that cannot count answers."""

    def ended(self, entry: Entry, outcome: str, queue_s: float, total_s: float) -> None:
        """Raise for what was answered."""
        if outcome == "ok":
            raise ZeroDivisionError
        super().ended(entry, outcome, queue_s, total_s)


async def test_a_fault_in_dealing_out_answers_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits for ever, and the log says why."""
    transport = Transport()
    scheduler = Scheduler(
        [ModelScheduling(MODEL, max_rows=4, slo_s=1.0, window=1)], classes(), ProcessLimits(total_bytes=10**9)
    )
    dispatcher = Dispatcher(scheduler, awaiting(transport), Faulty(scheduler), 60.0)
    dispatcher.on_replicas(MODEL, ("a",))
    tasks = [submit(dispatcher, tensor(value)) for value in range(2)]
    (await transport.next()).succeed()
    for task in tasks:
        with pytest.raises(InferenceFailed):
            await task
    assert "Processing a result of" in caplog.text
    assert repr(dispatcher) == "<Dispatcher 0 entries and 0 bundles in flight>"
