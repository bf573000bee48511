"""A flash crowd over mixed classes, with a fixed number of replicas and with autoscaling."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.scheduling.conditions import MODEL, one_model, rate_at, scenario
from benchmarks.scheduling.contenders import OURS, TRITON, Case
from benchmarks.scheduling.drawing import COLOURS
from benchmarks.scheduling.experiment import Experiment, Finding, Table, as_values, percent, plain
from benchmarks.scheduling.laboratory import Laboratory, Measured
from serve_app.domain.priority import Priority
from serve_app_simulator.plots import over_time
from serve_app_simulator.report import Estimate, estimate
from serve_app_simulator.scenario import SimulatedAutoscaling, SimulatedModel, Stream

SHARE = {Priority.HIGH: 0.2, Priority.NORMAL: 0.5, Priority.LOW: 0.3}
TIMEOUTS_S = {Priority.HIGH: 0.3, Priority.NORMAL: 0.6, Priority.LOW: 1.25}
SLO_S = 0.6
STEP_S = 0.1
_BEFORE_S = 8.0
_AFTER_S = 6.0
CROWDS = ((3.0, 0.6, False), (10.0, 0.3, False), (3.0, 0.6, True), (10.0, 0.3, True))
"""Surge, load before it, whether replicas are scaled."""


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    surge_s = lab.seconds(60)
    measured = lab.run([_case(surge, load, scaled, surge_s) for surge, load, scaled in CROWDS])
    findings = []
    for each in measured[:2]:
        findings += _findings(each, surge_s)
    for each in measured[2:]:
        high = each.over(OURS, lambda result: result.classes["high"].attainment)
        findings.append(Finding(_title(each), "`high` in time at least 99.5%", percent(high, 2), high.mean >= 0.995))
    return Experiment(
        "flash_crowd",
        "Flash crowds over mixed classes",
        f"Poisson arrivals, 20% high (deadline 300 ms), 50% normal (600 ms), 30% low (1250 ms), that grow to a "
        f"multiple for {surge_s:g} s. With autoscaling, one replica may become four, each 5 s after the decision.",
        findings,
        [Table(_HEADER, [row for each in measured for row in _rows(each, surge_s)])],
        {"": over_time(measured[0].as_case([(_BEFORE_S, _BEFORE_S + surge_s)]), COLOURS)},
        {
            _title(each): {
                system: {
                    **{
                        priority.label: as_values(
                            each.over(system, lambda result, label=priority.label: result.classes[label].attainment)  # type: ignore[misc]
                        )
                        for priority in Priority
                    },
                    "goodput": as_values(each.over(system, lambda result: result.goodput)),
                    "weighted_goodput": as_values(each.over(system, lambda result: result.weighted_goodput)),
                    "settings": each.settings.get(system, ""),
                }
                for system in each.results
            }
            for each in measured
        },
    )


def _case(surge: float, load: float, scaled: bool, surge_s: float) -> Case:
    model: SimulatedModel = one_model(SLO_S)
    rate = rate_at(load, model)
    if scaled:
        model = replace(model, startup_s=5.0, autoscaling=SimulatedAutoscaling(1, 4, target_rows=32.0))
    stream = Stream(
        "flash_crowd",
        MODEL,
        rate=rate,
        surge=surge,
        surge_at_s=_BEFORE_S,
        surge_s=surge_s,
        share=SHARE,
        timeouts_s=TIMEOUTS_S,
    )
    return Case(
        scenario(f"flash crowd x{surge:g}", model, [stream], _BEFORE_S + surge_s + _AFTER_S - 1.0),
        bound=not scaled,
        key=(surge, scaled),
        step_s=STEP_S,
        tune_s=_BEFORE_S + min(surge_s, 6.0),
        slot_s=0.1,
        window_s=2.5,
    )


def _title(each: Measured) -> str:
    surge, scaled = each.case.key
    return f"flash crowd x{surge:g}{', autoscaling' if scaled else ''}"


def _drained(each: Measured, system: str, surge_s: float) -> list[float | None]:
    return [result.recovery_s(_BEFORE_S + surge_s, before_s=_BEFORE_S) for result in each.results[system]]


def _findings(each: Measured, surge_s: float) -> list[Finding]:
    high = each.over(OURS, lambda result: result.classes["high"].attainment)
    share = each.of_bound(OURS, weighted=True)
    drained = _drained(each, OURS, surge_s)
    known = [seconds for seconds in drained if seconds is not None]
    slowest = max(known, default=float("inf")) if len(known) == len(drained) else float("inf")
    return [
        Finding(_title(each), "`high` in time at least 99.5%", percent(high, 2), high.mean >= 0.995),
        Finding(_title(each), "weighted goodput at least 0.90 of the bound", percent(share), share.mean >= 0.90),
        Finding(
            _title(each),
            f"queue drained within 2 deadlines of normal ({2e3 * SLO_S:g} ms) after the end",
            f"at most {1e3 * slowest:.0f} ms",
            slowest <= 2 * SLO_S + 1e-9,
        ),
    ]


_HEADER = ["crowd", "system", "high", "normal", "low", "weighted, of the bound", "drained after ms", "wasted"]


def _rows(each: Measured, surge_s: float) -> list[list[str]]:
    rows = []
    for system in (OURS, TRITON):
        drained = _drained(each, system, surge_s)
        known = [1e3 * seconds for seconds in drained if seconds is not None]
        after: Estimate | None = estimate(known) if known else None
        rows.append(
            [
                _title(each),
                system if system == OURS else f"{system}, tuned",
                *(
                    percent(each.over(system, lambda result, label=label: result.classes[label].attainment), 2)  # type: ignore[misc]
                    for label in ("high", "normal", "low")
                ),
                percent(each.of_bound(system, weighted=True)) if each.bounds else "",
                "never" if after is None else plain(after, 0) + (" (not all)" if len(known) < len(drained) else ""),
                percent(each.over(system, lambda result: result.wasted), 2),
            ]
        )
    return rows
