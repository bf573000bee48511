"""Further workloads: a long tail over fifty models, a trace; and how fast the simulator is."""

from __future__ import annotations

import csv
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.scheduling.conditions import GPU, MODEL, OVERHEADS, classes, one_model, rate_at, scenario
from benchmarks.scheduling.contenders import BASELINES, OURS, TRITON, Case, ours
from benchmarks.scheduling.experiment import Experiment, Finding, Table, as_values, percent, times
from benchmarks.scheduling.laboratory import Laboratory
from serve_app.scheduling.entry import Priority
from serve_app.scheduling.settings import ModelScheduling
from serve_app.simulation.plots import bars
from serve_app.simulation.results import Result
from serve_app.simulation.run import simulate
from serve_app.simulation.scenario import Device, Scenario, SimulatedModel, Stream
from serve_app.simulation.workloads import zipf

MODELS = 50
DEVICES = 4
MILLION = 1_000_000
_SLO_S = 0.2


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.csv"
        write_trace(trace, lab.seconds(30) + 1.0)
        cases = [
            Case(long_tail(lab), {OURS: ours()}, (TRITON, *BASELINES), tune_s=6.0),
            Case(_traced(lab, trace), {OURS: ours()}, (TRITON, *BASELINES)),
        ]
        measured = lab.run(cases)
    arrivals = int(lab.scale * MILLION)
    (wall_s, simulated), *_ = lab.call(a_million, [(arrivals,)], "a million arrivals")
    findings = []
    for name, each in zip((f"long tail, {MODELS} models on {DEVICES} devices", "trace"), measured, strict=True):
        ratio = each.ratio(OURS, TRITON, lambda result: result.weighted_goodput)
        findings.append(
            Finding(name, "(no aim) weighted goodput against tuned Triton policy", f"{times(ratio)} times", None)
        )
    findings.append(
        Finding(
            "the simulator",
            "a million arrivals on one server in under a minute",
            f"{simulated:,} arrivals in {wall_s:.0f} s",
            wall_s * MILLION / max(1, simulated) < 60.0,
        )
    )
    return Experiment(
        "variety",
        "A long tail of models, and a trace",
        f"{MODELS} models by Zipf's law on {DEVICES} shared devices, half a server's load on each, deadline "
        f"{1e3 * _SLO_S:g} ms; and a written-down afternoon with a rhythm, bursts, batches of several rows and three "
        "classes, read from a CSV file.",
        findings,
        [
            Table(
                ["workload", "system", "in time", "weighted, of what was offered", "wasted"],
                [
                    [
                        name,
                        system,
                        percent(each.over(system, lambda result: result.attainment), 2),
                        percent(each.over(system, _weighted), 2),
                        percent(each.over(system, lambda result: result.wasted), 2),
                    ]
                    for name, each in zip(("long tail", "trace"), measured, strict=True)
                    for system in each.results
                ],
            )
        ],
        {"_tail": bars(measured[0].as_case()), "_trace": bars(measured[1].as_case())},
        {
            name: {system: as_values(each.over(system, _weighted)) for system in each.results}
            for name, each in zip(("long tail", "trace"), measured, strict=True)
        },
    )


def _weighted(result: Result) -> float:
    return result.weighted_goodput / result.offered_weight


def long_tail(lab: Laboratory) -> Scenario:
    """Fifty models; each device carries every fourth of them."""
    parts = zipf(MODELS, 1.0)
    rate = 600.0
    models = tuple(
        SimulatedModel(ModelScheduling(f"model-{place}", 32, _SLO_S), GPU, device=f"gpu-{place % DEVICES}")
        for place in range(MODELS)
    )
    assert len(parts) == len(models)
    return Scenario(
        "long tail",
        models,
        (
            Stream(
                "long_tail",
                rate=rate,
                timeout_s=_SLO_S,
                share={Priority.HIGH: 0.2, Priority.NORMAL: 0.5, Priority.LOW: 0.3},
            ),
        ),
        lab.seconds(20) + 1.0,
        classes(),
        tuple(Device(f"gpu-{number}") for number in range(DEVICES)),
        overheads=OVERHEADS,
        warm_up_s=1.0,
    )


def write_trace(path: Path, seconds: float) -> None:
    """A trace that is always the same: a slow rhythm with bursts on top, one to eight rows, three classes."""
    rng = np.random.default_rng(20)
    rate = rate_at(0.75, one_model(0.12)) / 1.6
    steps = np.arange(0.0, seconds, 0.05)
    level = 1.0 + 0.4 * np.sin(2 * np.pi * steps / max(10.0, seconds / 2))
    level *= np.where(rng.random(len(steps)) < 0.05, 4.0, 0.85)
    counts = rng.poisson(rate * level * 0.05)
    arrivals = np.sort(np.repeat(steps, counts) + rng.uniform(0.0, 0.05, int(counts.sum())))
    labels = rng.choice(["high", "normal", "low"], len(arrivals), p=[0.2, 0.5, 0.3])
    rows = rng.choice([1, 2, 4, 8], len(arrivals), p=[0.8, 0.1, 0.07, 0.03])
    deadlines = {"high": 0.08, "normal": 0.15, "low": 0.4}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["arrival", "model", "class", "rows", "deadline"])
        writer.writerows(
            [f"{at:.6f}", MODEL, label, count, deadlines[label]]
            for at, label, count in zip(arrivals.tolist(), labels.tolist(), rows.tolist(), strict=True)
        )


def _traced(lab: Laboratory, path: Path) -> Scenario:
    return scenario("trace", one_model(0.15), [Stream("trace", path=str(path))], lab.seconds(30))


def a_million(arrivals: int) -> tuple[float, int]:
    """How long so many arrivals on one server take, and how many there were."""
    model = one_model(0.06)
    rate = rate_at(0.8, model)
    stream = Stream("poisson", MODEL, rate=rate, timeout_s=0.06)
    result = simulate(
        scenario("a million", model, [stream], arrivals / rate, warm_up_s=0.0), ours().make_system, 1, step_s=60.0
    )
    return result.wall_s, result.total.offered
