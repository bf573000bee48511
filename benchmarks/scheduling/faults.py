"""Replicas that die, hang and fail, with and without ties and circuit breakers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from benchmarks.scheduling.cases import SHARE
from benchmarks.scheduling.conditions import LIGHT, MODEL, OVERHEADS, one_model, rate_at, scenario
from benchmarks.scheduling.experiment import Experiment, Finding, Table, as_values, percent, plain
from benchmarks.scheduling.laboratory import Laboratory
from serve_app.domain.priority import Priority
from serve_app.scheduling.settings import COPIES, BreakerSettings
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.report import Estimate, estimate
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Failure, Scenario, Stream

_LOAD = 0.25
"""Of two replicas, so that one alone can do it as well."""
_DOWN_S = 3.0
_KILL_S = 4.0
_BREAKER = BreakerSettings()
_AT = 0.2
"""Faults come after this part of the workload."""
_TIMEOUTS_S = {Priority.HIGH: 1.0, Priority.NORMAL: 2.5, Priority.LOW: 5.0}

FAULTS: Mapping[str, tuple[str, Failure | None]] = {
    "none": ("nothing", None),
    "dies": ("one dies", Failure(MODEL, 0, 0.0, _DOWN_S)),
    "hangs 1.5 s": ("one hangs for 1.5 s", Failure(MODEL, 0, 0.0, _DOWN_S, kind="hang", lasts_s=1.5)),
    "hangs": ("one hangs until it is killed", Failure(MODEL, 0, 0.0, _DOWN_S, kind="hang")),
    "fails 30%": ("one fails 30% of its executions", Failure(MODEL, 0, 0.0, kind="fail", share=0.3)),
    "fails": ("one fails all of its executions", Failure(MODEL, 0, 0.0, kind="fail")),
}
"""By name, what happens to one of two replicas, for readers and for the simulator."""


@dataclass(frozen=True, slots=True)
class Way:
    """What there is for faults.

    Attributes:
        copies: Replicas that have an entry at once; 1: none is tied, as where replicas are on several nodes.
        breaker: Circuit breakers and ejection.
    """

    copies: int = COPIES
    breaker: BreakerSettings | None = _BREAKER


WAYS: Mapping[str, Way] = {
    "all": Way(),
    "no ties": Way(copies=1),
    "no breaker": Way(breaker=None),
}
_HANG = ("all", "no ties")
_CELLS = (
    ("none", "all"),
    *product(("dies",), ("all", "no ties")),
    *product(("hangs 1.5 s", "hangs"), _HANG),
    *product(("fails 30%", "fails"), ("all", "no breaker")),
)


def faulty(fault: str, way: Way, seconds: float) -> Scenario:
    """Two replicas at a load that one can do, three classes, and a fault after a part of the time."""
    model = one_model(_TIMEOUTS_S[Priority.NORMAL], curve=LIGHT, replicas=2)
    model = replace(model, scheduling=replace(model.scheduling, breaker=way.breaker, copies=way.copies))
    stream = Stream(
        "poisson",
        MODEL,
        rate=rate_at(_LOAD, model),
        timeout_s=_TIMEOUTS_S[Priority.NORMAL],
        share=SHARE,
        timeouts_s=_TIMEOUTS_S,
    )
    made = scenario(f"faults: {fault}", model, [stream], seconds)
    failure = FAULTS[fault][1]
    if failure is None:
        return made
    return replace(made, failures=(replace(failure, at_s=made.warm_up_s + _AT * seconds),))


def measure(fault: str, way: str, seconds: float, seed: int) -> tuple[float, float, float]:
    """Part in time, that of `high`, and goodput in requests per second."""
    given = WAYS[way]
    network_s = (OVERHEADS.send_s + OVERHEADS.answer_s) * OVERHEADS.mean_factor

    def serve_app() -> ServeApp:
        return ServeApp(network_s=network_s, replica_kill_s=_KILL_S)

    result = simulate(faulty(fault, given, seconds), serve_app, seed)
    return result.attainment, result.classes["high"].attainment, result.goodput


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    seconds = lab.seconds(12)
    found = iter(lab.call(measure, [(*cell, seconds, seed) for cell in _CELLS for seed in lab.seeds], "simulating"))
    results = {cell: [next(found) for _ in lab.seeds] for cell in _CELLS}
    measured = {cell: [estimate(values) for values in zip(*of, strict=True)] for cell, of in results.items()}

    def gain(fault: str, way: str, without: str) -> Estimate:
        pairs = zip(results[fault, way], results[fault, without], strict=True)
        return estimate([one[1] - two[1] for one, two in pairs])

    names = ("in time", "high in time", "goodput")
    return Experiment(
        "faults",
        "Replicas that die, hang and fail",
        f"Two replicas with {LIGHT.alpha_s * 1e3:g} ms per batch and {LIGHT.beta_s * 1e3:g} ms per row at a load of "
        f"{_LOAD:g}, which one of them can do. After a fifth of the time something happens to one. What hangs is "
        f"killed after {_KILL_S:g} s; a successor is there {_DOWN_S:g} s after a death. An error is a miss.",
        [
            _finding("ties, a hang of 1.5 s", gain("hangs 1.5 s", "all", "no ties")),
            _finding("circuit breaker, a replica that fails", gain("fails", "all", "no breaker")),
        ],
        [
            Table(
                ["what happens", "with", *names],
                [
                    [FAULTS[fault][0], way, percent(values[0], 2), percent(values[1], 2), plain(values[2])]
                    for (fault, way), values in measured.items()
                ],
            )
        ],
        data={
            f"{fault}, {way}": dict[str, Any](zip(names, map(as_values, values), strict=True))
            for (fault, way), values in measured.items()
        },
    )


def _finding(part: str, gain: Estimate) -> Finding:
    measured = f"{100.0 * gain.mean:+.2f} ±{100.0 * gain.half_width:.2f} points of `high` in time"
    return Finding("faults", part, measured, None)
