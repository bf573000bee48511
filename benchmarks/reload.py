"""Loading a model's files anew under load: failed and wrong answers, latency, and memory over a thousand swaps.

``python -m benchmarks.reload`` serves one model whose answers tell which of its files answered, asks it by 64
connections without a pause, and replaces and loads its file over and over. Swaps and pauses of the same length take
turns, so that latencies with and without a swap are of the same minutes.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import numpy as np
import onnx
import typer
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

from benchmarks.failure import BenchmarkError
from benchmarks.machine import Machine, describe
from benchmarks.publishing import folders, machine_table, table, write_report
from benchmarks.server import DIRECT, ROOT, SERVE_APP_RUN, Server, is_ready
from benchmarks.session import ending_in_order, quiet_machine
from serve_app.config.files import CACHE_VARIABLE
from serve_app.config.loader import load_yaml

_DEMO = ROOT / "configs" / "demo.yaml"
_MODEL = "constant"
_SIZE = 1024
_START_WITHIN_S = 400.0
_SETTLED = 100
"""Swaps before memory is looked at: the first ones fill caches of the C library and of ONNX Runtime."""


@dataclass(slots=True)
class Load:
    """What the connections have seen.

    Attributes:
        during: Latencies of requests that a swap was under way during, seconds.
        between: Those of all others.
        failed: Requests without an answer, or with an error.
        wrong: Answers of files that were served no more, or not yet.
    """

    during: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    failed: int = 0
    wrong: int = 0


@dataclass(frozen=True, slots=True)
class Swaps:
    """What was measured.

    Attributes:
        count: How many swaps.
        swap_s: How long each took, seconds.
        model_bytes: Size of the model's file.
        memory: Memory of its replica after each, bytes.
        load: What the connections have seen.
    """

    count: int
    swap_s: list[float]
    model_bytes: int
    memory: list[int]
    load: Load

    @property
    def slope(self) -> float:
        """Growth of memory per 100 swaps, in sizes of the model, once it has settled."""
        settled = self.memory[min(_SETTLED, len(self.memory) // 2) :]
        return float(np.polyfit(np.arange(len(settled)), settled, 1)[0]) * 100 / self.model_bytes


def write_model(path: Path, constant: int) -> None:
    """A model with a matrix of weights that answers with its constant, put in its place by `rename`."""
    weights = np.random.default_rng(constant).normal(size=(_SIZE, _SIZE)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "weights"], ["product"]),
            helper.make_node("Mul", ["product", "zero"], ["nothing"]),
            helper.make_node("ReduceMax", ["nothing"], ["none"], axes=[1], keepdims=1),
            helper.make_node("Add", ["none", "constant"], ["y"]),
        ],
        _MODEL,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", _SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])],
        [
            numpy_helper.from_array(weights, "weights"),
            numpy_helper.from_array(np.zeros(1, np.float32), "zero"),
            numpy_helper.from_array(np.full(1, constant, np.float32), "constant"),
        ],
    )
    beside = path.with_name("next.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), beside)
    beside.rename(path)


class _Run:
    """One run of swaps under load."""

    def __init__(self, server: Server, file: Path, connections: int) -> None:
        self._server = server
        self._url = server.urls[DIRECT]
        self._file = file
        self._connections = connections
        self._oldest = self._newest = 1
        self._swaps = 0  # how often one has begun or ended
        self._swapping = False
        self._load = Load()
        self._done = False

    async def run(self, count: int) -> Swaps:
        """Swap so often, with a pause after each."""
        swap_s: list[float] = []
        memory: list[int] = []
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(60.0)) as session:
            clients = [asyncio.ensure_future(self._ask(session)) for _ in range(self._connections)]
            try:
                for number in range(count):
                    await asyncio.to_thread(write_model, self._file, self._newest + 1)
                    swap_s.append(await self._swap(session))
                    await asyncio.sleep(swap_s[-1])
                    memory.append(self._server.memory()[f"replica of {_MODEL}"])
                    if number % 50 == 0:
                        self._server.check_alive()
            finally:
                self._done = True
                await asyncio.gather(*clients)
        return Swaps(count, swap_s, self._file.stat().st_size, memory, self._load)

    async def _swap(self, session: aiohttp.ClientSession) -> float:
        began = time.monotonic()
        self._swaps += 1
        self._swapping = True
        self._newest += 1  # which may answer from now on
        async with session.post(f"{self._url}/v2/repository/models/{_MODEL}/load") as answer:
            if answer.status != 200:
                raise BenchmarkError(f"a load failed: {await answer.text()}")
        self._oldest = self._newest  # nothing else may answer what is asked from now on
        self._swaps += 1
        self._swapping = False
        return time.monotonic() - began

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        tensor = {"name": "x", "shape": [1, _SIZE], "datatype": "FP32", "parameters": {"binary_data_size": 4 * _SIZE}}
        head = json.dumps({"inputs": [tensor]}).encode()
        body = head + np.ones(_SIZE, np.float32).tobytes()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        while not self._done:
            oldest, swaps, swapping = self._oldest, self._swaps, self._swapping
            began = time.monotonic()
            value: Any = None
            try:
                async with session.post(f"{self._url}/v2/models/{_MODEL}/infer", data=body, headers=headers) as answer:
                    content = await answer.json()
                    if answer.status == 200:
                        value = content["outputs"][0]["data"][0]
            except (aiohttp.ClientError, TimeoutError):
                pass
            latency_s = time.monotonic() - began
            if value is None:
                self._load.failed += 1
            elif not oldest <= value <= self._newest:
                self._load.wrong += 1
            touched = swapping or self._swaps != swaps
            (self._load.during if touched else self._load.between).append(latency_s)


def measure(swaps: int, connections: int, say: Any) -> Swaps:
    """Start a server and measure.

    Raises:
        BenchmarkError: It did not start, or a load failed.
    """
    with tempfile.TemporaryDirectory(prefix="serve-app-") as folder:
        file = Path(folder) / _MODEL / "model.onnx"
        write_model(file, 1)
        document = load_yaml(_DEMO.read_text(encoding="utf-8"))
        args = document["applications"][0]["args"]
        args.pop("pipelines", None)
        args["models"] = [{"name": _MODEL, "path": str(file.parent), "batching": {"verify": 0}}]
        args["router"]["access"] = {"open_administration": True}
        with Server("reload", document, SERVE_APP_RUN, ROOT, {CACHE_VARIABLE: f"{folder}/cache"}) as server:
            server.wait_until(partial(is_ready, server.urls[DIRECT]), _START_WITHIN_S)
            say("swapping")
            return asyncio.run(_Run(server, file, connections).run(swaps))


def report(found: Swaps, connections: int, machine: Machine) -> str:
    """The report as Markdown."""
    load = found.load
    during, between = (np.percentile(each, [50, 99]) * 1000 for each in (load.during, load.between))
    rows = [
        ["failed answers", "0", f"{load.failed} of {len(load.during) + len(load.between)}"],
        ["wrong answers", "0", f"{load.wrong}"],
        ["p99 during swaps / without", "at most 2", f"{during[1] / between[1]:.2f}"],
        ["p50 / p99 during swaps, ms", "", f"{during[0]:.1f} / {during[1]:.1f} ({len(load.during)} requests)"],
        ["p50 / p99 without, ms", "", f"{between[0]:.1f} / {between[1]:.1f} ({len(load.between)} requests)"],
        ["memory per 100 swaps, in sizes of the model", "at most 0.1", f"{found.slope:.3f}"],
        [
            "memory of the replica, first / last, MiB",
            "",
            f"{found.memory[0] / 2**20:.0f} / {found.memory[-1] / 2**20:.0f}",
        ],
        ["a swap, p50 / longest, s", "", f"{np.median(found.swap_s):.2f} / {max(found.swap_s):.2f}"],
    ]
    return f"""# Loading a model under load

