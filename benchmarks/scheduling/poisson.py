"""Steady Poisson arrivals at one server: how near to the bound, and what light load costs."""

from __future__ import annotations

from functools import partial

from benchmarks.scheduling.conditions import MODEL, one_model, rate_at, scenario
from benchmarks.scheduling.contenders import BASELINES, OURS, TRITON, Case, Contender, ours
from benchmarks.scheduling.drawing import lines
from benchmarks.scheduling.experiment import Experiment, Finding, Table, as_values, percent, plain
from benchmarks.scheduling.laboratory import Laboratory, Measured
from serve_app.simulation.baselines.triton import Triton
from serve_app.simulation.results import Result
from serve_app.simulation.scenario import Stream

LOADS = (0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0)
SCALES = (10.0, 4.0)
EAGER = "eager"
AT_ONCE = "triton, no delay"
"""Triton that never waits has the lowest latency there is at light load."""
_LIGHT = 0.3


def p50_ms(result: Result) -> float:
    """Median latency of answers, milliseconds."""
    return 1e3 * (result.total.p50_s or 0.0)


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    cases = []
    for scale in SCALES:
        model = one_model(scale * 0.006)
        for load in LOADS:
            stream = Stream("poisson", MODEL, rate=rate_at(load, model), timeout_s=scale * 0.006)
            cases.append(
                Case(
                    scenario(f"poisson {scale:g}x", model, [stream], lab.seconds(20)),
                    {OURS: ours(), EAGER: ours(policy="eager"), AT_ONCE: Contender(partial(Triton, 0.0, "one"))},
                    (TRITON, *BASELINES) if scale == SCALES[0] else (TRITON,),
                    bound=True,
                    value=load,
                    key=(scale,),
                )
            )
    measured = lab.run(cases)
    worst = min((each.of_bound(OURS) for each in measured), key=lambda share: share.mean)
    at = next(each for each in measured if each.of_bound(OURS) == worst)
    light = [each for each in measured if (each.case.value or 0.0) <= _LIGHT]
    slowest = {
        other: max((each.ratio(OURS, other, p50_ms) for each in light), key=lambda ratio: ratio.mean)
        for other in (EAGER, AT_ONCE)
    }
    findings = [
        Finding(
            "Poisson, load 0.2 to 1.0, one server",
            "goodput at least 0.95 of the exact bound",
            f"at least {percent(worst)} (load {at.case.value:g}, deadline {at.case.key[0]:g} x L(1))",
            worst.mean >= 0.95,
        ),
        Finding(
            "Poisson, load 0.2 to 1.0, one server",
            "p50 within 10% of eager's at load 0.3 and below",
            "; ".join(
                f"at most {100 * (ratio.mean - 1):+.1f} ±{100 * ratio.half_width:.1f}% to `{other}`"
                for other, ratio in slowest.items()
            ),
            all(ratio.mean <= 1.10 for ratio in slowest.values()),
        ),
    ]
    rows = [_row(each) for each in measured]
    systems = list(measured[0].results)
    return Experiment(
        "poisson",
        "Poisson arrivals, one server",
        "Load 1 is the most rows per second that the server does in batches that take no longer than the deadline. The "
        "bound is exact: the best schedule of somebody who knows every arrival beforehand. `eager` is this scheduler "
        "with the policy that takes whatever is queued whenever a slot is free; Triton without a delay does so when a "
        "replica is free.",
        findings,
        [
            Table(
                [
                    "deadline",
                    "load",
                    "of the bound",
                    "eager",
                    "triton, tuned",
                    "p50 ms",
                    "eager's",
                    "undelayed triton's",
                ],
                rows,
            )
        ],
        {
            "": lines(
                [
                    (
                        f"Part of the bound, deadline {scale:g} x L(1)",
                        "% of the exact bound",
                        100.0,
                        {
                            system: [
                                (_value(each), each.of_bound(system)) for each in measured if each.case.key == (scale,)
                            ]
                            for system in systems
                            if all(system in each.results for each in measured if each.case.key == (scale,))
                        },
                    )
                    for scale in SCALES
                ],
                "load",
            )
        },
        {
            f"{each.case.key[0]:g}x load {each.case.value:g}": {
                system: {
                    "of_bound": as_values(each.of_bound(system)),
                    "p50_ms": as_values(each.over(system, p50_ms)),
                }
                for system in each.results
            }
            for each in measured
        },
    )


def _value(measured: Measured) -> float:
    return measured.case.value or 0.0


def _row(each: Measured) -> list[str]:
    return [
        f"{each.case.key[0]:g} x L(1)",
        f"{each.case.value:g}",
        *(percent(each.of_bound(system)) for system in (OURS, EAGER, TRITON)),
        *(plain(each.over(system, p50_ms)) for system in (OURS, EAGER, AT_ONCE)),
    ]
