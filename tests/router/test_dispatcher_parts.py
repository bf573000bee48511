"""Answers in parts that come from a replica together, with the last."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import numpy as np
import pytest
from runtime_harness import Transport, entry, make_dispatcher, tensor

from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer
from serve_app.errors import SlowReader
from serve_app.payloads import BundleResult, Execution, Streamed, StreamLimits, Success
from serve_app.router.dispatcher import Dispatcher
from serve_app.router.parts import PartQueue, Streams
from serve_app.telemetry.metrics import RouterMetrics

LIMITS = StreamLimits(seconds=60.0, parts=64, nbytes=10_000, reader_s=30.0)


async def read(dispatcher: Dispatcher, queue: PartQueue) -> list[Answer]:
    """All parts of an answer."""
    reading = dispatcher.stream(entry(tensor(1.0), exact=True, parts=queue))
    async with aclosing(reading) as parts:
        return [part async for part in parts]


def ended(metrics: RouterMetrics) -> dict[str, float]:
    """The answers in parts that have ended, by how."""
    return {
        sample.labels["outcome"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "serve_app_streams_total"
    }


@pytest.mark.parametrize("parts", [2, 8])
async def test_too_many_beside_others_end_the_answer(parts: int) -> None:
    """What waits for the readers of all is bounded, and the metrics say what the client is told."""
    streams, transport = Streams(1000), Transport()
    other = PartQueue(streams, LIMITS)
    other.put(Answer(None, Priority.NORMAL, 0.0, 0.0), 500)
    dispatcher, metrics = make_dispatcher(transport)
    reading = asyncio.ensure_future(read(dispatcher, PartQueue(streams, LIMITS)))
    sent = await transport.next()
    together = Streamed(parts, [{"y": np.zeros(200, np.uint8)} for _ in range(parts)])
    sent.answer.set_result(BundleResult([Success(together)], [Execution(1, 0, 0.001)], 0.0, 0.0, 0.0))
    if parts == 2:
        assert len(await reading) == parts
        assert ended(metrics) == {"ok": 1.0}
    else:
        with pytest.raises(SlowReader, match="all_streams_bytes"):
            await reading
        assert ended(metrics) == {"slow_reader": 1.0}
    assert streams.nbytes == 500
