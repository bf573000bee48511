"""What a canary gets and what a shadow costs: ``python -m benchmarks.canary``.

A real server with a small and a larger model, each in two versions of the same file. Of the small one a version gets a
tenth of the requests, each with an id of its own: what it gets is counted from the answers. The larger one is asked in
class ``high`` by an open loop, while a shadow runs none, some or all of the requests again; that is changed at run
time, in turns, so that all rounds have the same server. Writes ``canary.json`` and ``canary.md``.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import aiohttp
import httpx
import numpy as np
import orjson
import typer
from rich.console import Console

from benchmarks.failure import BenchmarkError
from benchmarks.machine import Machine
from benchmarks.open_loop import make_bodies, send_apart
from benchmarks.open_loop_workload import Workload, poisson
from benchmarks.publishing import measured_on, now, publish_report, table
from benchmarks.requests import Request
from benchmarks.server import DIRECT, OUT, ROOT, SERVE_APP_RUN, Server, is_ready
from benchmarks.session import ending_in_order, measuring, steps
from serve_app.config.file import IMPORT_PATH, read_document
from serve_app.domain.priority import Priority

_CONFIG = ROOT / "configs" / "bench.yaml"
_SMALL, _LARGE = "tiny", "minilm"
_VERSIONS = ("1", "2")
_WEIGHTS = {"stable": 90, "candidate": 10}
_CONNECTIONS = 16
_TOKENS = 64
_SEED = 7
_TIMEOUT_S = 20.0
SHARES = (0, 10, 100)
"""Percent of the requests that the shadow runs again."""


@dataclass(frozen=True, slots=True)
class Canary:
    """What the versions of the small model got.

    Attributes:
        requests: How many were sent.
        weight: Percent that the candidate should get.
        found: Percent that it got.
        per_second: Answers per second.
    """

    requests: int
    weight: float
    found: float
    per_second: float


@dataclass(frozen=True, slots=True)
class Shadowed:
    """Requests of class ``high`` beside a shadow; medians over the rounds.

    Attributes:
        share: Percent of the requests that the shadow runs again.
        p50_ms: Median latency.
        p99_ms: Latency that one in 100 exceeds.
        lowest_ms: The same in the best round.
        highest_ms: And in the worst.
        outcomes: Shadow requests by outcome, in all rounds.
    """

    share: int
    p50_ms: float
    p99_ms: float
    lowest_ms: float
    highest_ms: float
    outcomes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Report:
    """What was measured.

    Attributes:
        date: When.
        machine: On what.
        rounds: Of each case with a shadow.
        seconds: Length of each.
        rate: Requests per second in it.
        canary: Of the small model.
        shadows: Of the larger one.
    """

    date: str
    machine: Machine
    rounds: int
    seconds: float
    rate: float
    canary: Canary
    shadows: Sequence[Shadowed]


def render(report: Report) -> str:
    """The report, in Markdown."""
    canary = report.canary
    rows = [
        [
            f"{each.share}%",
            f"{each.p50_ms:.1f}",
            f"{each.p99_ms:.1f}",
            f"{each.lowest_ms:.1f} to {each.highest_ms:.1f}",
            ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(each.outcomes.items())) or "none",
        ]
        for each in report.shadows
    ]
    header = ("shadow runs", "p50, ms", "p99, ms", "p99, lowest to highest", "copies")
    return "\n".join(
        [
            "# Canaries and shadows",
            "",
            "Written by `make bench-canary`.",
            "",
            "## What a canary gets",
            "",
            f"{canary.requests:,} requests with ids of their own to `{_SMALL}` in two versions: the candidate should",
            f"get {canary.weight:g}%, and got **{canary.found:.2f}%** ({canary.per_second:,.0f} answers/s).",
            "",
            "## What a shadow costs",
            "",
            f"`{_LARGE}` in two versions, {_TOKENS} tokens, class `high`, {report.rate:g} requests/s at random times;",
            f"medians of {report.rounds} rounds of {report.seconds:g} s, in turns, on one server. Copies run in class",
            "`low`, on replicas of their own that share the cores.",
            "",
            table(header, rows),
            "",
            "Shadow a tenth of the requests; all of them only where cores are free.",
            "",
            measured_on(report.date, report.machine),
            "",
        ]
    )


def measure(requests: int, rounds: int, seconds: float, rate: float, console: Console) -> tuple[Canary, list[Shadowed]]:
    """Start the server and measure.

    Raises:
        BenchmarkError: The server did not start, or a request was not answered.
        ConfigError: The configuration is not valid, or a model is not there.
    """
    latencies: dict[int, list[np.ndarray[Any, Any]]] = {share: [] for share in SHARES}
    outcomes: dict[int, Counter[str]] = {share: Counter() for share in SHARES}
    OUT.mkdir(parents=True, exist_ok=True)
    with steps(console) as progress, Server("canary", _document(), SERVE_APP_RUN) as server:
        task = progress.add_task("starting", total=1 + rounds * len(SHARES))
        server.wait_until(lambda: is_ready(server.urls[DIRECT]))
        url = server.urls[DIRECT]
        progress.update(task, description="canary")
        _change(url, _SMALL, {"traffic": _WEIGHTS})
        inputs = httpx.get(f"{url}/v2/models/{_SMALL}").json()["inputs"]
        canary = asyncio.run(_canary(url, requests, make_bodies(inputs, 1, 8, count=1)[0]))
        progress.advance(task)
        for number in range(rounds):
            for share in SHARES if number % 2 == 0 else reversed(SHARES):
                progress.update(task, description=f"shadow {share}%")
                _shadow(url, _LARGE, share)
                before = _outcomes(url, _LARGE)
                result = send_apart(url, _workload(_LARGE, rate, seconds, number), OUT / "canary")
                if (result.status != 200).any():
                    raise BenchmarkError(f"{_LARGE}: {(result.status != 200).sum()} requests were not answered")
                latencies[share].append(result.latency_s * 1e3)
                server.wait_until(partial(_idle, url, _LARGE))
                outcomes[share] += _outcomes(url, _LARGE) - before
                progress.advance(task)
    return canary, [_medians(share, latencies[share], outcomes[share]) for share in SHARES]


def _document() -> dict[str, Any]:
    """`configs/bench.yaml` with the two models, each in two versions of the same file."""
    document = read_document(_CONFIG)
    args = next(each for each in document["applications"] if each["import_path"] == IMPORT_PATH)["args"]
    given = {model["name"]: model for model in args["models"]}
    models = []
    for name in (_SMALL, _LARGE):
        several = {"versions": [int(version) for version in _VERSIONS], "aliases": {"stable": 1, "candidate": 2}}
        models.append({**given[name], "path": str(_twice(name)), "resources": {"cpus": 0.1}, **several})
    args["models"] = models
    args.setdefault("router", {}).setdefault("access", {})["open_administration"] = True
    return document


def _twice(model: str) -> Path:
    """A folder with the model's newest version twice."""
    source = ROOT / "models" / model
    newest = max((each for each in source.iterdir() if each.name.isdecimal()), key=lambda each: int(each.name))
    folder = OUT / "canary" / "models" / model
    shutil.rmtree(folder, ignore_errors=True)
    for version in _VERSIONS:
        shutil.copytree(newest, folder / version)
    for beside in source.iterdir():
        if beside.is_dir() and not beside.name.isdecimal():
            shutil.copytree(beside, folder / beside.name)
        elif beside.is_file():
            shutil.copy2(beside, folder)
    return folder


