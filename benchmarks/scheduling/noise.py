"""Execution times that scatter, and replicas that stall."""

from __future__ import annotations

from benchmarks.scheduling.conditions import MODEL, one_model, rate_at, scenario
from benchmarks.scheduling.contenders import OURS, TRITON, Case
from benchmarks.scheduling.drawing import bars
from benchmarks.scheduling.experiment import Experiment, Finding, Table, as_values, percent
from benchmarks.scheduling.laboratory import Laboratory
from serve_app.simulation.report import Estimate, estimate
from serve_app.simulation.scenario import Noise, Stream

KINDS: dict[str, Noise] = {
    "none": Noise(),
    "uniform ±20%": Noise("uniform", 0.2),
    "lognormal 20%": Noise("lognormal", 0.2),
    "1 s stalls": Noise(stall_every_s=30.0, stall_s=1.0),
    "±20% and 1 s stalls": Noise("uniform", 0.2, 30.0, 1.0),
}
"""Stalls come every 30 s on average, at each replica."""
REPLICAS = (1, 4)
LOADS = (0.6, 0.8)
SLO_S = 0.06


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    cases = []
    for replicas in REPLICAS:
        model = one_model(SLO_S, replicas=replicas)
        for load in LOADS:
            stream = Stream("poisson", MODEL, rate=rate_at(load, model), timeout_s=SLO_S)
            cases += [
                Case(
                    scenario(f"noise {kind}", model, [stream], lab.seconds(40 if replicas == 1 else 20), noise=noise),
                    key=(replicas, load, kind),
                )
                for kind, noise in KINDS.items()
            ]
    measured = {each.case.key: each for each in lab.run(cases)}
    lost: dict[tuple[int, float, str], dict[str, Estimate]] = {}
    for (replicas, load, kind), each in measured.items():
        quiet = measured[replicas, load, "none"]
        lost[replicas, load, kind] = {
            system: estimate(
                [
                    before.attainment - after.attainment
                    for before, after in zip(quiet.results[system], each.results[system], strict=True)
                ]
            )
            for system in (OURS, TRITON)
        }
    findings = []
    for kind in list(KINDS)[1:]:
        worst = max((lost[replicas, load, kind][OURS] for replicas in REPLICAS for load in LOADS), key=lambda e: e.mean)
        findings.append(
            Finding(
                f"latency noise: {kind}",
                "at most 5 points lost",
                f"at most {100 * worst.mean:.2f} ±{100 * worst.half_width:.2f} points",
                worst.mean <= 0.05,
            )
        )
    return Experiment(
        "noise",
        "Noise and stalls",
        "Poisson arrivals, deadline 60 ms, loads 0.6 and 0.8, with one replica and with four. During a stall a replica "
        "does nothing for one second; with one replica, everything that arrives then is lost to any scheduler.",
        findings,
        [
            Table(
                ["replicas", "load", "noise", "in time", "points lost", "triton, tuned", "points lost", "wasted"],
                [
                    [
                        str(replicas),
                        f"{load:g}",
                        kind,
                        percent(each.over(OURS, lambda result: result.attainment), 2),
                        percent(lost[replicas, load, kind][OURS], 2),
                        percent(each.over(TRITON, lambda result: result.attainment), 2),
                        percent(lost[replicas, load, kind][TRITON], 2),
                        percent(each.over(OURS, lambda result: result.wasted), 2),
                    ]
                    for (replicas, load, kind), each in measured.items()
                ],
            )
        ],
        {
            "": bars(
                "Points of attainment lost to noise, by replicas, load and kind",
                "points",
                {
                    f"{replicas} x, load {load:g}, {kind}": found[OURS]
                    for (replicas, load, kind), found in lost.items()
                    if kind != "none"
                },
                scale=100.0,
                colour="#1f6f8b",
            )
        },
        {
            f"{replicas} replicas, load {load:g}, {kind}": {
                "lost": as_values(found[OURS]),
                "triton_lost": as_values(found[TRITON]),
            }
            for (replicas, load, kind), found in lost.items()
        },
    )
