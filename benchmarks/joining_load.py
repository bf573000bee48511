"""Two working trees under the same load, in turns, and their cold starts: it measures for ``benchmarks.joining``."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import cold_start, wrk
from benchmarks.failure import BenchmarkError
from benchmarks.peers.traffic import Sample, make_samples, mistakes
from benchmarks.probes import probes_for
from benchmarks.requests import write_requests
from benchmarks.server import DIRECT, OUT, ROOT, SERVE_APP_RUN, Server, is_ready
from benchmarks.wires import WIRES, Wire
from serve_app.config.file import read_document
from serve_app.config.files import CACHE_VARIABLE

BEFORE, AFTER, UNVERIFIED = "before", "after", "after, verify: 0"
"""The systems: another working tree; this one; this one without running answered requests again."""

_DEMO, _BENCH = Path("configs") / "demo.yaml", Path("configs") / "bench.yaml"
_WARM_UP_S = 3.0
_START_WITHIN_S = 400.0


@dataclass(frozen=True, slots=True)
class Case:
    """A load.

    Attributes:
        model: Of `configs/bench.yaml`.
        wire: ``json`` or ``binary``.
        connections: Connections that are kept busy.
    """

    model: str
    wire: str
    connections: int


CASES = (
    Case("tiny", "json", 64),
    Case("wide", "binary", 64),
    Case("minilm", "binary", 32),
    Case("resnet50", "binary", 8),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of the load generator.

    Attributes:
        model: Of the case.
        system: Which of the three.
        number: Of the round, from 0.
        per_second: Good answers per second.
        p50_ms: Median latency, milliseconds.
        p99_ms: 99th percentile.
        cpu_us: Processor time of the server's router and replicas per answer, microseconds.
    """

    model: str
    system: str
    number: int
    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Started:
    """One cold start of the demo.

    Attributes:
        system: `BEFORE` or `AFTER`.
        kept: Whether the verdicts of an earlier start were kept.
        seconds: From the command to the first correct answer of every model.
    """

    system: str
    kept: bool
    seconds: Mapping[str, float]


def loads(
    before: Path, cases: Sequence[Case], rounds: int, seconds: float, say: Callable[[str], None]
) -> tuple[list[Turn], dict[str, int]]:
    """Load the three servers in turns; all of them are up, and one at a time is under load.

    Args:
        before: The other working tree.
        cases: Loads; the servers have their models only.
        rounds: Turns per server and case.
        seconds: Length of a turn.
        say: Told what is going on.

    Returns:
        All turns, and by model how many answers were compared with ONNX Runtime's.

    Raises:
        BenchmarkError: A server did not start, or answered wrongly.
    """
    document = _with_models(read_document(ROOT / _BENCH), [case.model for case in cases])
    samples = {case: make_samples(ROOT / "models" / case.model / _newest(case.model)) for case in cases}
    turns: list[Turn] = []
    checked = dict.fromkeys((case.model for case in cases), 0)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="serve-app-"))
        servers = []
        for number, (system, tree) in enumerate(((BEFORE, before), (AFTER, ROOT), (UNVERIFIED, ROOT))):
            say(f"starting {system}")
            cache = Path(folder) / str(number)
            its = _unverified(document) if system == UNVERIFIED else document
            server = Server(system, its, SERVE_APP_RUN, tree, {CACHE_VARIABLE: str(cache)})
            servers.append(stack.enter_context(server))
            server.wait_until(partial(is_ready, server.urls[DIRECT]), _START_WITHIN_S)
            _check_code(server, cache, proves=tree is ROOT)
        for case in cases:
            requests, wire = OUT / f"joining-{case.model}.requests", WIRES[case.wire]
            write_requests(requests, (wire.request(sample.inputs) for sample in samples[case]))
            for server in servers:
                say(f"{case.model}: checking {server.name}")
                checked[case.model] += _check(server, case, wire, samples[case])
                wrk.run(_url(server, case), requests, case.connections, _WARM_UP_S)
            for number in range(rounds):
                say(f"{case.model}: round {number + 1} of {rounds}")
                at = number % len(servers)
                order = [*servers[at:], *servers[:at]]
                for server in order if number % 2 == 0 else order[::-1]:
                    turn = _turn(server, case, requests, number, seconds)
                    say(f"{case.model}: round {number + 1} of {rounds}, {server.name}: {turn.per_second:,.0f}/s")
                    turns.append(turn)
            for server in servers:
                checked[case.model] += _check(server, case, wire, samples[case])
    return turns, checked


def starts(before: Path, rounds: int, say: Callable[[str], None]) -> list[Started]:
    """Start the demo of both trees in turns: the other one, this one without records, this one with them.

    Raises:
        BenchmarkError: A server did not start, or answered wrongly.
    """
    found = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="serve-app-") as cache:
            ways = [(BEFORE, before, False), (AFTER, ROOT, False), (AFTER, ROOT, True)]
            for system, tree, kept in ways if number % 2 == 0 else [*ways[1:], ways[0]]:
                say(f"start {number + 1} of {rounds}: {system}{', with records' if kept else ''}")
                document = read_document(tree / _DEMO)
                names = [model["name"] for model in _args(document)["models"]]
                variables = {CACHE_VARIABLE: cache}
                with Server(f"demo {system}", document, SERVE_APP_RUN, tree, variables) as server:
                    start = asyncio.run(cold_start.wait_for_answers(server, probes_for(names, cold_start.DATA)))
                    _check_code(server, Path(cache), proves=system == AFTER or any(Path(cache).iterdir()))
                found.append(Started(system, kept, start.answers_s))
    return found


def _turn(server: Server, case: Case, requests: Path, number: int, seconds: float) -> Turn:
    before = _cpu_s(server)
    load, _ = wrk.run(_url(server, case), requests, case.connections, seconds)
    cpu_s = _cpu_s(server) - before
    server.check_alive()
    if load.failures:
        raise BenchmarkError(f"{server.name}, {case.model}: {load.failures} of {load.requests} requests failed")
    return Turn(case.model, server.name, number, load.per_second, load.p50_ms, load.p99_ms, cpu_s / load.requests * 1e6)


def _cpu_s(server: Server) -> float:
    return sum(seconds for role, seconds in server.cpu_s().items() if role.startswith("replica of"))


def _check(server: Server, case: Case, wire: Wire, samples: Sequence[Sample]) -> int:
    found = mistakes(_url(server, case), wire, samples)
    if found:
        raise BenchmarkError(f"{server.name} answers {len(found)} of {len(samples)} requests wrongly: {found[0]}")
    return len(samples)


def _check_code(server: Server, cache: Path, *, proves: bool) -> None:
    """Whether it runs the code that it should: only this tree's keeps verdicts."""
    kept = (cache / "joinable").is_dir()
    if kept != proves:
        raise BenchmarkError(f"{server.name} has {'kept' if kept else 'not kept'} verdicts: it runs other code")


def _url(server: Server, case: Case) -> str:
    return f"{server.urls[DIRECT]}/v2/models/{case.model}/infer"


def _newest(model: str) -> Path:
    files = sorted((ROOT / "models" / model).rglob("model.onnx"))
    if not files:
        raise BenchmarkError(f"there is no model.onnx in models/{model}: make models")
    return files[-1]


def _args(document: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["applications"][0]["args"]
    return found


def _with_models(document: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    args = _args(document)
    args["models"] = [model for model in args["models"] if model["name"] in names]
    return document


def _unverified(document: dict[str, Any]) -> dict[str, Any]:
    document = deepcopy(document)
    for model in _args(document)["models"]:
        model["batching"]["verify"] = 0
    return document
