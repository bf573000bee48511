"""Bursts: gamma arrivals with a coefficient of variation of 4, deadlines from tight to loose."""

from __future__ import annotations

from benchmarks.scheduling.conditions import MODEL, one_model, rate_at, scenario
from benchmarks.scheduling.contenders import BASELINES, OURS, TRITON, Case, ours
from benchmarks.scheduling.drawing import lines
from benchmarks.scheduling.experiment import Experiment, Finding, Table, as_values, percent, times
from benchmarks.scheduling.laboratory import Laboratory, Measured
from serve_app.simulation.results import Result
from serve_app.simulation.scenario import Stream

SCALES = (2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0)
LOADS = (0.7, 1.0)
_TIGHT = 2.0


def goodput(result: Result) -> float:
    """Answers in time per second."""
    return result.goodput


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    cases = [_case(lab, scale, load) for load in LOADS for scale in SCALES]
    measured = lab.run(cases)
    worst = min(measured, key=lambda each: each.of_bound(OURS).mean)
    tight = [each for each in measured if each.case.value == _TIGHT]
    least = min(tight, key=lambda each: each.ratio(OURS, TRITON, goodput).mean)
    ratio = least.ratio(OURS, TRITON, goodput)
    findings = [
        Finding(
            "gamma CV 4, deadline 2 to 10 x L(1)",
            "goodput at least 0.90 of the exact bound",
            f"at least {percent(worst.of_bound(OURS))} "
            f"(deadline {worst.case.value:g} x L(1), load {worst.case.key[0]:g})",
            worst.of_bound(OURS).mean >= 0.90,
        ),
        Finding(
            "gamma CV 4, deadline 2 x L(1)",
            "at least 1.2 times tuned Triton policy's goodput",
            f"at least {times(ratio)} times (load {least.case.key[0]:g})",
            ratio.mean >= 1.2,
        ),
    ]
    systems = list(measured[0].results)
    return Experiment(
        "bursts",
        "Bursts: gamma arrivals with CV 4",
        "Requests come in clumps: the gaps between them have a coefficient of variation of 4. The tighter the "
        "deadline, the smaller the batch that it allows, and the more it matters which requests are given up.",
        findings,
        [
            Table(
                [
                    "load",
                    "deadline",
                    "of the bound",
                    *(f"{name}, tuned" for name in (TRITON, *BASELINES)),
                    "over triton",
                ],
                [_row(each) for each in measured],
            )
        ],
        {
            "": lines(
                [
                    (
                        f"Part of the bound, load {load:g}",
                        "% of the exact bound",
                        100.0,
                        {
                            system: [
                                (each.case.value or 0.0, each.of_bound(system))
                                for each in measured
                                if each.case.key == (load,)
                            ]
                            for system in systems
                        },
                    )
                    for load in LOADS
                ],
                "deadline / L(1)",
            )
        },
        {
            f"load {each.case.key[0]:g} deadline {each.case.value:g}x": {
                "tuned": each.settings,
                "of_bound": {system: as_values(each.of_bound(system)) for system in systems},
                "over_triton": as_values(each.ratio(OURS, TRITON, goodput)),
            }
            for each in measured
        },
    )


def _case(lab: Laboratory, scale: float, load: float) -> Case:
    slo_s = scale * 0.006
    model = one_model(slo_s)
    stream = Stream("gamma", MODEL, rate=rate_at(load, model), cv=4.0, timeout_s=slo_s)
    return Case(
        scenario(f"gamma {scale:g}x", model, [stream], lab.seconds(30)),
        {OURS: ours()},
        (TRITON, *BASELINES),
        bound=True,
        value=scale,
        key=(load,),
    )


def _row(each: Measured) -> list[str]:
    return [
        f"{each.case.key[0]:g}",
        f"{each.case.value:g} x L(1)",
        *(percent(each.of_bound(system)) for system in (OURS, TRITON, *BASELINES)),
        times(each.ratio(OURS, TRITON, goodput)),
    ]
