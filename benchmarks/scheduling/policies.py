"""The batch policies over a grid of replicas, burstiness, deadline and load: ``auto`` must lose to none."""

from __future__ import annotations

from itertools import product

from benchmarks.scheduling.conditions import L1_S, MODEL, one_model, rate_at, scenario
from benchmarks.scheduling.contenders import OURS, Case, ours
from benchmarks.scheduling.drawing import lines
from benchmarks.scheduling.experiment import Experiment, Finding, Table, as_values, percent
from benchmarks.scheduling.laboratory import Laboratory, Measured
from serve_app.simulation.report import Estimate, estimate
from serve_app.simulation.results import Result
from serve_app.simulation.scenario import Stream

OTHERS = ("eager", "window", "deferred")
REPLICAS = (1, 4)
CVS = (1.0, 4.0)
SCALES = (2.5, 5.0, 12.0)
LOADS = (0.3, 0.8, 1.0, 1.3)
REQUESTS = 3000
_NOISE = 0.005
"""A loss counts when it is over half a point and its interval excludes it."""


def attainment(result: Result) -> float:
    """In time / offered."""
    return result.attainment


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    measured = lab.run([_case(lab, *cell) for cell in product(REPLICAS, CVS, SCALES, LOADS)])
    worst: dict[str, tuple[Estimate, Measured]] = {}
    real: list[tuple[Estimate, str, Measured]] = []
    for other in OTHERS:
        losses = [(each.gain(other, OURS, attainment), each) for each in measured]
        worst[other] = max(losses, key=lambda pair: pair[0].mean)
        real += [(loss, other, each) for loss, each in losses if loss.low > 0.0 and loss.mean > _NOISE]
    real.sort(key=lambda found: -found[0].mean)
    findings = [
        Finding(
            "policies",
            f"`auto` loses to `{other}` nowhere by more than the noise",
            f"largest loss {100 * loss.mean:.2f} ±{100 * loss.half_width:.2f} points ({_where(each)}); "
            f"{sum(name == other for _, name, _ in real)} of {len(measured)} cells beyond the noise",
            not any(name == other for _, name, _ in real),
        )
        for other, (loss, each) in worst.items()
    ]
    overall = {
        system: estimate(
            [
                sum(each.results[system][place].attainment for each in measured) / len(measured)
                for place in range(len(lab.seeds))
            ]
        )
        for system in (OURS, *OTHERS)
    }
    return Experiment(
        "policies",
        "Batch policies",
        f"{len(measured)} cells: {REPLICAS} replicas, gaps with CV {CVS}, deadlines of {SCALES} x L(1), loads {LOADS}; "
        f"{REQUESTS} requests each. A loss is beyond the noise when its 95% interval lies above 0 and it is over half "
        "a point.",
        findings,
        [
            Table(["policy", "in time, mean of all cells"], [[name, percent(v, 2)] for name, v in overall.items()]),
            Table(
                ["where `auto` loses beyond the noise", "to", "points lost", "auto", "the other"],
                [
                    [
                        _where(each),
                        other,
                        percent(loss, 2),
                        percent(each.over(OURS, attainment), 2),
                        percent(each.over(other, attainment), 2),
                    ]
                    for loss, other, each in real[:25]
                ],
            ),
        ],
        {
            "": lines(
                [
                    (
                        f"{replicas} x, CV {cv:g}, {SCALES[1]:g} x L(1)",
                        "% in time",
                        100.0,
                        {
                            system: [
                                (each.case.key[3], each.over(system, attainment))
                                for each in measured
                                if each.case.key[:3] == (replicas, cv, SCALES[1])
                            ]
                            for system in (OURS, *OTHERS)
                        },
                    )
                    for replicas, cv in ((1, 1.0), (1, 4.0), (4, 1.0), (4, 4.0))
                ],
                "load",
            )
        },
        {
            _where(each): {system: as_values(each.over(system, attainment)) for system in (OURS, *OTHERS)}
            for each in measured
        },
    )


def _case(lab: Laboratory, replicas: int, cv: float, scale: float, load: float) -> Case:
    slo_s = scale * L1_S
    model = one_model(slo_s, replicas=replicas)
    rate = rate_at(load, model)
    stream = Stream("gamma", MODEL, rate=rate, cv=cv, timeout_s=slo_s)
    seconds = lab.seconds(REQUESTS) / rate
    return Case(
        scenario("policies", model, [stream], seconds, warm_up_s=0.1 * seconds),
        {OURS: ours(), **{other: ours(policy=other) for other in OTHERS}},
        (),
        key=(replicas, cv, scale, load),
    )


def _where(each: Measured) -> str:
    replicas, cv, scale, load = each.case.key
    return f"{replicas} x, CV {cv:g}, {scale:g} x L(1), load {load:g}"
