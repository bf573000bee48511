"""What the response cache does for a real server under load, by the share of requests that are found.

The same models twice in one Serve file, with and without a cache. One of them is under load at a time, in turns: a
closed loop over the routers' own port.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from rich.progress import Progress

from benchmarks import wrk
from benchmarks.answers import open_session
from benchmarks.failure import BenchmarkError
from benchmarks.peers.systems import CONFIG, Subject
from benchmarks.peers.traffic import Sample, make_inputs, make_samples, mistakes
from benchmarks.process import OUT
from benchmarks.requests import Request, write_requests
from benchmarks.server import DIRECT, SERVE_APP_RUN, Server, is_ready
from benchmarks.wires import WIRES
from serve_app.config.file import IMPORT_PATH, read_document

MODELS = {"minilm": "binary", "tiny": "json", "pool": "binary"}
"""And the form of their requests."""
LOADS = {"uncached": "no cache", "half": "every other one is new", "hits": "all are hits"}

_CACHED = "-cached"
_NO_HALF = "pool"
_CACHE_BYTES = 2 * 2**20
"""More than the answers that are to be hits, with as many others between them; less than all those others."""
_OTHERS = 4096
_WARM_UP_S = 1.0
_CPUS = 0.1  # of what Ray shares out: six models are up, and one has work


@dataclass(frozen=True, slots=True)
class Loaded:
    """One model under one kind of load; medians over the repetitions.

    Attributes:
        model: Name.
        load: Key of `LOADS`.
        rate: Answers per second.
        lowest: Of the worst repetition.
        highest: Of the best.
        p50_ms: Median latency.
        p99_ms: Latency that one in 100 exceeds.
        hits: Share of the answers that the cache says it gave, 0 to 1.
        server_us: CPU time of all the server's processes per answer, microseconds.
    """

    model: str
    load: str
    rate: float
    lowest: float
    highest: float
    p50_ms: float
    p99_ms: float
    hits: float
    server_us: float


@dataclass(frozen=True, slots=True)
class _Run:
    load: wrk.Load
    hits: float
    server_us: float


@dataclass(frozen=True, slots=True)
class _Traffic:
    """What is asked of one model.

    Attributes:
        samples: Requests that are hits, and their answers.
        usual: The same for the load generator.
        half: By repetition: each of these is followed by another that was not asked before.
    """

    samples: Sequence[Sample]
    usual: Path
    half: Sequence[Path]


def measure(connections: int, seconds: float, repetitions: int, progress: Progress) -> list[Loaded]:
    """Start the server and measure every model under every load.

    Raises:
        BenchmarkError: The server did not start, answered wrongly or refused something.
        ConfigError: The configuration is not valid or a model is not there.
    """
    turns = list(_turns(repetitions))
    task = progress.add_task("real server: preparing", total=len(turns))
    OUT.mkdir(parents=True, exist_ok=True)
    traffic = {model: _make_traffic(model, repetitions) for model in MODELS}
    runs: dict[tuple[str, str], list[_Run]] = {}
    progress.update(task, description="real server: starting")
    with Server("cache", _document(), SERVE_APP_RUN) as server:
        server.wait_until(lambda: is_ready(server.urls[DIRECT]))
        _check(server, traffic)
        for repetition, model, load in turns:
            progress.update(task, description=f"{model}: {LOADS[load]}")
            given = traffic[model]
            file = given.half[repetition] if load == "half" else given.usual
            runs.setdefault((model, load), []).append(
                _run(server, model, load, file, given.usual, connections, seconds)
            )
            progress.advance(task)
        _check(server, traffic)
        progress.update(task, description="real server: ending")
    return [_medians(model, load, found) for (model, load), found in sorted(runs.items(), key=_order)]


def _turns(repetitions: int) -> Iterator[tuple[int, str, str]]:
    """(repetition, model, load): the loads in turns, and which is first in turns too."""
    for repetition in range(repetitions):
        for model in MODELS:
            for load in LOADS if repetition % 2 == 0 else reversed(LOADS):
                if (model, load) != (_NO_HALF, "half"):
                    yield repetition, model, load


def _document() -> dict[str, Any]:
    """`configs/bench.yaml` with these models, each with and without a cache."""
    document = read_document(CONFIG)
    args = next(each for each in document["applications"] if each["import_path"] == IMPORT_PATH)["args"]
    plain = [{**model, "resources": {"cpus": _CPUS}} for model in args["models"] if model["name"] in MODELS]
    cache = {"ttl_s": 3600, "max_bytes": _CACHE_BYTES}
    args["models"] = [*plain, *({**model, "name": model["name"] + _CACHED, "cache": cache} for model in plain)]
    return document


def _make_traffic(model: str, repetitions: int) -> _Traffic:
    file, wire = Subject.of(model).model_file, WIRES[MODELS[model]]
    samples = make_samples(file)
    usual = [wire.request(sample.inputs) for sample in samples]
    paths = []
    if model != _NO_HALF:
        session = open_session(file)
        for repetition in range(repetitions):
            others = [wire.request(each) for each in make_inputs(session, _OTHERS, seed=1000 + repetition)]
            paths.append(_written(f"{model}-half-{repetition}", list(_alternate(usual, others))))
    return _Traffic(samples, _written(f"{model}-usual", usual), paths)


def _alternate(usual: Sequence[Request], others: Sequence[Request]) -> Iterator[Request]:
    for number, other in enumerate(others):
        yield usual[number % len(usual)]
        yield other


def _written(name: str, requests: Sequence[Request]) -> Path:
    path = OUT / f"cache-{name}.requests"
    write_requests(path, requests)
    return path


def _run(server: Server, model: str, load: str, file: Path, usual: Path, connections: int, seconds: float) -> _Run:
    name = model if load == "uncached" else model + _CACHED
    url = _url(server, name)
    wrk.run(url, usual, connections, _WARM_UP_S)  # what is to be a hit is one afterwards
    before, cpu_before = _counts(server, name), sum(server.cpu_s().values())
    seen, _ = wrk.run(url, file, connections, seconds)
    spent = sum(server.cpu_s().values()) - cpu_before
    after = _counts(server, name)
    server.check_alive()
    if seen.failures:
        raise BenchmarkError(f"{name}: {seen.failures} of {seen.requests} requests failed")
    counted = {kind: count - before[kind] for kind, count in after.items()}
    return _Run(seen, counted.get("hits", 0) / max(1, sum(counted.values())), spent / seen.requests * 1e6)


def _counts(server: Server, name: str) -> dict[str, int]:
    found = httpx.get(f"{server.urls[DIRECT]}/status", timeout=10.0).json()["models"][name].get("cache")
    return {} if found is None else {kind: found[kind] for kind in ("hits", "misses", "shared")}


def _check(server: Server, traffic: Mapping[str, _Traffic]) -> None:
    """Compare the answers of every model, asked twice, with those of ONNX Runtime."""
    for model, given in traffic.items():
        for name in (model, model + _CACHED, model + _CACHED):
            if found := mistakes(_url(server, name), WIRES[MODELS[model]], given.samples):
                raise BenchmarkError(f"{name} answers {len(found)} of {len(given.samples)} wrongly: {found[0]}")


def _url(server: Server, name: str) -> str:
    return f"{server.urls[DIRECT]}/v2/models/{name}/infer"


def _order(item: tuple[tuple[str, str], Any]) -> tuple[int, int]:
    model, load = item[0]
    return list(MODELS).index(model), list(LOADS).index(load)


def _medians(model: str, load: str, runs: Sequence[_Run]) -> Loaded:
    rates = [run.load.per_second for run in runs]
    return Loaded(
        model,
        load,
        median(rates),
        min(rates),
        max(rates),
        p50_ms=median(run.load.p50_ms for run in runs),
        p99_ms=median(run.load.p99_ms for run in runs),
        hits=median(run.hits for run in runs),
        server_us=median(run.server_us for run in runs),
    )
