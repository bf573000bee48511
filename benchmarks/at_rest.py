"""What a small request takes at rest, stage by stage: ``python -m benchmarks.at_rest``.

One connection sends the requests of each probe one after the other. A probe goes one stage further than the one before
it, and what it takes longer is that stage:

    GET /v2/health/live                  the sockets, the client, the listener
    a request for an output that is not  + the body, its JSON, its tensors, the error
    a request                            + all the rest

The rest is divided by the server's own counters. Writes ``at_rest.json`` and ``at_rest.md``.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Annotated, Any

import httpx
import numpy as np
import orjson
import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from benchmarks import systems
from benchmarks.answers import open_session
from benchmarks.failure import BenchmarkError
from benchmarks.machine import Machine
from benchmarks.publishing import measured_on, now, publish_report, table
from benchmarks.server import DIRECT, PROXY, ROOT, SERVE_APP_RUN, Server
from benchmarks.session import ending_in_order, measuring, steps
from benchmarks.wires import Json
from serve_app.composition.model import find_files
from serve_app.config.file import load_file

_CONFIG = ROOT / "configs" / "bench.yaml"
_MODEL = "tiny"
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_FEATURES = 64
_SUMS = ("serve_app_request_seconds", "serve_app_queue_seconds", "serve_app_execution_seconds")


@dataclass(frozen=True, slots=True)
class Stages:
    """Medians over the repetitions, microseconds.

    Attributes:
        session: `session.run` of one row, in a process of its own kind.
        alive: A request that the router answers with nothing.
        refused: An infer request that is refused once it is decoded.
        direct: An infer request by the router's own port.
        proxy: The same by Serve's port.
        submitted: From the decoded request to its outputs, in the router; a mean.
        queue: Of that, until the bundle leaves; a mean.
        execution: Of that, the model's run as the replica sees it; a mean.
    """

    session: float
    alive: float
    refused: float
    direct: float
    proxy: float
    submitted: float
    queue: float
    execution: float


class _Client:
    """One connection that sends prepared requests: next to nothing of what is measured is the client's own.

    Args:
        url: Of the server.
    """

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._host = f"{host}:{port}"
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def median_s(self, method: str, path: str, body: bytes, status: int, seconds: float) -> float:
        """Send a request again and again for so long.

        Raises:
            BenchmarkError: An answer is of another status, or does not come in one piece.
        """
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        request = f"{head}\r\n".encode() + body
        times: list[float] = []
        until = time.perf_counter() + seconds
        while not times or time.perf_counter() < until:
            started = time.perf_counter()
            self._socket.sendall(request)
            answer = self._answer()
            times.append(time.perf_counter() - started)
            if not answer.startswith(b"HTTP/1.1 %d " % status):
                raise BenchmarkError(f"{method} {path}: expected {status}, got {answer[:200]!r}")
        return median(times)

    def _answer(self) -> bytes:
        """One whole answer. Servers may send head and body apart."""
        answer = self._socket.recv(65536)
        head, end, body = answer.partition(b"\r\n\r\n")
        found = _LENGTH.search(head)
        missing = int(found[1]) - len(body) if end and found is not None else 0
        while missing > 0 and (more := self._socket.recv(65536)):
            missing -= len(more)
        return answer

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


def _bodies() -> tuple[bytes, bytes]:
    """A request, and one for an output that the model does not have."""
    row = np.random.default_rng(1).standard_normal((1, _FEATURES), np.float32)
    body = Json().request({"x": row}).body
    return body, orjson.dumps({**orjson.loads(body), "outputs": [{"name": "nothing"}]})


def _counters(url: str) -> dict[str, float]:
    """Sums and counts of the server's own histograms."""
    found: dict[str, float] = {}
    page = httpx.get(f"{url}/metrics", timeout=30.0).text
    for family in text_string_to_metric_families(page):
        if family.name in _SUMS:
            for sample in family.samples:
                if not sample.name.endswith("_bucket"):
                    found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def _round(urls: Mapping[str, str], bodies: tuple[bytes, bytes], seconds: float) -> dict[str, float]:
    """Every probe once; seconds."""
    infer = f"/v2/models/{_MODEL}/infer"
    found: dict[str, float] = {}
    direct = _Client(urls[DIRECT])
    try:
        found["alive"] = direct.median_s("GET", "/v2/health/live", b"", 200, seconds)
        found["refused"] = direct.median_s("POST", infer, bodies[1], 400, seconds)
        before = _counters(urls[DIRECT])
        found["direct"] = direct.median_s("POST", infer, bodies[0], 200, seconds)
        after = _counters(urls[DIRECT])
    finally:
        direct.close()
    proxy = _Client(urls[PROXY])  # only now: HAProxy ends idle connections soon
    try:
        found["proxy"] = proxy.median_s("POST", infer, bodies[0], 200, seconds)
    finally:
        proxy.close()
    for stage, name in zip(("submitted", "queue", "execution"), _SUMS, strict=True):
        count = after[f"{name}_count"] - before.get(f"{name}_count", 0.0)
        found[stage] = (after[f"{name}_sum"] - before.get(f"{name}_sum", 0.0)) / count
    return found


