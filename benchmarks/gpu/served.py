"""The whole server on a GPU, as a user starts it: models with a few lines each, on fractions of one device.

Answers are compared with the CPU's, throughput with a bare session's and with what the server's own warm-up predicts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

import httpx
import numpy as np

from benchmarks.gpu.apart import apart
from benchmarks.gpu.subjects import Bench, measure
from benchmarks.overload.generator import CLASSES, SHARED, Answers, Asked, Generator
from benchmarks.peers.traffic import make_samples
from benchmarks.turns import newest_file
from benchmarks.wires import Binary

CONNECTIONS: Final = (8, 32, 64)
AIM: Final = 0.6
"""Of the bare session's rate, at the most connections."""
FACTOR: Final = 1.5
"""Offered load, as a multiple of the closed loop's."""
_DEADLINE_MS: Final = 100.0
_COMPARED: Final = 16
_BARE_S: Final = 1.0


@dataclass(slots=True)
class Served:
    """A model at the server.

    Attributes:
        devices: Its replicas by device, as ``/status`` tells them.
        row_sizes: What batches are filled up to.
        verdict: Whether requests share runs.
        distance: The largest difference of an answer to the CPU's, relative to the largest value.
        bare: Rows per second of a bare session, by the rows of its runs.
        closed: Answers per second, by connections.
        p99_ms: Of these.
        expected: Rows per second in the best batches, by what the server predicts; the median of its cost buckets.
        in_time: Percent of each class, at `FACTOR` times the rate of the most connections.
        late_ms: How late the load generator was then.
        together: Answers per second beside the other models.
    """

    name: str
    devices: Mapping[str, int]
    row_sizes: Sequence[int]
    verdict: str
    distance: float = 0.0
    bare: dict[int, float] = field(default_factory=dict)
    closed: dict[int, float] = field(default_factory=dict)
    p99_ms: dict[int, float] = field(default_factory=dict)
    expected: float = 0.0
    in_time: dict[str, float] = field(default_factory=dict)
    late_ms: float = 0.0
    together: float = 0.0

    @property
    def share(self) -> float:
        """Of the bare session, at the most connections."""
        most = max(CONNECTIONS)
        return self.closed.get(most, 0.0) / max(self.bare.get(most, 0.0), 1e-9)


def configured(names: Sequence[str], device: str) -> list[dict[str, Any]]:
    """The models as a user writes them: equal shares of the device, and a limit of its memory."""
    resources: dict[str, Any] = {}
    if device == "cuda":
        resources = {"device": "cuda", "gpus": round(0.9 / len(names), 2), "gpu_memory": "6GiB"}
    return [{"name": name, "path": f"models/{name}", "resources": resources} for name in names]


def bare(bench: Bench, name: str) -> dict[str, Any]:
    """Rows per second of a session alone, in runs of always the same number of rows; in a process of its own."""
    backend = bench.load(name)
    (typical, *_) = _typical(name)
    found = {}
    for rows in CONNECTIONS:
        inputs = {key: np.repeat(array, rows, axis=0) for key, array in typical.items()}
        timing = measure(lambda: backend.run(inputs), _BARE_S, most=10_000)  # noqa: B023 - called right here
        found[str(rows)] = rows / timing.p50_ms * 1e3
    backend.close()
    return found


def look(url: str, names: Sequence[str]) -> dict[str, Served]:
    """What the server tells of its models."""
    models = httpx.get(f"{url}/status", timeout=30.0).json()["models"]
    found = {}
    for name in names:
        told = models[name]
        compute = told.get("compute", {})
        verdict = told["joinable"][""]
        words = f"{verdict['verdict']} {verdict['reason']}".strip()
        served = Served(name, told.get("devices", {}), compute.get("row_sizes", []), words)
        rates = [max(int(rows) / seconds for rows, seconds in of.items()) for of in told["latency_s"].values()]
        served.expected = median(rates) if rates else 0.0
        found[name] = served
    return found


def compare(url: str, served: Served) -> None:
    """Ask for a few answers, and note how far they are from those of ONNX Runtime on the CPU."""
    wire = Binary()
    with httpx.Client(timeout=60.0) as client:
        for sample in make_samples(newest_file(served.name))[:_COMPARED]:
            request = wire.request(sample.inputs)
            path = f"{url}/v2/models/{served.name}/infer"
            reply = client.post(path, headers=dict(request.headers), content=request.body).raise_for_status()
            answer = wire.answer(reply.headers, reply.content)
            gap = np.abs(answer - sample.expected).max() / np.abs(sample.expected).max()
            served.distance = max(served.distance, float(gap))


def load(url: str, served: Served, generator: Generator, seconds: float) -> None:
    """Closed loops, and then more than the server can do, a fifth of it in class `high`."""
    asked = _asked(served.name)
    for connections in CONNECTIONS:
        answers = _closed(url, asked, generator, seconds, connections)
        served.closed[connections], served.p99_ms[connections] = answers.good / seconds, answers.p99_ms
    rate = FACTOR * served.closed[max(CONNECTIONS)]
    served.late_ms, classes = generator.run(url, asked, rate, seconds, SHARED)
    served.in_time = {name: 100.0 * classes[name].in_time / max(1, classes[name].offered) for name in CLASSES}


def load_together(url: str, models: Sequence[Served], generator: Generator, seconds: float) -> None:
    """All models at once, each in a closed loop of the most connections."""

    def one(served: Served) -> None:
        answers = _closed(url, _asked(served.name), generator, seconds, max(CONNECTIONS))
        served.together = answers.good / seconds

    with ThreadPoolExecutor(len(models)) as threads:
        list(threads.map(one, models))


def measure_bare(bench: Bench, served: Served) -> str | None:
    """Fill in `Served.bare`. Returns what went wrong."""
    found = apart(bare, bench, served.name)
    if "fault" in found:
        return str(found["fault"])
    served.bare = {int(rows): rate for rows, rate in found.items()}
    return None


def _asked(name: str) -> Asked:
    return Asked(f"/v2/models/{name}/infer", Binary().request(_typical(name)[0]), _DEADLINE_MS)


def _typical(name: str) -> list[Mapping[str, Any]]:
    """Inputs of requests, the one of middle size first."""
    inputs = sorted(
        (sample.inputs for sample in make_samples(newest_file(name))),
        key=lambda each: sum(array.nbytes for array in each.values()),
    )
    middle = len(inputs) // 2
    return [inputs[middle], *inputs[:middle], *inputs[middle + 1 :]]


def _closed(url: str, asked: Asked, generator: Generator, seconds: float, connections: int) -> Answers:
    _, classes = generator.run(url, asked, 0.0, seconds, SHARED, closed=connections)
    time.sleep(0.1)  # the connections end
    return classes["high"]
