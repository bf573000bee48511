"""How long many small models take from the command to an answer of each, and where the time goes.

``python -m benchmarks.start --models 30`` generates as many small models with a few lines of configuration each, starts
the server as a user would, and asks every model until it has answered a real request.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import httpx
import numpy as np
import onnx
import typer
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

from benchmarks.failure import BenchmarkError
from benchmarks.machine import Machine
from benchmarks.publishing import measured_on, now, publish_report, table
from benchmarks.server import SERVE_APP_RUN, Server, demo_document
from benchmarks.session import ending_in_order, measuring

_WITHIN_S = 600.0
_ASK_EVERY_S = 0.5
_INPUTS, _HIDDEN, _OUTPUTS = 16, 32, 4
_ROLES = ("replicas", "router", "Serve's controller and proxy", "fork server", "Ray's own processes")


@dataclass(frozen=True, slots=True)
class ManyStart:
    """One start.

    Attributes:
        way: How workers were started.
        first_s: Until the first model answered, seconds.
        all_s: Until every model had answered, seconds.
        cpu_s: CPU time until then by role, seconds.
        memory: Memory then by role, bytes.
    """

    way: str
    first_s: float
    all_s: float
    cpu_s: dict[str, float]
    memory: dict[str, int]


def make_models(folder: Path, count: int) -> list[dict[str, Any]]:
    """Write small models, and give their part of a configuration."""
    numbers = np.random.default_rng(7)
    models = []
    for number in range(count):
        name = f"small-{number:02}"
        constants = {
            "w1": numbers.normal(size=(_INPUTS, _HIDDEN)).astype(np.float32),
            "w2": numbers.normal(size=(_HIDDEN, _OUTPUTS)).astype(np.float32),
        }
        graph = helper.make_graph(
            [
                helper.make_node("MatMul", ["x", "w1"], ["hidden"]),
                helper.make_node("Relu", ["hidden"], ["active"]),
                helper.make_node("MatMul", ["active", "w2"], ["y"]),
            ],
            name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", _INPUTS])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", _OUTPUTS])],
            [numpy_helper.from_array(value, key) for key, value in constants.items()],
        )
        file = folder / name / "1" / "model.onnx"
        file.parent.mkdir(parents=True)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
        models.append({"name": name, "task": "tensors", "path": str(folder / name)})
    return models


def measure(models: list[dict[str, Any]], *, fork: bool) -> ManyStart:
    """Start a server of these models once.

    Raises:
        BenchmarkError: It did not start, or some model does not answer.
    """
    document = demo_document(models=models)
    command = SERVE_APP_RUN if fork else (*SERVE_APP_RUN, "--no-fork")
    with _RoleServer("start", document, command) as server:
        first, last = asyncio.run(_answers(server, [model["name"] for model in models]))
        return ManyStart("forked" if fork else "Ray's own", first, last, server.cpu_s(), server.memory())


class _RoleServer(Server):
    @staticmethod
    def role(command: list[str]) -> str:
        """What a process is there for, the replicas of all models together."""
        line = " ".join(command)
        if "serve_app.cli.fork_server" in line:
            return "fork server"
        found = Server.role(command)
        if found == "replica of router":
            return "router"
        return "replicas" if found.startswith("replica of ") else found


async def _answers(server: Server, names: list[str]) -> tuple[float, float]:
    body = {"inputs": [{"name": "x", "shape": [1, _INPUTS], "datatype": "FP32", "data": [0.5] * _INPUTS}]}
    async with httpx.AsyncClient(base_url=server.url, timeout=30.0) as client:

        async def first_answer(name: str) -> float:
            while not await _answered(client, name, body):
                server.check_alive()
                if time.monotonic() - server.started_at > _WITHIN_S:
                    raise BenchmarkError(f"{name} has not answered within {_WITHIN_S:.0f} s")
                await asyncio.sleep(_ASK_EVERY_S)
            return time.monotonic() - server.started_at

        seconds = await asyncio.gather(*map(first_answer, names))
    return min(seconds), max(seconds)


async def _answered(client: httpx.AsyncClient, name: str, body: dict[str, Any]) -> bool:
    try:
        answer = await client.post(f"/v2/models/{name}/infer", json=body)
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and answer.json()["outputs"][0]["shape"] == [1, _OUTPUTS]


def report(models: int, starts: list[ManyStart], machine: Machine, date: str) -> str:
    """The report as Markdown."""
    ways = list(dict.fromkeys(start.way for start in starts))
    rows = []
    for way in ways:
        of_way = [start for start in starts if start.way == way]
        rows.append(
            [
                way,
                ", ".join(f"{start.all_s:.0f}" for start in of_way),
                f"**{median(start.all_s for start in of_way):.0f}**",
                *(f"{median(start.cpu_s.get(role, 0.0) for start in of_way):.0f}" for role in _ROLES),
                f"{median(sum(start.memory.values()) for start in of_way) / 2**20:.0f}",
            ]
        )
    header = ["workers", "each start, s", "median, s", *(f"CPU: {role}, s" for role in _ROLES), "memory, MiB"]
    return f"""# Starting {models} small models

Seconds from `serve-app run` to an answer of every one of {models} models ({_INPUTS} x {_HIDDEN} x {_OUTPUTS}, three
lines of configuration each), CPU time until then and memory then. `make bench-start` makes this page. "forked" is how
`serve-app run` starts workers ([operations](../operations.md#many-models)), "Ray's own" is `--no-fork`.

{table(header, rows)}

{measured_on(date, machine)}
"""


def main(
    models: Annotated[int, typer.Option(min=1, max=99, help="How many.")] = 30,
    repetitions: Annotated[int, typer.Option(min=1, help="Starts of each way, in turns.")] = 2,
    before: Annotated[bool, typer.Option(help="Also start without the fork server.")] = True,
    publish: Annotated[bool, typer.Option(help="Write docs/benchmarks/start.md too.")] = False,
) -> None:
    """Measure the start of many models, and print it."""
    console = Console()
    date = now()
    starts = []
    with ending_in_order(console), measuring(console) as machine, tempfile.TemporaryDirectory() as folder:
        made = make_models(Path(folder), models)
        for _ in range(repetitions):
            for fork in (True, False) if before else (True,):
                starts.append(measure(made, fork=fork))
                console.print(starts[-1], highlight=False)
    figures = {"date": date, "models": models, "machine": machine, "starts": starts}
    publish_report(console, "start", figures, report(models, starts, machine, date), publish=publish)


if __name__ == "__main__":
    typer.run(main)
