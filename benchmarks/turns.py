"""Servers under the same loads in turns: one at a time is under load, and their order changes with every round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import perf_analyzer, wrk
from benchmarks.failure import BenchmarkError
from benchmarks.peers.traffic import Sample, make_samples, mistakes
from benchmarks.requests import write_requests
from benchmarks.server import DIRECT, OUT, ROOT, Server
from benchmarks.wires import WIRES, Wire

GRPC = "grpc"
"""The wire that ``perf_analyzer`` asks; ``wrk`` asks the others."""

_WARM_UP_S = 3.0


@dataclass(frozen=True, slots=True)
class Case:
    """A load.

    Attributes:
        model: Of `configs/bench.yaml`.
        wire: ``json``, ``binary`` or `GRPC`.
        connections: Connections that are kept busy; of `GRPC` requests at once.
    """

    model: str
    wire: str
    connections: int

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.model}, {self.wire}, {self.connections}"


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of the load generator.

    Attributes:
        model: Of the case.
        system: The server's name.
        number: Of the round, from 0.
        per_second: Good answers per second.
        p50_ms: Median latency, milliseconds.
        p99_ms: 99th percentile.
        cpu_us: Processor time of the server's router and replicas per answer, microseconds.
        case: Name of the case; empty in reports of earlier versions, where a model had one.
    """

    model: str
    system: str
    number: int
    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    case: str = ""


def take_turns(
    servers: Sequence[Server], cases: Sequence[Case], rounds: int, seconds: float, say: Callable[[str], None]
) -> tuple[list[Turn], dict[str, int]]:
    """Load servers that are ready in turns, and compare their answers with ONNX Runtime's before and after.

    Args:
        servers: Each has a port of its routers for HTTP, and one for gRPC where a case asks it.
        cases: Loads.
        rounds: Turns per server and case.
        seconds: Length of a turn.
        say: Told what is going on.

    Returns:
        All turns, and by model how many answers were compared.

    Raises:
        BenchmarkError: A server answered wrongly, or the load generator failed.
    """
    samples = {model: make_samples(newest_file(model)) for model in {c.model for c in cases}}
    checked = dict.fromkeys(samples, 0)
    turns: list[Turn] = []
    for case in cases:
        wire = WIRES["binary" if case.wire == GRPC else case.wire]
        requests = OUT / f"turns-{case.model}-{case.wire}.requests"
        write_requests(requests, (wire.request(sample.inputs) for sample in samples[case.model]))
        for server in servers:
            say(f"{case.name}: checking {server.name}")
            checked[case.model] += _check(server, case, wire, samples[case.model])
            _load(server, case, requests, _WARM_UP_S)
        for number in range(rounds):
            at = number % len(servers)
            order = [*servers[at:], *servers[:at]]
            for server in order if number % 2 == 0 else order[::-1]:
                turn = _turn(server, case, requests, number, seconds)
                say(f"{case.name}: round {number + 1} of {rounds}, {server.name}: {turn.per_second:,.0f}/s")
                turns.append(turn)
        for server in servers:
            checked[case.model] += _check(server, case, wire, samples[case.model])
    return turns, checked


def _turn(server: Server, case: Case, requests: Path, number: int, seconds: float) -> Turn:
    before = _cpu_s(server)
    answers, per_second, p50_ms, p99_ms = _load(server, case, requests, seconds)
    cpu_s = _cpu_s(server) - before
    server.check_alive()
    return Turn(case.model, server.name, number, per_second, p50_ms, p99_ms, cpu_s / answers * 1e6, case.name)


def _load(server: Server, case: Case, requests: Path, seconds: float) -> tuple[float, float, float, float]:
    """Load a server. Returns answers, answers per second, median latency and 99th percentile in milliseconds."""
    if case.wire == GRPC:
        way = perf_analyzer.Way(server.name, "grpc", server.grpc[DIRECT])
        per_second, p50_ms, p99_ms = perf_analyzer.run(way, case.connections, seconds)
        return per_second * seconds, per_second, p50_ms, p99_ms
    load, _ = wrk.run(_url(server, case), requests, case.connections, seconds)
    if load.failures:
        raise BenchmarkError(f"{server.name}, {case.name}: {load.failures} of {load.requests} requests failed")
    return load.requests, load.per_second, load.p50_ms, load.p99_ms


def _cpu_s(server: Server) -> float:
    return sum(seconds for role, seconds in server.cpu_s().items() if role.startswith("replica of"))


def _check(server: Server, case: Case, wire: Wire, samples: Sequence[Sample]) -> int:
    found = mistakes(_url(server, case), wire, samples)
    if found:
        raise BenchmarkError(f"{server.name} answers {len(found)} of {len(samples)} requests wrongly: {found[0]}")
    return len(samples)


def _url(server: Server, case: Case) -> str:
    return f"{server.urls[DIRECT]}/v2/models/{case.model}/infer"


def newest_file(model: str) -> Path:
    """A model's file, of its newest version.

    Raises:
        BenchmarkError: There is none.
    """
    files = sorted((ROOT / "models" / model).rglob("model.onnx"))
    if not files:
        raise BenchmarkError(f"there is no model.onnx in models/{model}: make models")
    return files[-1]
