"""Several processes on one GPU, each with a limit of its own: what they take from each other, and what turns help.

Every member is a process with its own CUDA context, as replicas with a share of a GPU are. In a scene each member runs
one stream of batches, closed (the next when the last is done) or open (at arrival times drawn beforehand; latency
counts from the arrival). A lock that all members share makes them take turns, one batch or one piece of it each.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from benchmarks.gpu.subjects import MIB, SUBJECTS, Bench, gpu_memory_used, make_inputs, percentiles
from serve_app.backends.batch import pieces

_MEMBERS = 4
_LIMIT = 2048 * MIB
_MODELS = ("wide", "resnet50", "minilm")
_GRACE_S = 0.8
"""Between telling the members to start and their start."""


@dataclass(frozen=True, slots=True)
class Stream:
    """What one member does in a scene.

    Attributes:
        model: What it runs.
        rows: Rows of a batch.
        per_second: Arrivals per second of an open stream; ``None`` for a closed one.
        piece: Most rows of a run: a batch is run in pieces of that size.
        turns: Whether every run waits for the lock.
    """

    model: str
    rows: int
    per_second: float | None = None
    piece: int | None = None
    turns: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a stream: batches and rows per second, latency and time inside runs, milliseconds."""

    batches: int
    rows_per_second: float
    p50_ms: float
    p99_ms: float
    run_p50_ms: float
    run_p99_ms: float


def check(bench: Bench) -> dict[str, Any]:
    """Identical streams side by side, then a light one with deadlines beside a heavy one."""
    context = multiprocessing.get_context("spawn")
    locks = (context.Lock(), context.Lock())
    members: list[_Member] = []
    models = [name for name in _MODELS if bench.file(name).exists()]
    memory = [gpu_memory_used() / MIB]
    try:
        for _ in range(_MEMBERS if bench.device == "cuda" else 2):
            members.append(_Member(context, bench, models, locks))
            memory.append(gpu_memory_used() / MIB)
        return {
            "limit_mib": _LIMIT / MIB,
            "models_of_a_member": models,
            "memory_used_mib": memory,
            "alike": _alike(members, bench.seconds / 2, models),
            "beside": _beside(members, bench.seconds, models),
            "memory_used_after_mib": gpu_memory_used() / MIB,
        }
    finally:
        for member in members:
            member.end()


def _alike(members: Sequence[_Member], seconds: float, models: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for model in models:
        for rows in (1, 8, 32):
            for count in (1, 2, 4):
                for turns in (False, True):
                    if count <= len(members) and not (turns and count == 1):
                        streams = [Stream(model, rows, turns=turns)] * count
                        outcomes = _play(members, streams, seconds)
                        found.append(
                            {
                                "model": model,
                                "rows": rows,
                                "processes": count,
                                "turns": turns,
                                "rows_per_second": sum(outcome.rows_per_second for outcome in outcomes),
                                "outcomes": [asdict(outcome) for outcome in outcomes],
                            }
                        )
    return found


def _beside(members: Sequence[_Member], seconds: float, models: Sequence[str]) -> list[dict[str, Any]]:
    """A light stream with a tight deadline beside a heavy closed one."""
    pairs = [
        (Stream("wide", 1, per_second=200), Stream("resnet50", 64)),
        (Stream("resnet50", 1, per_second=60), Stream("minilm", 128)),
    ]
    scenes: list[tuple[str, bool, int | None]] = [
        ("contend", False, None),
        ("contend, heavy in pieces of 8", False, 8),
        ("take turns", True, None),
        ("take turns, heavy in pieces of 8", True, 8),
    ]
    found = []
    for light, heavy in pairs:
        if not {light.model, heavy.model} <= set(models):
            continue
        entry: dict[str, Any] = {"light": asdict(light), "heavy": asdict(heavy), "scenes": {}}
        entry["scenes"]["alone"] = {
            "light": asdict(_play(members, [light], seconds)[0]),
            "heavy": asdict(_play(members, [heavy], seconds)[0]),
        }
        for name, turns, piece in scenes:
            streams = [
                Stream(light.model, light.rows, light.per_second, None, turns),
                Stream(heavy.model, heavy.rows, None, piece, turns),
            ]
            outcomes = _play(members, streams, seconds)
            entry["scenes"][name] = {"light": asdict(outcomes[0]), "heavy": asdict(outcomes[1])}
        found.append(entry)
    return found


def _play(members: Sequence[_Member], streams: Sequence[Stream], seconds: float) -> list[Outcome]:
    start = time.monotonic() + _GRACE_S
    playing = list(zip(members, streams, strict=False))
    for number, (member, stream) in enumerate(playing):
        member.connection.send((stream, start, seconds, number))
    return [member.receive() for member, _ in playing]


class _Member:
    """A process with its models loaded, waiting for streams to run."""

    def __init__(self, context: Any, bench: Bench, models: Sequence[str], locks: Any) -> None:
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, bench, list(models), locks))
        self.process.start()
        theirs.close()
        self.receive()

    def receive(self) -> Any:
        """The next answer; raises `EOFError` when the process has died."""
        return self.connection.recv()

    def end(self) -> None:
        """End the process."""
        self.connection.close()
        self.process.join(timeout=20)
        if self.process.is_alive():
            self.process.kill()


