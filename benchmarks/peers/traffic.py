"""Requests to the benchmark models with answers that are known, in any form of the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from benchmarks.answers import open_session
from benchmarks.wires import Answer, Arrays, Wire

_SEED = 7
_TIMEOUT_S = 60.0
_CHECKED_AT_ONCE = 16
_RELATIVE, _OF_LARGEST = 1e-3, 1e-3  # sums in another order, over the depth of a ResNet
_SAMPLES_BYTES = 8 * 1024**2
_MOST_SAMPLES, _FEWEST_SAMPLES = 256, 8
_MEDIAN_TOKENS, _SPREAD, _LONGEST_TOKENS = 24.0, 0.8, 128


@dataclass(frozen=True, slots=True)
class Sample:
    """One request.

    Attributes:
        inputs: The model's inputs, one row.
        expected: The values of its output as ONNX Runtime gives them for that row alone, flat.
    """

    inputs: Arrays
    expected: Answer


def make_samples(model_file: Path) -> list[Sample]:
    """Different requests to a model and what ONNX Runtime answers to each alone, always the same ones."""
    session = open_session(model_file)
    return [Sample(inputs, session.run(None, inputs)[0].ravel()) for inputs in make_inputs(session)]


def make_inputs(session: Any, count: int | None = None, seed: int = _SEED) -> list[Arrays]:
    """Inputs of different requests to a model, one row each, always the same ones.

    Floats are normal. Whole numbers are ids of tokens, as many as in a mixture of sentences and paragraphs: log-normal
    with a median of 24, at most 128.

    Args:
        session: The model.
        count: How many; ``None`` for up to 256, fewer where they are large.
        seed: Another one gives others.
    """
    random = np.random.default_rng(seed)
    first = _inputs(session, random)
    if count is None:
        size = sum(array.nbytes for array in first.values())
        count = int(np.clip(_SAMPLES_BYTES // size, _FEWEST_SAMPLES, _MOST_SAMPLES))
    return [first, *(_inputs(session, random) for _ in range(count - 1))]


def mistakes(url: str, wire: Wire, samples: Sequence[Sample]) -> list[str]:
    """Send every sample, some at a time so that the server batches them, and compare the answers.

    Returns:
        One line per sample that was not answered rightly.
    """
    return asyncio.run(_mistakes(url, wire, samples))


def mistake(wire: Wire, status: int, headers: dict[str, str], content: bytes, expected: Answer) -> str | None:
    """What is wrong with an answer, or ``None``."""
    if status != 200:
        return f"status {status}: {content[:200].decode(errors='replace')}"
    try:
        values = wire.answer(headers, content)
    except (ValueError, TypeError, LookupError) as error:
        return f"not an answer in {wire.says} ({error}): {content[:200].decode(errors='replace')}"
    if values.shape != expected.shape:
        return f"{values.size} values instead of {expected.size}"
    worst = float(np.abs(values - expected).max())
    if not np.allclose(values, expected, _RELATIVE, _OF_LARGEST * float(np.abs(expected).max())):
        return f"wrong values: off by {worst:g}, where the largest is {float(np.abs(expected).max()):g}"
    return None


async def _mistakes(url: str, wire: Wire, samples: Sequence[Sample]) -> list[str]:
    gate = asyncio.Semaphore(_CHECKED_AT_ONCE)
    limits = httpx.Limits(max_connections=_CHECKED_AT_ONCE)
    async with httpx.AsyncClient(limits=limits, timeout=_TIMEOUT_S) as client:

        async def ask(sample: Sample) -> str | None:
            request = wire.request(sample.inputs)
            async with gate:
                try:
                    answer = await client.post(url, content=request.body, headers=dict(request.headers))
                except httpx.TransportError as error:
                    return f"no answer: {type(error).__name__}: {error}"
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return mistake(wire, answer.status_code, headers, answer.content, sample.expected)

        found = await asyncio.gather(*map(ask, samples))
    return [line for line in found if line is not None]


def _inputs(session: Any, random: np.random.Generator) -> Arrays:
    described = session.get_inputs()
    tokens = int(np.clip(random.lognormal(np.log(_MEDIAN_TOKENS), _SPREAD), 3, _LONGEST_TOKENS))
    found: dict[str, npt.NDArray[Any]] = {}
    for number, each in enumerate(described):
        shape = [1, *(size if isinstance(size, int) else tokens for size in each.shape[1:])]
        if each.type == "tensor(float)":
            found[each.name] = random.standard_normal(shape, dtype=np.float32)
        else:  # the first such input holds ids, the others say that all of them count
            found[each.name] = random.integers(1000, 20_000, shape) if number == 0 else np.ones(shape, np.int64)
    return found