{found.count} swaps of a model of {found.model_bytes / 2**20:.1f} MiB, under {connections} connections that ask without
a pause. Swaps and pauses of the same length take turns. `make bench-reload` makes this page;
[what a load does](../reload.md).

{table(["", "aim", "measured"], rows)}

{machine_table(datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), machine)}
"""


def main(
    swaps: Annotated[int, typer.Option(min=2, help="How many.")] = 1000,
    connections: Annotated[int, typer.Option(min=1, help="That ask meanwhile.")] = 64,
    publish: Annotated[bool, typer.Option(help="Write docs/benchmarks/reload.md too.")] = False,
) -> None:
    """Measure loads under load, and print what was found."""
    console = Console()
    machine = describe({})
    with ending_in_order(console):
        quiet_machine(console)
        found = measure(swaps, connections, lambda what: console.print(what, highlight=False))
    text = report(found, connections, machine)
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    figures = {
        "swaps": found.count,
        "connections": connections,
        "model_bytes": found.model_bytes,
        "swap_s": found.swap_s,
        "memory": found.memory,
        "slope": found.slope,
        "failed": found.load.failed,
        "wrong": found.load.wrong,
        "machine": machine,
    }
    for target in folders(publish=publish):
        write_report(target, "reload", figures, text)


if __name__ == "__main__":
    typer.run(main)
