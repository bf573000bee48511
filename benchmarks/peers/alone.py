"""A model without a server: a loop around ONNX Runtime, in a process of its own.

    python -m benchmarks.peers.alone '{"model_file": "...", "buckets": [], "sessions": 1, ...}'

The rows are those of the requests that the servers get. Where their lengths differ, runs hold requests of one padding
bucket, as serve_app's batches do; that all requests are known beforehand is an advantage that no server has.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnxruntime

from benchmarks.failure import BenchmarkError
from benchmarks.peers.results import Alone
from benchmarks.peers.traffic import make_inputs
from benchmarks.process import ROOT
from benchmarks.wires import Arrays
from benchmarks.wrk import Load

_SEARCH_S = 1.5
_WARM_UP_RUNS = 8


class Looped(msgspec.Struct, frozen=True):
    """What one process found.

    Attributes:
        rows: Rows that were run.
        seconds: How long that took.
        latencies_ms: Median, 90th and 99th percentile and longest time of one run.
        cores: Cores that were kept busy.
    """

    rows: int
    seconds: float
    latencies_ms: tuple[float, float, float, float]
    cores: float

    @property
    def load(self) -> Load:
        """As the load generator would say it; a run of many rows has one latency."""
        return Load(self.rows, self.seconds, self.rows / self.seconds, *self.latencies_ms, 0, 0, 0)


def measure(model_file: Path, buckets: Sequence[int], alone: Alone, seconds: float) -> Looped:
    """Run the loop in a process of its own.

    Args:
        model_file: The ``.onnx`` file.
        buckets: Lengths that token ids are padded to, ascending.
        alone: How.
        seconds: How long.

    Raises:
        BenchmarkError: The process failed.
    """
    told = {"model_file": str(model_file), "buckets": list(buckets), "seconds": seconds, **asdict(alone)}
    command = [sys.executable, "-m", "benchmarks.peers.alone", json.dumps(told)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if finished.returncode != 0:
        raise BenchmarkError(f"ONNX Runtime alone failed: {finished.stderr.strip()[-1000:]}")
    return msgspec.json.decode(finished.stdout.splitlines()[-1], type=Looped)


def search(model_file: Path, buckets: Sequence[int], max_rows: int, cores: int) -> list[tuple[Alone, float]]:
    """Rows per second in every way worth trying, the best first.

    Args:
        model_file: The ``.onnx`` file.
        buckets: Lengths that token ids are padded to, ascending.
        max_rows: Of the server's batches.
        cores: How many it may keep busy: as many as the servers' sessions.

    Raises:
        BenchmarkError: The process failed.
    """
    return sorted(
        ((way, measure(model_file, buckets, way, _SEARCH_S).load.per_second) for way in ways(max_rows, cores)),
        key=lambda found: -found[1],
    )


def ways(max_rows: int, cores: int) -> list[Alone]:
    """All cores in one session, and one session per core; single rows and up to twice what the server batches."""
    sizes = sorted({1, max(1, max_rows // 4), max_rows, 2 * max_rows})
    shapes = sorted({(1, cores), (cores, 1)})
    return [Alone(sessions, threads, rows) for sessions, threads in shapes for rows in sizes]


def make_batches(inputs: Sequence[Arrays], rows: int, buckets: Sequence[int]) -> list[dict[str, npt.NDArray[Any]]]:
    """Put requests of one row into batches.

    Args:
        inputs: Of every request.
        rows: Per batch. A bucket's last batch is smaller; requests of one size are repeated to fill every batch.
        buckets: Lengths that the second axis is padded to, with zeros; empty where all requests have one size.
    """
    if not buckets:
        repeated = [inputs[index % len(inputs)] for index in range(max(rows, len(inputs) // rows * rows))]
        return [_joined(repeated[at : at + rows], None) for at in range(0, len(repeated), rows)]

    def bucket(each: Arrays) -> int:
        return buckets[bisect_left(buckets, next(iter(each.values())).shape[1])]

    batches = []
    for size, group in groupby(sorted(inputs, key=bucket), bucket):
        members = list(group)
        batches += [_joined(members[at : at + rows], size) for at in range(0, len(members), rows)]
    return batches


def _joined(members: Sequence[Arrays], length: int | None) -> dict[str, npt.NDArray[Any]]:
    def padded(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array if length is None else np.pad(array, ((0, 0), (0, length - array.shape[1])))

    return {name: np.concatenate([padded(each[name]) for each in members]) for name in members[0]}


def _loop(told: Mapping[str, Any]) -> Looped:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = told["threads"]
    options.log_severity_level = 3
    sessions = [
        onnxruntime.InferenceSession(told["model_file"], options, providers=["CPUExecutionProvider"])
        for _ in range(told["sessions"])
    ]
    batches = make_batches(make_inputs(sessions[0]), told["rows"], told["buckets"])
    random.Random(0).shuffle(batches)  # a run may end amid them, and shall have met short ones and long ones
    rows, latencies = [0] * len(sessions), [[] for _ in sessions]  # type: tuple[list[int], list[list[float]]]
    ready = threading.Barrier(len(sessions) + 1)

    def work(number: int) -> None:
        session = sessions[number]
        for batch in batches[:_WARM_UP_RUNS]:
            session.run(None, batch)
        ready.wait()
        began = now = perf_counter()
        at = number
        while now - began < told["seconds"]:
            batch = batches[at % len(batches)]
            session.run(None, batch)
            after = perf_counter()
            latencies[number].append(after - now)
            rows[number] += len(next(iter(batch.values())))
            now, at = after, at + 1

    workers = [threading.Thread(target=work, args=(number,)) for number in range(len(sessions))]
    for worker in workers:
        worker.start()
    ready.wait()
    began, cpu_before = perf_counter(), process_time()
    for worker in workers:
        worker.join()
    took = perf_counter() - began
    every = np.concatenate(latencies) * 1000
    p50, p90, p99, longest = (float(value) for value in np.quantile(every, (0.5, 0.9, 0.99, 1.0)))
    return Looped(sum(rows), took, (p50, p90, p99, longest), (process_time() - cpu_before) / took)


if __name__ == "__main__":
    print(msgspec.json.encode(_loop(json.loads(sys.argv[1]))).decode())