async def _canary(url: str, requests: int, body: Request) -> Canary:
    """Ask the small model, and count which version answers."""
    seen: Counter[str] = Counter()
    numbers = iter(range(requests))

    async def ask(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            headers = {**body.headers, "X-Request-Id": f"canary-{number}"}
            async with session.post(f"{url}/v2/models/{_SMALL}/infer", data=body.body, headers=headers) as answer:
                content = await answer.read()
                if answer.status != 200:
                    raise BenchmarkError(f"{_SMALL}: status {answer.status}: {content[:200].decode(errors='replace')}")
                seen[answer.headers["X-Model-Version"]] += 1

    async with aiohttp.ClientSession() as session:
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(ask(session) for _ in range(_CONNECTIONS)))
        took = asyncio.get_running_loop().time() - began
    return Canary(requests, _WEIGHTS["candidate"], 100 * seen[_VERSIONS[1]] / seen.total(), requests / took)


def _shadow(url: str, model: str, share: int) -> None:
    _change(url, model, {"shadow": {"to": "candidate", "share": share} if share else None})


def _change(url: str, model: str, change: Mapping[str, Any]) -> None:
    answer = httpx.post(f"{url}/v2/models/{model}/traffic", content=orjson.dumps(change), timeout=30.0)
    if answer.status_code != 200:
        raise BenchmarkError(f"{model}: the traffic cannot be changed: {answer.text}")


def _outcomes(url: str, model: str) -> Counter[str]:
    """Shadow requests so far."""
    found: Counter[str] = Counter()
    for line in httpx.get(f"{url}/metrics", timeout=30.0).text.splitlines():
        if line.startswith(f'serve_app_shadow_requests_total{{model="{model}/'):
            found[line.split('outcome="')[1].split('"')[0]] += int(float(line.split()[-1]))
    return found


def _idle(url: str, model: str) -> bool:
    """Whether nothing of the model is under way: all copies have been compared."""
    status = httpx.get(f"{url}/status", timeout=30.0).json()["models"]
    states = [status[f"{model}/{version}"] for version in _VERSIONS]
    return not any(each["running_rows"] or any(queue["rows"] for queue in each["queues"].values()) for each in states)


def _workload(model: str, rate: float, seconds: float, number: int) -> Workload:
    """Arrivals by a Poisson process, the same for all cases of a round."""
    arrival_s = poisson(rate, seconds, (_SEED, number))
    return Workload.alike(arrival_s, model, _TIMEOUT_S, Priority.HIGH, bucket=_TOKENS)


def _medians(share: int, rounds: Sequence[np.ndarray[Any, Any]], outcomes: Mapping[str, int]) -> Shadowed:
    p99 = [float(np.quantile(each, 0.99)) for each in rounds]
    p50 = median(float(np.quantile(each, 0.5)) for each in rounds)
    return Shadowed(share, p50, median(p99), min(p99), max(p99), dict(outcomes))


def main(
    requests: Annotated[int, typer.Option(min=100, help="Requests to the canary.")] = 20_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each case with a shadow.")] = 3,
    seconds: Annotated[float, typer.Option(min=1, help="Length of each.")] = 10.0,
    rate: Annotated[float, typer.Option(min=1, help="Requests per second in it.")] = 20.0,
    publish: Annotated[bool, typer.Option(help="Write what was measured into docs/benchmarks too.")] = True,
) -> None:
    """Measure canaries and shadows on this machine."""
    console = Console()
    with ending_in_order(console), measuring(console) as machine:
        canary, shadows = measure(requests, rounds, seconds, rate, console)
    report = Report(now(), machine, rounds, seconds, rate, canary, shadows)
    publish_report(console, "canary", report, render(report), publish=publish)


if __name__ == "__main__":
    typer.run(main)
