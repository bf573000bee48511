"""Requests with answers that are known: what the load consists of, and what shows that a server answers rightly."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import onnxruntime
import orjson

_SEED = 7
_RELATIVE, _ABSOLUTE = 1e-4, 1e-5  # a batch of another size may add up in another order
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One request.

    Attributes:
        body: V2 JSON, one row of ``x``.
        expected: ``y`` as ONNX Runtime gives it for that row alone, (1, outputs).
    """

    body: bytes
    expected: npt.NDArray[np.float32]


def open_session(model_file: Path) -> Any:
    """A bare session with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors: warnings of its optimiser are about the file, not about the run
    return onnxruntime.InferenceSession(model_file, options, providers=["CPUExecutionProvider"])


def make_samples(session: Any, count: int) -> list[Sample]:
    """Different requests, always the same ones."""
    rows = _rows(session, count)
    return [Sample(_body(row[None]), session.run(["y"], {"x": row[None]})[0]) for row in rows]


def session_rate(session: Any, rows: int, seconds: float) -> float:
    """Rows per second that a loop around the bare session runs, in batches of ``rows``."""
    batch = _rows(session, rows)
    session.run(["y"], {"x": batch})
    began = perf_counter()
    runs = 0
    while (elapsed := perf_counter() - began) < seconds:
        session.run(["y"], {"x": batch})
        runs += 1
    return runs * rows / elapsed


async def mistakes(url: str, samples: Sequence[Sample], concurrency: int) -> list[str]:
    """Send every sample, some at a time so that the server batches them, and compare the answers.

    Returns:
        One line per sample that was not answered rightly.
    """
    limits = httpx.Limits(max_connections=concurrency)
    gate = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(limits=limits, timeout=_TIMEOUT_S) as client:

        async def ask(sample: Sample) -> str | None:
            async with gate:
                try:
                    answer = await client.post(url, content=sample.body, headers={"Content-Type": "application/json"})
                except httpx.TransportError as error:
                    return f"no answer: {type(error).__name__}: {error}"
            return mistake(answer.status_code, answer.content, sample.expected)

        found = await asyncio.gather(*map(ask, samples))
    return [line for line in found if line is not None]


def mistake(status: int, content: bytes, expected: npt.NDArray[np.float32]) -> str | None:
    """What is wrong with an answer, or ``None``."""
    if status != 200:
        return f"status {status}: {content[:200].decode(errors='replace')}"
    try:
        output = orjson.loads(content)["outputs"][0]
        described = output["name"], output["datatype"], output["shape"]
        values = np.asarray(output["data"], dtype=np.float32).reshape(expected.shape)
    except (ValueError, TypeError, LookupError) as error:
        return f"not an answer of the protocol ({error}): {content[:200].decode(errors='replace')}"
    if described != ("y", "FP32", list(expected.shape)):
        return f"the output is {described}"
    if not np.allclose(values, expected, rtol=_RELATIVE, atol=_ABSOLUTE):
        return f"wrong values: {values.tolist()} instead of {expected.tolist()}"
    return None


def _rows(session: Any, count: int) -> npt.NDArray[np.float32]:
    features = session.get_inputs()[0].shape[1]
    return np.random.default_rng(_SEED).standard_normal((count, features), dtype=np.float32)


def _body(x: npt.NDArray[np.float32]) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": x.shape, "data": x.ravel()}
    return orjson.dumps({"inputs": [tensor]}, option=orjson.OPT_SERIALIZE_NUMPY)
