"""How far a server may be from the simulator: everything that was measured for it, in one place.

A plan simulates the demand many times. Each draw has arrivals of its own and a slowdown of its own, so that the spread
of the draws is that of chance and of the machine's speed. What remains between the simulator and a server, such as
stalls and processes that share a core, is the residual: every interval is wider by it on both sides.

Sources: `SLOWDOWNS`, `OVERHEADS` and `PAUSE_S` are of the runs in ``docs/benchmarks/calibration.json``; the residuals
are of the runs of ``python -m benchmarks.plan --seed 1``, other cases than the published ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from serve_app_simulator.scenario import Noise, Overheads

DRAWS = 20
_STRIDE = 7
"""Prime to `DRAWS`, so that each slowdown comes once, and not in the order of its size."""
COVERED = 0.9

SLOWDOWNS = (0.93, 0.97, 1.0, 1.02, 1.03, 1.04, 1.05, 1.09, 1.18)
"""Time of executions in the server as a multiple of the profile's: quantiles at equal distances, from 0 to 1."""
OVERHEADS = Overheads(
    request_s=0.0004,
    send_s=0.0007,
    answer_s=0.0011,
    between_s=0.0004,
    scatter=0.3,
    router_s=0.000055,
    router_read_s=0.000005,
    router_refusal_s=0.000015,
    router_answer_s=0.000015,
)
"""What a request pays besides executions on the routers' own port; the router's times are those of
``configs/scenarios/router.yaml``."""
STALLS = Noise(router_stall_every_s=0.3, router_stall_s=0.005)
"""How often a router has no core."""

ATTAINMENT_RESIDUAL = (0.01, 0.10)
"""Of attainment p: the first, and the second times 4 p (1 - p)."""
LATENCY_RESIDUAL = 1.25
"""Factor of p50 and p99."""
UTILISATION_RESIDUAL = 0.05


class Interval(NamedTuple):
    """An expectation, and where it lies in `COVERED` of all cases."""

    low: float
    value: float
    high: float


def slowdown(draw: int) -> float:
    """The slowdown of a draw, counted from 0: over `DRAWS` of them, each part of the distribution comes once."""
    place = (draw * _STRIDE % DRAWS + 0.5) / DRAWS
    return float(np.interp(place, np.linspace(0.0, 1.0, len(SLOWDOWNS)), SLOWDOWNS))


def attainment(draws: Sequence[float]) -> Interval:
    """A part of requests in time, 0 to 1."""
    low, value, high = _quantiles(draws)
    least, most = ATTAINMENT_RESIDUAL

    def residual(part: float) -> float:
        return least + most * 4.0 * part * (1.0 - part)

    return Interval(max(0.0, low - residual(low)), value, min(1.0, high + residual(high)))


def latency(draws: Sequence[float]) -> Interval:
    """Seconds."""
    low, value, high = _quantiles(draws)
    return Interval(low / LATENCY_RESIDUAL, value, high * LATENCY_RESIDUAL)


def utilisation(draws: Sequence[float]) -> Interval:
    """A part of the time, 0 to 1."""
    low, value, high = _quantiles(draws)
    return Interval(max(0.0, low - UTILISATION_RESIDUAL), value, min(1.0, high + UTILISATION_RESIDUAL))


def _quantiles(draws: Sequence[float]) -> Interval:
    tail = (1.0 - COVERED) / 2.0
    return Interval(*(float(found) for found in np.quantile(draws, (tail, 0.5, 1.0 - tail))))
