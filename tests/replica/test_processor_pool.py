"""What the event loop makes of media by itself, and what threads do."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from serve_app.payloads import EXPIRED, Failure, Media, ModelSignature, Success, Tensors, TensorSpec, Texts, WireEntry
from serve_app.processors import create_processor
from serve_app.processors.processor import Processor
from serve_app.replica.processor_pool import ProcessorPool
from serve_app.replica.staged import Staged

SIGNATURE = ModelSignature((TensorSpec("pixels", "FP32", (-1, 1, 28, 28)),), (TensorSpec("logits", "FP32", (-1, 10)),))


def picture(edge: int) -> Media:
    """A grey square."""
    file = io.BytesIO()
    Image.new("L", (edge, edge), 128).save(file, "PNG")
    return Media(file.getvalue(), "image/png", {})


def staged_of(*payloads: Media, budget_s: float = 30.0, priority: int = 2) -> Staged:
    """A bundle that has just come."""
    entries = [WireEntry(priority, budget_s, 1, "", payload) for payload in payloads]
    deadline = time.monotonic() + budget_s
    count = len(entries)
    return Staged(entries, [deadline] * count, [Failure("none", "not preprocessed")] * count, [None] * count)


async def test_small_pictures_need_no_thread(tmp_path: Path) -> None:
    """A pool whose threads have ended still makes tensors and answers of them, and of no others."""
    pool = ProcessorPool("m", create_processor("image-classification", SIGNATURE, tmp_path, {}), 2)
    pool.close()
    staged = staged_of(*[picture(28)] * 100)
    await pool.preprocess(staged, range(100))
    staged.results = [Success({"logits": np.arange(10.0)[None]})] * 100
    await pool.postprocess(staged)
    answers = [result.value[0]["label"] for result in staged.results if isinstance(result, Success)]
    assert ["LABEL_9"] * 100 == answers
    with pytest.raises(RuntimeError, match="closed"):
        await pool.preprocess(staged_of(picture(500)), [0])


async def test_a_bundle_of_both(tmp_path: Path) -> None:
    """Every entry gets what the processor makes of it, wherever it is made; one that is damaged fails alone."""
    processor = create_processor("image-classification", SIGNATURE, tmp_path, {})
    pool = ProcessorPool("m", processor, 2)
    payloads = picture(28), picture(500), Media(picture(28).content[:40], "", {}), picture(27)
    staged = staged_of(*payloads)
    await pool.preprocess(staged, range(4))
    pool.close()
    assert [dict, dict, Failure, dict] == [type(tensors) for tensors in staged.tensors]
    for payload, tensors in zip(payloads, staged.tensors, strict=True):
        if not isinstance(tensors, Failure):
            assert processor.preprocess(payload)["pixels"].tobytes() == tensors["pixels"].tobytes()


async def test_what_has_expired_is_not_decoded(tmp_path: Path) -> None:
    """As in a thread."""
    pool = ProcessorPool("m", create_processor("image-classification", SIGNATURE, tmp_path, {}), 2)
    staged = staged_of(picture(28), budget_s=-1.0)
    await pool.preprocess(staged, [0])
    pool.close()
    assert [EXPIRED] == staged.tensors


class Recorder(Processor):
    """Records its calls in their order; the first one blocks."""

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.seen: list[bytes] = []

    def preprocess(self, payload: Media | Texts) -> Tensors:
        """Note it."""
        assert isinstance(payload, Media)
        self.seen.append(payload.content)
        self.begun.set()
        assert self.goes_on.wait(30.0)
        return {"x": np.zeros((1, 1), np.float32)}

    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors | None = None) -> Any:
        """Note it."""
        del payload, outputs, inputs
        self.seen.append(b"answer")
        return {}

    def example(self, rows: int, bucket: int) -> Tensors:
        """Zeros."""
        del bucket
        return {"x": np.zeros((rows, 1), np.float32)}


async def test_what_is_urgent_is_prepared_before_the_rest_of_other_bundles() -> None:
    """Between two calls; and answers on their way out go before all that is prepared."""
    recorder = Recorder()
    pool = ProcessorPool("m", recorder, 1)
    low, normal, high, answered = (
        staged_of(Media(name + b"0", "", {}), Media(name + b"1", "", {}), priority=priority)
        for name, priority in ((b"low", 3), (b"normal", 2), (b"high", 1), (b"answered", 3))
    )
    answered.results = [Success({"y": np.zeros((1, 1), np.float32)}), EXPIRED]
    tasks = [asyncio.ensure_future(pool.preprocess(low, range(2)))]
    await asyncio.to_thread(recorder.begun.wait, 30.0)
    tasks += [asyncio.ensure_future(pool.preprocess(each, range(2))) for each in (normal, high)]
    tasks.append(asyncio.ensure_future(pool.postprocess(answered)))
    await asyncio.sleep(0)  # they have asked
    recorder.goes_on.set()
    await asyncio.gather(*tasks)
    pool.close()

    assert recorder.seen == [b"low0", b"answer", b"high0", b"high1", b"normal0", b"normal1", b"low1"]
