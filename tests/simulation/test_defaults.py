"""The default settings of a model, beside others that were the defaults before."""

from __future__ import annotations

from simulation_builders import make_scenario

from serve_app.config.batching import BatchingConfig
from serve_app.config.router import ClassesConfig
from serve_app.domain.priority import Priority
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Affine, Curve, Noise, Overheads, SimulatedModel, Stream

PARTS = {Priority.HIGH: 0.2, Priority.NORMAL: 0.5, Priority.LOW: 0.3}


def in_time(curve: Curve, load: float, *, bursts: bool = False, **settings: float) -> float:
    """Part of the requests that is in time, with default settings but for those given.

    Args:
        load: 1 is what full batches do.
        bursts: Whether arrivals are bursts of one class with deadlines of ten lone runs, or Poisson arrivals of all
            classes with their default deadlines.
    """
    scheduling = BatchingConfig.model_validate(settings).scheduling("m")
    rate = load * scheduling.max_rows / curve(scheduling.max_rows, 0)
    if bursts:
        streams = [Stream("mmpp", "m", rate=rate, timeout_s=10 * curve(1, 0), surge=20.0, surge_s=1.0, quiet_s=3.0)]
    else:
        classes = ClassesConfig()
        streams = [
            Stream("poisson", "m", priority, part * rate, getattr(classes, priority.label).timeout_ms / 1000)
            for priority, part in PARTS.items()
        ]
    scenario = make_scenario(
        *streams,
        models=(SimulatedModel(scheduling, curve),),
        duration_s=60.0,
        overheads=Overheads(0.002, 0.001, 0.003, 0.001, scatter=0.5),
        noise=Noise("lognormal", 0.08),
    )
    return simulate(scenario, lambda: ServeApp(network_s=0.004), 1).attainment


def test_models_whose_rows_take_long_are_in_time() -> None:
    """At half of what full batches do: with a target of 100 ms a batch would have two rows."""
    slow = Affine(0.05, 0.02)
    assert in_time(slow, 0.5) > 0.99
    assert in_time(slow, 0.5, slo_ms=100) < 0.95


def test_bursts_find_more_batches_at_a_replica() -> None:
    """The gate of a replica chooses from what is there: with half the window, less of a burst is in time."""
    typical = Affine(0.025, 0.005)
    assert in_time(typical, 1.1, bursts=True) > in_time(typical, 1.1, bursts=True, window=4) + 0.004
