"""How fast the simulator is."""

from __future__ import annotations

from benchmarks.scheduling.conditions import L1_S, MODEL, one_model, rate_at, scenario
from benchmarks.scheduling.contenders import ours
from benchmarks.scheduling.experiment import Experiment, Finding
from benchmarks.scheduling.laboratory import Laboratory
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Stream

MILLION = 1_000_000


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    (wall_s, simulated), *_ = lab.call(a_million, [(int(lab.scale * MILLION),)], "a million arrivals")
    finding = Finding(
        "the simulator",
        "a million arrivals on one server in under a minute",
        f"{simulated:,} arrivals in {wall_s:.0f} s",
        wall_s * MILLION / max(1, simulated) < 60.0,
    )
    return Experiment("speed", "The simulator itself", "Poisson arrivals at a load of 0.8.", [finding])


def a_million(arrivals: int) -> tuple[float, int]:
    """How long so many arrivals on one server take, and how many there were."""
    model = one_model(10.0 * L1_S)
    rate = rate_at(0.8, model)
    stream = Stream("poisson", MODEL, rate=rate, timeout_s=10.0 * L1_S)
    result = simulate(
        scenario("a million", model, [stream], arrivals / rate, warm_up_s=0.0), ours().make_system, 1, step_s=60.0
    )
    return result.wall_s, result.total.offered