class _Turns:
    """A lock between processes whose holder cannot take it again before one that waits.

    Args:
        first: Held by the one that is next.
        second: Held by the one whose turn it is.
    """

    def __init__(self, first: Any, second: Any) -> None:
        self._first = first
        self._second = second

    def __enter__(self) -> None:
        with self._first:
            self._second.acquire()

    def __exit__(self, *_: object) -> None:
        self._second.release()


def _serve(connection: Connection, bench: Bench, models: Sequence[str], locks: Any) -> None:
    """What a member does: load, say so, and run one stream after the other until the other end closes."""
    lengths = {subject.name: subject.length for subject in SUBJECTS}
    backends = {name: bench.load(name, memory=_LIMIT) for name in models}
    warm = (128, 64, 32, 8, 1) if bench.device == "cuda" else (1,)
    for name, backend in backends.items():
        for rows in warm:  # the largest first: an arena that grows step by step is left in pieces
            backend.run(make_inputs(backend.signature, rows, lengths[name]))
    connection.send("ready")
    while True:
        try:
            stream, start, seconds, number = connection.recv()
        except EOFError:
            break
        backend = backends[stream.model]
        inputs = make_inputs(backend.signature, stream.rows, lengths[stream.model])
        parts = [
            {name: array[piece] for name, array in inputs.items()}
            for piece in pieces(stream.rows, stream.piece or stream.rows)
        ]
        turn = _Turns(*locks) if stream.turns else nullcontext()
        for part in (parts[0], parts[-1], parts[0]):
            backend.run(part)  # what a new number of rows costs once is not what this is about
        connection.send(_run_stream(backend, parts, stream, turn, start, seconds, number))
    for backend in backends.values():
        backend.close()


def _run_stream(
    backend: Any,
    parts: Sequence[Any],
    stream: Stream,
    turn: AbstractContextManager[Any],
    start: float,
    seconds: float,
    seed: int,
) -> Outcome:
    latencies: list[float] = []
    durations: list[float] = []
    arrivals = iter(())
    if stream.per_second is not None:
        gaps = np.random.default_rng(seed).exponential(1 / stream.per_second, int(2 * stream.per_second * seconds) + 10)
        arrivals = iter((start + np.cumsum(gaps)).tolist())
    _sleep_until(start)
    end = start + seconds
    while True:
        now = time.monotonic()
        arrival = next(arrivals, end) if stream.per_second is not None else now
        if latencies and (arrival >= end or now >= end + seconds):
            break
        _sleep_until(arrival)
        for part in parts:
            with turn:
                started = time.monotonic()
                backend.run(part)
                durations.append(time.monotonic() - started)
        latencies.append(time.monotonic() - arrival)
    took = max(time.monotonic() - start, seconds)
    p50, p99 = percentiles(latencies)
    run_p50, run_p99 = percentiles(durations)
    rate = len(latencies) * stream.rows / took
    return Outcome(len(latencies), rate, 1e3 * p50, 1e3 * p99, 1e3 * run_p50, 1e3 * run_p99)


def _sleep_until(moment: float) -> None:
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)
