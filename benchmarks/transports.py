"""Four ways for a bundle to get from a router to a replica on its node: ``python -m benchmarks.transports``.

Both ends are real Serve replicas in processes of their own; the replica's side answers each entry with its first ten
values, so that nothing but the way is measured. One bundle is under way at a time. Writes ``transports.json``,
``transports.md`` and ``transports.svg``.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import ray
import typer
from matplotlib.figure import Figure
from ray import serve
from ray.serve.handle import DeploymentHandle
from rich.console import Console
from rich.progress import Progress

from benchmarks.machine import Machine
from benchmarks.publishing import measured_on, now, picture_style, publish_report, save_svg, table
from benchmarks.server import ROOT
from benchmarks.session import ending_in_order, measuring, steps
from serve_app.payloads import Bundle, BundleResult, Success, WireEntry
from serve_app.transport.arena import Arena
from serve_app.transport.link_server import LinkServer
from serve_app.transport.replica_link import connect
from serve_app.transport.ties import TieTable

_WAYS = {
    "value": "Serve, by value (gRPC)",
    "reference": "Serve, by reference (object store)",
    "link": "link, all in the socket",
    "arena": "link, copied into shared memory",
    "placed": "link, in shared memory already",
}
_CASES: tuple[tuple[int, tuple[int, ...]], ...] = (
    (1, (1, 64)),
    (20, (1, 64)),
    (32, (1, 2048)),
    (1, (1, 3, 224, 224)),
    (8, (1, 3, 224, 224)),
)
_ARENA = 256 * 1024**2
_GRPC_LIMIT = str(256 * 1024**2)
_LEAST_CALLS = 20


@dataclass(frozen=True, slots=True)
class Measured:
    """One way with one kind of bundle; medians over the repetitions.

    Attributes:
        way: Key of the way.
        entries: Entries per bundle.
        shape: Of each entry's tensor, float32.
        p50_ms: Median time from sending a bundle to having its result, milliseconds.
        router_cpu_us: CPU time that a bundle costs the sender's process, microseconds.
        replica_cpu_us: The same in the receiver's process.
    """

    way: str
    entries: int
    shape: tuple[int, ...]
    p50_ms: float
    router_cpu_us: float
    replica_cpu_us: float


class Replica:
    """The receiver."""

    def __init__(self) -> None:
        self._links = LinkServer("echo", self.run)

    async def run(self, bundle: Bundle) -> BundleResult:
        """Answer with the first ten values of every entry."""
        results = []
        for entry in bundle.entries:
            assert isinstance(entry.payload, dict)
            x = entry.payload["x"]
            results.append(Success({"y": x.reshape(len(x), -1)[:, :10].copy()}))
        return BundleResult(list(results), [], 0.0, 0.0, 0.0)

    def address(self) -> str:
        """Where links begin."""
        return self._links.address

    def cpu_s(self) -> float:
        """CPU time of this process, seconds."""
        return time.process_time()


class Sender:
    """The router's side."""

    def __init__(self, replica: DeploymentHandle[Any]) -> None:
        self._replica = replica
        self._arena = Arena(_ARENA)

    async def measure(self, way: str, entries: int, shape: tuple[int, ...], seconds: float) -> dict[str, float]:
        """Send bundles one after the other for so long."""
        arrays = [np.full(shape, value, np.float32) for value in range(entries)]
        if way == "placed":
            arrays = [self._placed(array) for array in arrays]
        bundle = Bundle([WireEntry(2, 60.0, len(array), "", {"x": array}) for array in arrays], "sender")
        send, close = await self._way(way)
        try:
            for _ in range(_LEAST_CALLS):
                result = await send(bundle)
            assert [answer.value["y"][0, 0] for answer in result.results] == list(range(entries))
            replica_before = await self._replica.cpu_s.remote()
            own_before = time.process_time()
            times: list[float] = []
            until = time.perf_counter() + seconds
            while len(times) < _LEAST_CALLS or time.perf_counter() < until:
                started = time.perf_counter()
                await send(bundle)
                times.append(time.perf_counter() - started)
            own = time.process_time() - own_before
            replica = await self._replica.cpu_s.remote() - replica_before
        finally:
            close()
        return {
            "p50_ms": median(times) * 1e3,
            "router_cpu_us": own / len(times) * 1e6,
            "replica_cpu_us": replica / len(times) * 1e6,
        }

    async def _way(self, way: str) -> tuple[Callable[[Bundle], Awaitable[Any]], Callable[[], None]]:
        if way in {"value", "reference"}:
            by_reference = way == "reference"
            formats = {} if by_reference else {"request_serialization": "pickle", "response_serialization": "pickle"}
            handle = self._replica.options(method_name="run", _by_reference=by_reference, **formats)

            async def send(bundle: Bundle) -> Any:
                return await handle.remote(bundle)

            return send, lambda: None
        arena = None if way == "link" else self._arena
        link = await connect(await self._replica.address.remote(), "echo", TieTable(), arena, lambda: None)

        async def ask(bundle: Bundle) -> Any:
            came: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            link.send(bundle, came.set_result)
            return await came

        return ask, link.close

    def _placed(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        block = self._arena.allocate(array.nbytes)
        assert block is not None
        placed: np.ndarray[Any, Any] = block.view(array.dtype).reshape(array.shape)
        placed[...] = array
        return placed


def _measure(sender: DeploymentHandle[Any], seconds: float, repetitions: int, progress: Progress) -> list[Measured]:
    turns = [
        (way, *case)
        for repetition in range(repetitions)
        for case in _CASES
        for way in (list(_WAYS) if repetition % 2 == 0 else list(_WAYS)[::-1])
    ]
    found: dict[tuple[str, int, tuple[int, ...]], list[dict[str, float]]] = {}
    task = progress.add_task("measuring", total=len(turns))
    for turn in turns:
        progress.update(task, description=f"{_WAYS[turn[0]]}, {turn[1]} x {turn[2]}")
        found.setdefault(turn, []).append(sender.measure.remote(*turn, seconds).result())
        progress.advance(task)
    return [
        Measured(
            way,
            entries,
            shape,
            p50_ms=median(run["p50_ms"] for run in runs),
            router_cpu_us=median(run["router_cpu_us"] for run in runs),
            replica_cpu_us=median(run["replica_cpu_us"] for run in runs),
        )
        for (way, entries, shape), runs in found.items()
    ]


def render(measured: Sequence[Measured], machine: Machine, date: str, seconds: float, repetitions: int) -> str:
    """The report as Markdown."""
    rows = []
    for entries, shape in _CASES:
        cells = []
        for way in _WAYS:
            each = next(m for m in measured if (m.way, m.entries, m.shape) == (way, entries, shape))
            cells.append(f"{each.p50_ms:.3f} ({each.router_cpu_us:,.0f}+{each.replica_cpu_us:,.0f})")
        size = entries * math.prod(shape) * 4
        rows.append((f"{entries} x {'x'.join(map(str, shape))} ({size / 1024:,.1f} KiB)", *cells))
    lines = [
        "# From router to replica",
        "",
        "Written by `make bench-transports`. One bundle at a time: the median of its round trip, ms, and in brackets",
        "the CPU time of the router's and the replica's process, us. Medians of",
        f"{repetitions} repetitions of {seconds:g} s, in turns, on shared cores.",
        "",
        table(("entries x shape", *_WAYS.values()), rows),
        "",
        "![Round trips](transports.svg)",
        "",
        "Links are several times as fast as Serve's handles for every size. Only large tensors gain by shared memory.",
        "",
        measured_on(date, machine),
        "",
    ]
    return "\n".join(lines)


def draw(measured: Sequence[Measured], path: Path) -> None:
    """Draw the round trips."""
    with picture_style():
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        axes = figure.subplots()
        width = 0.8 / len(_WAYS)
        for number, (way, title) in enumerate(_WAYS.items()):
            heights = [
                next(m.p50_ms for m in measured if (m.way, m.entries, m.shape) == (way, *case)) for case in _CASES
            ]
            axes.bar([place + number * width for place in range(len(_CASES))], heights, width, label=title)
        axes.set_xticks(
            [place + 0.4 - width / 2 for place in range(len(_CASES))],
            [f"{entries} x {'x'.join(map(str, shape))}" for entries, shape in _CASES],
        )
        axes.set_yscale("log")
        axes.set_ylabel("round trip, ms")
        axes.grid(visible=False, axis="x")
        axes.legend(fontsize=8)
        save_svg(figure, path)


def main(
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of each run.")] = 2.0,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs per way and kind of bundle.")] = 5,
    publish: Annotated[bool, typer.Option(help="Write the report into docs/benchmarks too.")] = True,
) -> None:
    """Measure the ways for bundles on this machine."""
    console = Console()
    os.environ.update(
        {
            "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
            "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
            "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": _GRPC_LIMIT,
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONPATH": str(ROOT),
        }
    )
    date = now()
    with ending_in_order(console), measuring(console) as machine:
        ray.init(address="local", include_dashboard=False, log_to_driver=False)
        try:
            options: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0.1}, "max_ongoing_requests": 100}
            replica = serve.deployment(Replica).options(**options).bind()
            application: serve.Application = serve.deployment(Sender).options(**options).bind(replica)
            sender = serve.run(application, route_prefix=None, logging_config={"enable_access_log": False})
            with steps(console) as progress:
                measured = _measure(sender, seconds, repetitions, progress)
        finally:
            serve.shutdown()
            ray.shutdown()
    figures = {"date": date, "machine": machine, "measured": measured}
    text = render(measured, machine, date, seconds, repetitions)
    publish_report(console, "transports", figures, text, partial(draw, measured), publish=publish)


if __name__ == "__main__":
    typer.run(main)
