"""What the simulator says of a pool that was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import log, sqrt

from benchmarks.failure import BenchmarkError
from benchmarks.groups import Group, simulated_groups
from benchmarks.pool_server_counted import Counted
from benchmarks.pool_server_load import POOL, bursts
from benchmarks.pool_server_measure import Costs
from serve_app.config.args import AppArgs
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.results import PoolUsage
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Affine, Noise, Overheads, Scenario, SimulatedModel, SimulatedPool
from serve_app_simulator.workloads import Arrivals

_NOISE = Noise("lognormal", 0.08)
_SPREAD = 0.3
"""Sigma of loads, where they all fall into one bin of the histogram."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the simulator says of the same arrivals.

    Attributes:
        groups: By class's label, and ``all``.
        usage: What the host did.
        batch_rows: Mean rows of an execution.
    """

    groups: dict[str, Group]
    usage: PoolUsage
    batch_rows: float


def scenario_of(
    args: AppArgs, costs: Costs | None, counted: Counted | None, rate: float, seconds: float, warm_up_s: float
) -> Scenario:
    """The scenario that was measured.

    Args:
        args: Of the server, its members found.
        costs: Measured; ``None``: only arrivals are needed.
        counted: In the run that is simulated; ``None`` likewise.
        rate: Requests per second.
        seconds: Length.
        warm_up_s: The part of it that does not count.
    """
    (pool,) = args.pools
    names = [model.name for model in args.models if model.pool == pool.name]
    curve = Affine(0.004, 0.001) if counted is None else counted.curve()
    nbytes = 1 if counted is None else counted.member_bytes
    load_s = 0.1 if counted is None else counted.mean_load_s
    models = args.model_scheduling()
    return Scenario(
        f"pool of {len(names)}",
        tuple(SimulatedModel(replace(models[name], resident_bytes=nbytes), curve, 0) for name in names),
        (bursts(rate),),
        seconds,
        args.class_settings(),
        pools=(
            SimulatedPool(pool.scheduling(names), pool.hosts, load_s, 0.0 if counted is None else load_spread(counted)),
        ),
        overheads=Overheads() if costs is None else costs.overheads,
        noise=_NOISE,
        warm_up_s=warm_up_s,
    )


def predict(scenario: Scenario, network_s: float, arrivals: Arrivals) -> Predicted:
    """Simulate serve_app.

    Args:
        scenario: From `scenario_of`.
        network_s: As the server is configured, seconds.
        arrivals: As they were sent.

    Raises:
        ConfigError: The scenario is impossible.
    """
    # As in the calibration: the real router counts a deadline from when a request reaches it.
    system = partial(ServeApp, network_s=max(0.0, network_s - scenario.overheads.request_s))
    result = simulate(scenario, system, 0, arrivals=arrivals)
    return Predicted(simulated_groups(result), result.pools[POOL], result.batch_rows)


def load_spread(counted: Counted) -> float:
    """Sigma of a lognormal distribution of what loads took, by the histogram's median and its 90th percentile.

    Raises:
        BenchmarkError: There were no loads.
    """
    if not counted.loads:
        raise BenchmarkError("no member was loaded")
    half, most = _quantile(counted, 0.5), _quantile(counted, 0.9)
    # 1.2816: the 0.9 quantile of the normal distribution
    return min(1.0, log(most / half) / 1.2816) if most > half else _SPREAD


def standard_error(groups: tuple[Group, Group]) -> float:
    """Of the difference of two parts, as if requests were independent of each other."""
    return sqrt(sum(group.attainment * (1 - group.attainment) / max(1, group.offered) for group in groups))


def _quantile(counted: Counted, quantile: float) -> float:
    """By linear interpolation inside a bin, seconds."""
    below_s, below = 0.0, 0.0
    for most, count in sorted(counted.load_bins.items()):
        if count >= quantile * counted.loads:
            return below_s + (min(most, 2 * below_s + 0.01) - below_s) * (quantile * counted.loads - below) / max(
                1.0, count - below
            )
        below_s, below = most, count
    return below_s
