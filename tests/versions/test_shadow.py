"""When two answers are the same, and what becomes of copies for which there is no room."""

from __future__ import annotations

import asyncio
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer, RequestOptions
from serve_app.errors import DeadlineExceeded, InferenceFailed, QueueFull
from serve_app.payloads import Embeddings, Payload, RequestAttributes
from serve_app.versions.policy import Tolerance
from serve_app.versions.shadow import MOST, MOST_BYTES, SHADOW_TENANT, SHADOW_WEIGHT, Outcome, Shadows, difference

FLOATS = np.array([[1.0, 2.0, np.nan, np.inf]], np.float32)
TEXTS = np.array(["a", "b"], object)
ROW = {"y": np.zeros((1, 4), np.float32)}


@pytest.mark.parametrize(
    ("real", "other", "tolerance", "told"),
    [
        ({"y": FLOATS}, {"y": FLOATS * np.float32(1.0005)}, {}, ""),
        ({"y": FLOATS}, {"y": FLOATS * np.float32(1.5)}, {}, "y in 2 of 4 values, by up to 1"),
        ({"y": FLOATS}, {"y": FLOATS * np.float32(1.5)}, {"y": Tolerance(0.0, 1.0)}, ""),
        ({"y": FLOATS}, {"y": FLOATS * np.float32(1.5)}, {"z": Tolerance(0.0, 1.0)}, "y in 2 of 4 values, by up to 1"),
        ({"y": FLOATS}, {"y": FLOATS.T}, {}, "y has shape [4, 1] instead of [1, 4]"),
        ({"y": FLOATS}, {"y": FLOATS.astype(np.float64)}, {}, "y is float64 instead of float32"),
        ({"y": FLOATS}, {"z": FLOATS}, {}, "answer has z instead of y"),
        ({"y": np.arange(3)}, {"y": np.arange(3) + 1}, {"y": Tolerance(1.0, 9.0)}, "y in 3 of 3 values"),
        ({"y": TEXTS}, {"y": TEXTS[::-1]}, {}, "y in 2 of 2 values"),
        ({"y": FLOATS.astype(ml_dtypes.bfloat16)}, {"y": FLOATS.astype(ml_dtypes.bfloat16)}, {}, ""),
        ({"y": np.zeros((0, 4))}, {"y": np.zeros((0, 4))}, {}, ""),
        ([{"label": "cat", "score": 0.9}], [{"label": "cat", "score": 0.9001}], {}, ""),
        ([{"label": "cat", "score": 0.9}], [{"label": "dog", "score": 0.9}], {}, "[0].label is another"),
        ([{"label": "cat", "score": 0.9}], [{"label": "cat", "score": 0.4}], {}, "[0].score by 0.5"),
        ([{"label": "cat", "score": 0.9}], [{"label": "cat", "score": 0.4}], {"score": Tolerance(0.0, 0.6)}, ""),
        ([1.0], [1.0, 2.0], {}, "answer has 2 parts instead of 1"),
        ([float("nan")], [float("nan")], {}, ""),
        (Embeddings(FLOATS, 3), Embeddings(FLOATS * np.float32(2.0), 3), {}, "vectors in 2 of 4 values, by up to 2"),
        (Embeddings(FLOATS, 3), Embeddings(FLOATS, 4), {}, ""),  # tokens are no answer
    ],
)
def test_answers_are_compared(real: Any, other: Any, tolerance: dict[str, Tolerance], told: str) -> None:
    """Floats within a tolerance, and everything else exactly; no value is told."""
    assert difference(real, other, tolerance) == told


class Copies:
    """Shadow requests that the test answers for."""

    def __init__(self) -> None:
        self.room = True
        self.ended: asyncio.Queue[tuple[str, Outcome]] = asyncio.Queue()
        self.asked: list[tuple[str, RequestOptions]] = []
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.shadows = Shadows(
            lambda key: pytest.fail(f"nothing is to be looked up of {key}"),
            lambda _key, _nbytes: self.room,
            self._submit,
            lambda *end: self.ended.put_nowait(end),
        )

    async def _submit(self, key: str, _payload: Payload, options: RequestOptions) -> Answer:
        self.asked.append((key, options))
        return await asyncio.shield(self.answer)

    def start(self, nbytes: int = 16, answer: Answer | None = None) -> None:
        """One more copy."""
        options = RequestOptions(
            Priority.HIGH, 0.5, nbytes, request_id="id", key="k", attributes=RequestAttributes("k"), spent_s=0.2
        )
        self.shadows.start("m/5", ROW, options, answer or answered(0.0), {})

    async def outcomes(self, number: int) -> list[Outcome]:
        """How the next ones end."""
        return [(await self.ended.get())[1] for _ in range(number)]


def answered(value: float) -> Answer:
    """An answer."""
    return Answer({"y": np.full((1, 4), value, np.float32)}, Priority.NORMAL, 0.0, 0.0)


async def test_a_copy_is_the_least_urgent_and_of_no_client() -> None:
    """With the time of its class, whatever its client had left, and past the cache."""
    copies = Copies()
    copies.start()
    copies.answer.set_result(answered(0.0))
    assert await copies.outcomes(1) == ["same"]
    ((key, options),) = copies.asked
    assert (key, options.priority, options.timeout_s, options.spent_s) == ("m/5", Priority.LOW, None, 0.0)
    assert (options.key, options.listener, options.request_id) == ("", "shadow", "id")
    assert options.attributes == RequestAttributes(SHADOW_TENANT, SHADOW_WEIGHT)
    assert not options.cacheable


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (answered(1.0), "different"),
        (InferenceFailed("no"), "failed"),
        (QueueFull("full", 1.0), "dropped"),
        (DeadlineExceeded("late"), "dropped"),
    ],
)
async def test_every_copy_ends_as_one_outcome(result: Answer | Exception, outcome: Outcome) -> None:
    """Whatever becomes of it."""
    copies = Copies()
    copies.start()
    if isinstance(result, Exception):
        copies.answer.set_exception(result)
    else:
        copies.answer.set_result(result)
    assert await copies.outcomes(1) == [outcome]


async def test_what_finds_no_room_is_dropped() -> None:
    """By number, by bytes, and where the class is full. What has ended makes room."""
    copies = Copies()
    copies.room = False
    copies.start()
    copies.room = True
    copies.start(nbytes=MOST_BYTES)
    for _ in range(MOST + 3):
        copies.start()
    assert await copies.outcomes(5) == ["dropped"] * 5
    assert copies.ended.empty()
    copies.answer.set_result(answered(0.0))
    assert await copies.outcomes(MOST) == ["same"] * MOST
    await copies.shadows.close()
    copies.start()
    assert await copies.outcomes(1) == ["same"]


@pytest.mark.parametrize("tensors", [True, False], ids=["a tensor", "what a processor made"])
async def test_long_texts_take_room(tensors: bool) -> None:
    """Not as much as the references to them."""
    copies = Copies()
    text = b"a" * (MOST_BYTES // 2)
    value = {"y": np.array([text], object)} if tensors else [{"text": text.decode()}]
    for _ in range(2):
        copies.start(answer=Answer(value, Priority.NORMAL, 0.0, 0.0))
    copies.answer.set_result(answered(0.0))
    assert await copies.outcomes(2) == ["dropped", "different"]
