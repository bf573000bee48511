"""Overload up to three times of what the server can do: goodput must not collapse."""

from __future__ import annotations

from benchmarks.scheduling.conditions import MODEL, one_model, rate_at, scenario
from benchmarks.scheduling.contenders import BASELINES, OURS, TRITON, Case
from benchmarks.scheduling.drawing import lines
from benchmarks.scheduling.experiment import Experiment, Finding, Table, as_values, percent, plain
from benchmarks.scheduling.laboratory import Laboratory
from serve_app.simulation.report import estimate
from serve_app.simulation.scenario import Stream

LOADS = (0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0)
SLO_S = 0.06


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    model = one_model(SLO_S)
    cases = [
        Case(
            scenario(
                "overload",
                model,
                [Stream("poisson", MODEL, rate=rate_at(load, model), timeout_s=SLO_S)],
                lab.seconds(15),
            ),
            tuned=(TRITON, *BASELINES),
            bound=True,
            value=load,
        )
        for load in LOADS
    ]
    measured = lab.run(cases)
    systems = list(measured[0].results)
    peaks = [max(each.results[OURS][place].goodput for each in measured) for place in range(len(lab.seeds))]
    kept = estimate([last.goodput / peak for last, peak in zip(measured[-1].results[OURS], peaks, strict=True)])
    wasted = max((each.over(OURS, lambda result: result.wasted) for each in measured), key=lambda value: value.mean)
    of_bound = min((each.of_bound(OURS) for each in measured), key=lambda value: value.mean)
    name = "overload to 3 times the capacity"
    return Experiment(
        "overload",
        "Overload up to three times the capacity",
        "Baselines are tuned anew at every load, which no operator could do. What keeps goodput up is that requests "
        "are given up before they are run, not after.",
        [
            Finding(name, "goodput at 3 times at least 0.95 of the peak", percent(kept), kept.mean >= 0.95),
            Finding(name, "wasted server time under 2%", f"at most {percent(wasted, 2)}", wasted.mean < 0.02),
            Finding(name, "(no aim) part of the exact bound", f"at least {percent(of_bound)}", None),
        ],
        [
            Table(
                ["load", "goodput /s", "of the bound", "wasted", "rows per batch", "triton, tuned", "triton wasted"],
                [
                    [
                        f"{each.case.value:g}",
                        plain(each.over(OURS, lambda result: result.goodput), 0),
                        percent(each.of_bound(OURS)),
                        percent(each.over(OURS, lambda result: result.wasted), 2),
                        plain(each.over(OURS, lambda result: result.batch_rows)),
                        percent(each.of_bound(TRITON)),
                        percent(each.over(TRITON, lambda result: result.wasted), 2),
                    ]
                    for each in measured
                ],
            )
        ],
        {
            "": lines(
                [
                    (
                        "Goodput",
                        "answers in time per second",
                        1.0,
                        {
                            system: [
                                (each.case.value or 0.0, each.over(system, lambda result: result.goodput))
                                for each in measured
                            ]
                            for system in systems
                        }
                        | {
                            "bound": [
                                (
                                    each.case.value or 0.0,
                                    estimate([b.count / lab.seconds(15) for b in each.bounds.values()]),
                                )
                                for each in measured
                            ]
                        },
                    ),
                    (
                        "Server time for answers that were not in time",
                        "% of server time",
                        100.0,
                        {
                            system: [
                                (each.case.value or 0.0, each.over(system, lambda result: result.wasted))
                                for each in measured
                            ]
                            for system in systems
                        },
                    ),
                ],
                "load",
                bottom=0,
            )
        },
        {
            f"load {each.case.value:g}": {
                system: {
                    "goodput": as_values(each.over(system, lambda result: result.goodput)),
                    "of_bound": as_values(each.of_bound(system)),
                    "wasted": as_values(each.over(system, lambda result: result.wasted)),
                    "settings": each.settings.get(system, ""),
                }
                for system in systems
            }
            for each in measured
        },
    )
