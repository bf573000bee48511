"""Several routers that know nothing of one another, and the gate at the replica that orders their bundles."""

from __future__ import annotations

from benchmarks.scheduling.conditions import MODEL, one_model, rate_at, scenario
from benchmarks.scheduling.contenders import OURS, Case, ours
from benchmarks.scheduling.drawing import lines
from benchmarks.scheduling.experiment import Experiment, Finding, Table, as_values, percent
from benchmarks.scheduling.laboratory import Laboratory
from serve_app.scheduling.entry import Priority
from serve_app.simulation.report import Estimate, estimate
from serve_app.simulation.results import Result
from serve_app.simulation.scenario import Stream

ROUTERS = (1, 2, 4)
SETTINGS = ((1, 0.7), (1, 1.2), (4, 0.7), (4, 1.2))
"""Replicas and load."""
UNORDERED = "first come, first served gate"
SHARE = {Priority.HIGH: 0.2, Priority.NORMAL: 0.5, Priority.LOW: 0.3}
TIMEOUTS_S = {Priority.HIGH: 0.06, Priority.NORMAL: 0.12, Priority.LOW: 0.25}


def high(result: Result) -> float:
    """Class high in time."""
    return result.classes["high"].attainment


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    cases = []
    for replicas, load in SETTINGS:
        model = one_model(0.12, replicas=replicas)
        stream = Stream("poisson", MODEL, rate=rate_at(load, model), share=SHARE, timeouts_s=TIMEOUTS_S)
        cases += [
            Case(
                scenario("routers", model, [stream], lab.seconds(20 if replicas == 1 else 10), routers=routers),
                {OURS: ours(), UNORDERED: ours("gate order")},
                (),
                value=float(routers),
                key=(replicas, load),
            )
            for routers in ROUTERS
        ]
    measured = lab.run(cases)
    single = {each.case.key: each for each in measured if each.case.value == 1.0}
    kept = {
        (*each.case.key, each.case.value): _over(each.results[OURS], single[each.case.key].results[OURS])
        for each in measured
    }
    worst = min(kept, key=lambda key: kept[key].mean)
    lowest = min((each.over(OURS, high) for each in measured), key=lambda value: value.mean)
    return Experiment(
        "routers",
        "Several routers",
        "Requests are spread over routers that each see only their own queue; the gate orders what they send. "
        "Classes and deadlines as in the flash crowd.",
        [
            Finding(
                "several routers",
                "(no aim) weighted goodput against one router",
                f"at least {percent(kept[worst])} ({worst[0]} replicas, load {worst[1]:g}, {worst[2]:g} routers)",
                None,
            ),
            Finding("several routers", "(no aim) `high` in time", f"at least {percent(lowest, 2)}", None),
        ],
        [
            Table(
                [
                    "replicas",
                    "load",
                    "routers",
                    "weighted, of one router",
                    "high",
                    "normal",
                    "low",
                    "high, unordered gate",
                    "weighted, unordered gate",
                ],
                [
                    [
                        str(each.case.key[0]),
                        f"{each.case.key[1]:g}",
                        f"{each.case.value:g}",
                        percent(kept[*each.case.key, each.case.value]),
                        *(
                            percent(each.over(OURS, lambda result, label=label: result.classes[label].attainment), 2)  # type: ignore[misc]
                            for label in ("high", "normal", "low")
                        ),
                        percent(each.over(UNORDERED, high), 2),
                        percent(_over(each.results[UNORDERED], single[each.case.key].results[OURS])),
                    ]
                    for each in measured
                ],
            )
        ],
        {
            "": lines(
                [
                    (
                        f"{replicas} replica{'s' * (replicas > 1)}, load {load:g}",
                        "% of class high in time",
                        100.0,
                        {
                            system: [
                                (each.case.value or 0.0, each.over(system, high))
                                for each in measured
                                if each.case.key == (replicas, load)
                            ]
                            for system in (OURS, UNORDERED)
                        },
                    )
                    for replicas, load in SETTINGS
                ],
                "routers",
            )
        },
        {
            f"{each.case.key[0]} replicas, load {each.case.key[1]:g}, {each.case.value:g} routers": {
                "kept": as_values(kept[*each.case.key, each.case.value]),
                "high": as_values(each.over(OURS, high)),
                "high_unordered": as_values(each.over(UNORDERED, high)),
            }
            for each in measured
        },
    )


def _over(results: list[Result], others: list[Result]) -> Estimate:
    return estimate([one.weighted_goodput / two.weighted_goodput for one, two in zip(results, others, strict=True)])
