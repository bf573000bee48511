"""Two models on one device: a heavy one of class ``low`` beside a tight one of class ``high``."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.scheduling.conditions import NOISE, OVERHEADS, classes
from benchmarks.scheduling.contenders import BASELINES, OURS, TRITON, Case, ours
from benchmarks.scheduling.drawing import lines
from benchmarks.scheduling.experiment import Experiment, Finding, Table, as_values, percent
from benchmarks.scheduling.laboratory import Laboratory
from benchmarks.scheduling.shares import low_share
from serve_app.scheduling.entry import Priority
from serve_app.scheduling.settings import ModelScheduling
from serve_app_simulator.results import Result
from serve_app_simulator.scenario import Affine, Device, Scenario, SimulatedModel, Stream

UNBATCHED = "per-model queues"
RATES = (20.0, 40.0, 60.0, 80.0)


class Setting(NamedTuple):
    """Two models on a device.

    Attributes:
        title: For readers.
        tight: Cost of the model whose requests are urgent.
        tight_s: Their deadline.
        heavy: Cost of the other one.
        heavy_rate: Its requests per second.
        instances: Its replicas on the device.
        max_rows: Its largest batch.
    """

    title: str
    tight: Affine
    tight_s: float
    heavy: Affine
    heavy_rate: float
    instances: int
    max_rows: int


SETTINGS = (
    Setting("one heavy instance", Affine(0.015, 0.0015), 0.1, Affine(0.02, 0.02), 16.0, 1, 16),
    Setting("two heavy instances", Affine(0.015, 0.0015), 0.1, Affine(0.02, 0.02), 16.0, 2, 16),
    Setting("heavy longer than the deadline", Affine(0.02, 0.0025), 0.125, Affine(0.125, 0.075), 3.0, 1, 8),
)


def in_time(label: str) -> Callable[[Result], float]:
    """Attainment of a class."""
    return lambda result: result.classes[label].attainment


def setting(lab: Laboratory, rate: float, chosen: Setting = SETTINGS[1]) -> Scenario:
    """The scenario at a rate of the tight model."""
    return Scenario(
        "shared device",
        (
            SimulatedModel(ModelScheduling("tight", 32, chosen.tight_s), chosen.tight, device="gpu"),
            SimulatedModel(
                ModelScheduling("heavy", chosen.max_rows, 2.0), chosen.heavy, chosen.instances, device="gpu"
            ),
        ),
        (
            Stream("poisson", "tight", Priority.HIGH, rate, timeout_s=chosen.tight_s),
            Stream("poisson", "heavy", Priority.LOW, chosen.heavy_rate, timeout_s=10.0),
        ),
        lab.seconds(45) + 1.0,
        classes(),
        (Device("gpu", concurrency=1, interference=0.1),),
        overheads=OVERHEADS,
        noise=NOISE,
        warm_up_s=1.0,
    )


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    measured = lab.run(
        [
            Case(
                setting(lab, rate, chosen),
                {OURS: ours(), UNBATCHED: ours("device groups")},
                (TRITON, *BASELINES),
                value=rate,
                key=(chosen.title,),
            )
            for chosen in SETTINGS
            for rate in RATES
        ]
    )
    high, low = in_time("high"), in_time("low")
    name = "shared device, heavy `low` beside tight `high`"
    judged = [each for each in measured if each.over(UNBATCHED, high).mean < 0.9 or each.over(TRITON, high).mean < 0.9]
    worst = min((each.over(OURS, high) for each in judged or measured), key=lambda value: value.mean)
    feasible = [each for each in judged if each.case.key != (SETTINGS[-1].title,)]
    served = min((each.over(OURS, low) for each in feasible or measured), key=lambda value: value.mean)
    share = min(
        (each.over(OURS, low_share) for each in measured if each.case.key == (SETTINGS[-1].title,)),
        key=lambda value: value.mean,
    )
    return Experiment(
        "shared_device",
        "Two models on one device",
        "The device runs one execution at full speed; two at once share it and lose a tenth. Class high asks the tight "
        "model (3 ms + 0.3 ms per row, deadline 20 ms), class low the heavy one (4 ms + 4 ms per row, 80 requests per "
        "second, deadline 2 s), which is there once or twice. In the third setting one heavy request alone takes 40 ms "
        "and the tight deadline is 25 ms: whenever low runs, high misses. `per-model queues` is this scheduler without "
        "knowledge of the device.",
        [
            Finding(
                name,
                "`high` at least 99% where per-model queues fall below 90%",
                f"at least {percent(worst, 2)} in {len(judged)} such cases",
                bool(judged) and worst.mean >= 0.99,
            ),
            Finding(name, "(no aim) `low` in time there", f"at least {percent(served, 1)}", None),
            Finding(
                f"{name}, heavy longer than the deadline",
                "`low` keeps at least 5% of server time",
                f"at least {percent(share, 2)}",
                share.mean >= 0.05,
            ),
        ],
        [
            Table(
                ["setting", "tight requests/s", "system", "high in time", "low in time"],
                [
                    [
                        each.case.key[0],
                        f"{each.case.value:g}",
                        system,
                        percent(each.over(system, high), 2),
                        percent(each.over(system, low), 2),
                    ]
                    for each in measured
                    for system in each.results
                ],
            )
        ],
        {
            "": lines(
                [
                    (
                        f"Class {label} in time, {SETTINGS[1].title}",
                        "% of the requests offered",
                        100.0,
                        {
                            system: [
                                (each.case.value or 0.0, each.over(system, in_time(label)))
                                for each in measured
                                if each.case.key == (SETTINGS[1].title,)
                            ]
                            for system in measured[0].results
                        },
                    )
                    for label in ("high", "low")
                ],
                "requests per second of the tight model",
            )
        },
        {
            f"{each.case.key[0]}, {each.case.value:g}/s": {
                system: {"high": as_values(each.over(system, high)), "low": as_values(each.over(system, low))}
                for system in each.results
            }
            for each in measured
        },
    )
