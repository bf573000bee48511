"""A real server whose replicas follow a step, beside its simulation."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import numpy as np

from benchmarks.open_loop import send_apart
from benchmarks.open_loop_workload import Workload
from benchmarks.scaling.sleeper.model import ALPHA_S, BETA_S
from benchmarks.scaling.workloads import Load
from benchmarks.scheduling.conditions import MAX_ROWS, classes
from benchmarks.server import DIRECT, OUT, SERVE_APP_RUN, Server, demo_document, is_ready
from serve_app.scheduling.settings import ModelScheduling
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Affine, Overheads, Scenario, SimulatedAutoscaling, SimulatedModel

MODEL = "sleeper"
MOST = 4
_LOOK_S = 0.5
_SETTLE_S = 5.0


@dataclass(frozen=True, slots=True)
class Followed:
    """How one run went.

    Attributes:
        in_time: Part of the requests.
        replica_s: Replicas' time, seconds.
        replicas: How many there were, every `_LOOK_S`.
        start_s: Mean time of a start; 0.0 if there was none.
        decided: Each number that was decided on, in turn.
    """

    in_time: float
    replica_s: float
    replicas: list[int]
    start_s: float
    decided: list[int]


def rate_of_one(timeout_s: float) -> float:
    """Requests per second of a replica whose batches take half of the deadline."""
    rows = max(1, min(MAX_ROWS, int((timeout_s / 2 - ALPHA_S) / BETA_S)))
    return rows / (ALPHA_S + BETA_S * rows)


def measure(load: Load, timeout_s: float, seed: int, kills: Mapping[str, float] = MappingProxyType({})) -> Followed:
    """Run it on a server of its own, with a generator in a process of its own.

    Args:
        kills: By deployment, seconds after which one of its processes is killed.
    """
    document = demo_document(
        models=[
            {
                "name": MODEL,
                "path": str(Path(__file__).parent / "sleeper"),
                "backend": "python",
                "batching": {"max_rows": MAX_ROWS, "slo_ms": 1000 * timeout_s},
                "resources": {"cpus": 0.25},
                "autoscaling": {"min_replicas": 1, "max_replicas": MOST},
            }
        ]
    )
    arrivals = load.arrivals(rate_of_one(timeout_s), timeout_s, seed, MODEL)
    workload = Workload.of(arrivals)
    with Server("scaling", document, SERVE_APP_RUN) as server:
        url = server.urls[DIRECT]
        server.wait_until(lambda: is_ready(url))
        with httpx.Client(timeout=10.0) as client:
            seen: list[tuple[float, int, Any]] = []
            done = threading.Event()

            def look() -> None:
                while not done.wait(_LOOK_S):
                    try:
                        status = client.get(f"{url}/status").json()
                    except httpx.TransportError:  # its router was killed
                        continue
                    seen.append((time.monotonic(), _replicas(status), status.get("scaling")))

            watcher = threading.Thread(target=look)
            watcher.start()
            timers = [threading.Timer(at_s, server.kill_one, (f"replica of {name}",)) for name, at_s in kills.items()]
            for timer in timers:
                timer.start()
            try:
                result = send_apart(url, workload, OUT / "scaling")
            finally:
                done.set()
                for timer in timers:
                    timer.cancel()
                watcher.join()
    began = seen[-1][0] - load.seconds - timeout_s
    counts = [count for at, count, _ in seen if at >= began]
    shown = [each for at, _, of in seen if of and at >= began for each in of.values()]
    return Followed(
        float(result.in_time(workload).mean()),
        sum(counts) * _LOOK_S,
        counts,
        shown[-1]["start_s"] if shown else 0.0,
        [number for number, _ in groupby(each["replicas"] for each in shown)],
    )


def _replicas(status: dict[str, Any]) -> int:
    found: list[str] = status["models"][MODEL]["replicas"]
    return len(found)


def simulated(load: Load, timeout_s: float, seed: int, start_s: float) -> Followed:
    """The same in the simulator, with the measured time of a start."""
    model = SimulatedModel(
        ModelScheduling(MODEL, MAX_ROWS, timeout_s),
        Affine(ALPHA_S, BETA_S),
        startup_s=start_s,
        autoscaling=SimulatedAutoscaling(1, MOST),
    )
    scenario = Scenario(
        load.name,
        (model,),
        (),
        load.seconds,
        classes(),
        overheads=Overheads(request_s=0.002, send_s=0.001, answer_s=0.003, between_s=0.001),
    )
    arrivals = load.arrivals(rate_of_one(timeout_s), timeout_s, seed, MODEL)
    result = simulate(scenario, ServeApp, seed, arrivals=arrivals, step_s=_LOOK_S)
    counts = result.series.replicas
    decided = [step.replicas for step in result.scaling.get(MODEL, ())]
    return Followed(result.total.attainment, float(np.sum(counts)) * _LOOK_S, list(counts), start_s, decided)
