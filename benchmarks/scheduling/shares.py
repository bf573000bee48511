"""A class ``high`` that alone asks for more than there is: ``low`` keeps its guaranteed share."""

from __future__ import annotations

from benchmarks.scheduling.conditions import MODEL, one_model, rate_at, scenario
from benchmarks.scheduling.contenders import OURS, TRITON, Case, ours
from benchmarks.scheduling.drawing import lines
from benchmarks.scheduling.experiment import Experiment, Finding, Table, as_values, percent
from benchmarks.scheduling.laboratory import Laboratory
from serve_app.domain.priority import Priority
from serve_app_simulator.results import Result
from serve_app_simulator.scenario import Stream

LOADS = (0.6, 0.8, 1.0, 1.5, 2.0, 3.0)
SHARE = 0.05
_OFF = "without guaranteed share"


def low_share(result: Result) -> float:
    """Part of the server time charged to requests that ``low`` got."""
    return result.server_share.get("low", 0.0)


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    model = one_model(0.3)
    cases = [
        Case(
            scenario(
                "saturating high",
                model,
                [
                    Stream("poisson", MODEL, Priority.HIGH, rate_at(load, model), timeout_s=0.3),
                    Stream("poisson", MODEL, Priority.LOW, rate_at(0.3, model), timeout_s=5.0),
                ],
                lab.seconds(60),
                min_share=SHARE,
            ),
            {OURS: ours(), _OFF: ours("guaranteed share")},
            value=load,
        )
        for load in LOADS
    ]
    measured = lab.run(cases)
    least = min((each.over(OURS, low_share) for each in measured), key=lambda value: value.mean)
    name = "saturating `high`, up to 3 times the capacity"
    return Experiment(
        "shares",
        "Saturating `high`",
        "Class high alone asks for up to three times of what there is, and low for 0.3. Low is guaranteed 5%.",
        [Finding(name, "`low` keeps at least 5% of server time", f"at least {percent(least, 2)}", least.mean >= SHARE)],
        [
            Table(
                [
                    "load of high",
                    "low's share",
                    "without guarantee",
                    "triton",
                    "low in time",
                    "high in time",
                    "high, triton",
                ],
                [
                    [
                        f"{each.case.value:g}",
                        *(percent(each.over(system, low_share), 2) for system in (OURS, _OFF, TRITON)),
                        percent(each.over(OURS, lambda result: result.classes["low"].attainment)),
                        percent(each.over(OURS, lambda result: result.classes["high"].attainment)),
                        percent(each.over(TRITON, lambda result: result.classes["high"].attainment)),
                    ]
                    for each in measured
                ],
            )
        ],
        {
            "": lines(
                [
                    (
                        "Server time of class low",
                        "% of server time",
                        100.0,
                        {
                            system: [(each.case.value or 0.0, each.over(system, low_share)) for each in measured]
                            for system in measured[0].results
                        },
                    ),
                    (
                        "Class high in time",
                        "% of the requests offered",
                        100.0,
                        {
                            system: [
                                (
                                    each.case.value or 0.0,
                                    each.over(system, lambda result: result.classes["high"].attainment),
                                )
                                for each in measured
                            ]
                            for system in measured[0].results
                        },
                    ),
                ],
                "load of high",
                bottom=0,
            )
        },
        {
            f"load {each.case.value:g}": {system: as_values(each.over(system, low_share)) for system in each.results}
            for each in measured
        },
    )
