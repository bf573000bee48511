"""A pool on the real server: ``python -m benchmarks.pool_server``.

A thousand models of 8 MB, and a host with memory for an eighth of them. Measured is what the simulator's experiment
with pools aims at (`benchmarks.scheduling.pools`): answers in time, beside the simulator's under the same arrivals and
with the costs that were measured; class `high` with and without loads going on; and what the host's process holds.
Every answer is compared with the only right one. Writes ``pool_server.json``, ``pool_server.md`` and
``pool_server.svg``.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.calibration_server import Cores
from benchmarks.machine import Machine
from benchmarks.niceness import go_first
from benchmarks.open_loop_workload import Workload
from benchmarks.pool_members import write_members
from benchmarks.pool_server_counted import PoolServer
from benchmarks.pool_server_load import POOL, WARM_UP_S, beside_loads
from benchmarks.pool_server_measure import measure_costs, observe, observe_tails
from benchmarks.pool_server_predict import predict, scenario_of
from benchmarks.pool_server_report import Report, draw, render
from benchmarks.publishing import now, publish_report
from benchmarks.server import demo_document
from benchmarks.session import ending_in_order, measuring
from serve_app.composition import expand_models
from serve_app.config.args import AppArgs
from serve_app.config.files import CACHE_VARIABLE
from serve_app_simulator.workloads import generate

_PART = 0.12
_CONNECTIONS = 32
_COSTS_S = 5.0
_HIGH_PART, _OTHER_PART = 0.35, 0.1
"""Parts of the capacity that class `high` and the requests beside it ask for, with and without loads."""


def document_of(folder: Path, memory: int) -> dict[str, Any]:
    """A Serve file with one pool of all models in a folder.

    Args:
        folder: Where they are.
        memory: Of the host, for what is loaded, bytes.
    """
    defaults = {"resources": {"threads": 1}, "batching": {"max_rows": 16, "policy": "eager"}}
    pool = {"name": POOL, "path": f"{folder}/*", "memory": memory, "cpus": 0.1, "defaults": defaults}
    return demo_document(pools=[pool])


def measure(members: int, load: float, seconds: float, turns: int, machine: Machine, console: Console) -> Report:
    """Start a server and measure.

    Raises:
        BenchmarkError: The server or the generator failed, or a request to an idle server was answered wrongly.
        ConfigError: The configuration is not valid.
    """
    cores, began = Cores.choose(), time.monotonic()
    os.sched_setaffinity(0, {cores.rest})  # the host's core is for the host

    def say(what: str) -> None:
        console.print(f"{time.monotonic() - began:5.0f} s  {what}", highlight=False, soft_wrap=True)

    with tempfile.TemporaryDirectory(prefix="serve-app-") as folder:
        say(f"writing {members} models")
        nbytes = write_members(Path(folder) / "models", members)
        places = round(_PART * members)
        memory = places * nbytes
        document = document_of(Path(folder) / "models", memory)
        args = expand_models(AppArgs.model_validate(document["applications"][0]["args"]))
        say("starting the server")
        with PoolServer("pool-server", document, cores, {CACHE_VARIABLE: f"{folder}/cache"}) as server:
            server.wait_ready()
            start_s = time.monotonic() - server.started_at
            empty = server.host_memory()
            say(f"ready after {start_s:.0f} s; the empty host holds {empty / 2**20:.0f} MiB")
            costs = measure_costs(server, members, _CONNECTIONS, cores, _COSTS_S)
            rate = load * costs.capacity
            say(f"capacity {costs.capacity:.0f}/s; {costs.overheads}")
            asked = scenario_of(args, None, None, rate, seconds + WARM_UP_S, WARM_UP_S)
            arrivals = generate(asked, 1)
            observed = observe(server, Workload.of(arrivals), arrivals.model, cores, WARM_UP_S, empty)
            say(f"{observed.groups['all'].attainment:.1%} in time, {observed.counted.loads} loads")
            beside = beside_loads(members, places, _HIGH_PART * costs.capacity, _OTHER_PART * costs.capacity, turns)
            tails = observe_tails(server, beside, cores)
            say(f"p99 of high with loads / without: {tails.ratio:.2f}")
    scenario = scenario_of(args, costs, observed.counted, rate, seconds + WARM_UP_S, WARM_UP_S)
    predicted = predict(scenario, args.process_limits().network_s, arrivals)
    say(f"{predicted.groups['all'].attainment:.1%} in time simulated")
    return Report(
        now(),
        machine,
        members,
        nbytes,
        memory,
        load,
        rate,
        seconds,
        start_s,
        empty,
        costs,
        observed,
        predicted,
        tails,
        time.monotonic() - began,
    )


def main(
    members: Annotated[int, typer.Option(min=100, help="How many models.")] = 1000,
    load: Annotated[float, typer.Option(min=0.1, max=2.0, help="Of the measured capacity.")] = 0.65,
    seconds: Annotated[float, typer.Option(min=10, help="Length of the workload that is simulated as well.")] = 120.0,
    turns: Annotated[int, typer.Option(min=2, help="With loads, and without.")] = 25,
    publish: Annotated[bool, typer.Option(help="Write docs/benchmarks/pool_server.md too.")] = False,
) -> None:
    """Measure a pool on the real server, and compare it with the simulator."""
    console = Console()
    with ending_in_order(console), measuring(console) as machine:
        go_first()
        report = measure(members, load, seconds, turns, machine, console)
    text = render(report, "pool_server.svg")
    publish_report(console, "pool_server", report, text, partial(draw, report), publish=publish)


if __name__ == "__main__":
    typer.run(main)