def _session_s(session: Any, seconds: float) -> float:
    """Median of one row through the session, seconds."""
    row = np.ones((1, _FEATURES), np.float32)
    times: list[float] = []
    until = time.perf_counter() + seconds
    while not times or time.perf_counter() < until:
        started = time.perf_counter()
        session.run(None, {"x": row})
        times.append(time.perf_counter() - started)
    return median(times)


def _wait(server: Server, body: bytes) -> None:
    for url in server.urls.values():
        server.wait_until(partial(_answers, url, body))


def _answers(url: str, body: bytes) -> bool:
    try:
        return httpx.post(f"{url}/v2/models/{_MODEL}/infer", content=body, timeout=10.0).status_code == 200
    except httpx.TransportError:
        return False


def render(stages: Stages, machine: Machine, date: str, repetitions: int, seconds: float) -> str:
    """The report as Markdown."""
    rest = stages.direct - stages.refused
    way = stages.submitted - stages.queue - stages.execution
    rows = [
        ("sockets, client, listener", stages.alive),
        ("body, JSON, tensors, checks, and an error as the answer", stages.refused - stages.alive),
        ("admission and queue, until the bundle leaves", stages.queue),
        ("the link there and back, the replica's gate, its answer", way),
        ("the model's run, as the replica sees it", stages.execution),
        ("the answer's JSON and what is left, beyond the error's", rest - stages.submitted),
        ("**in all, by the router's own port**", stages.direct),
        ("in all, by Serve's port (HAProxy)", stages.proxy),
        ("`session.run` alone", stages.session),
        ("**added, by the router's own port**", stages.direct - stages.session),
    ]
    lines = [
        "# Latency at rest",
        "",
        f"Written by `make bench-at-rest`: one connection, one row of `{_MODEL}` as V2 JSON, one request at a time.",
        f"Medians of {repetitions} repetitions of {seconds:g} s per probe, in turns. What happens between submission",
        "in the router and the outputs is from the server's own counters: means. Most of what is added is the link's",
        "wake-ups of another process on shared cores.",
        "",
        table(("stage", "microseconds"), [(name, f"{value:,.0f}") for name, value in rows]),
        "",
        measured_on(date, machine),
        "",
    ]
    return "\n".join(lines)


def main(
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of each probe.")] = 2.0,
    repetitions: Annotated[int, typer.Option(min=1, help="Rounds of all probes.")] = 7,
    publish: Annotated[bool, typer.Option(help="Write the report into docs/benchmarks too.")] = True,
) -> None:
    """Measure a request at rest, stage by stage."""
    console = Console()
    date = now()
    with ending_in_order(console), measuring(console) as machine:
        model = next(each for each in load_file(_CONFIG).args.models if each.name == _MODEL)
        session = open_session(find_files(model)[""].model_file)
        bodies = _bodies()
        rounds: list[dict[str, float]] = []
        with (
            Server("serve_app", systems.ours(_CONFIG, _MODEL), SERVE_APP_RUN) as server,
            steps(console) as progress,
        ):
            task = progress.add_task("starting", total=repetitions)
            _wait(server, bodies[0])
            progress.update(task, description="measuring")
            _round(server.urls, bodies, seconds)  # warms everything up
            for _ in range(repetitions):
                rounds.append({"session": _session_s(session, seconds / 2), **_round(server.urls, bodies, seconds)})
                progress.advance(task)
    stages = Stages(**{name: median(each[name] for each in rounds) * 1e6 for name in rounds[0]})
    figures = {"date": date, "machine": machine, "microseconds": stages, "rounds": rounds}
    text = render(stages, machine, date, repetitions, seconds)
    publish_report(console, "at_rest", figures, text, publish=publish)


if __name__ == "__main__":
    typer.run(main)
