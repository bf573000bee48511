"""How far a server may be from the simulator: everything that was measured for it, in one place.

A plan simulates the demand many times. Each draw has arrivals, a slowdown and ways of its own, so that the draws
spread by chance, by the machine's speed and by the bodies' size. What remains between the simulator and a server, such
as stalls and processes that share a core, is the residual: every interval is wider by it on both sides.

Sources: `OVERHEADS` and `WAYS` are rounded from the runs in ``docs/benchmarks/calibration.json``, `SLOWDOWNS` from
those of one model in ``python -m benchmarks.plan --seed 3`` and ``--seed 5``. `STALLS` were set so that simulations of
six cases of ``--seed 1`` came near the server; bias and residuals are rounded from all of it and of ``--seed 2``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from serve_app_simulator.scenario import Noise, Overheads

DRAWS = 20
_FIRST = 4
_STRIDES = 7, 11
"""Prime to `DRAWS`, so that each slowdown comes once, not in the order of its size; likewise the ways.
From `_FIRST` on, few draws have nearly the mean of all."""
COVERED = 0.9

SLOWDOWNS = (0.95, 1.03, 1.07, 1.11, 1.14, 1.17, 1.2, 1.24, 1.3)
"""Time of executions in the server as a multiple of the profile's: quantiles at equal distances, from 0 to 1."""
OVERHEADS = Overheads(
    request_s=0.0004,
    send_s=0.0007,
    answer_s=0.0011,
    between_s=0.0007,
    scatter=0.3,
    router_s=0.000055,
    router_read_s=0.000005,
    router_refusal_s=0.000015,
    router_answer_s=0.000015,
)
"""What a request pays besides executions on the routers' own port; the router's times are those of
``configs/scenarios/router.yaml``."""
ROUTER_S = OVERHEADS.router_s + OVERHEADS.router_read_s + OVERHEADS.router_answer_s
"""Of a router's processor for each request."""
ROUTER_FULL = 0.8
"""Part of a router's time beyond which its queue is what decides."""
WAYS = (0.6, 0.7, 1.0, 1.4, 2.0, 2.4, 3.2, 3.6)
"""The ways of requests and answers as multiples of `OVERHEADS`, quantiles likewise: large bodies take longer."""
STALLS = Noise(stall_every_s=0.2, stall_s=0.004, router_stall_every_s=0.3, router_stall_s=0.005)
"""How often a replica and a router have no core."""

ATTAINMENT_BIAS = 0.05
"""Times 4 p (1 - p) is what a server misses of the part p that is in time in the simulator."""
ATTAINMENT_RESIDUALS = ((0.04, 0.15), (0.01, 0.1))
"""Of attainment p at the lower and at the upper end: the first, and the second times 4 p (1 - p)."""
LATENCY_RESIDUAL = 1.35
"""Factor of p50 and p99."""
LATENCY_RESIDUAL_S = 0.015
"""And so much more at the upper end: stalls do not grow with the latency."""
UTILISATION_RESIDUAL = 0.1


@dataclass(frozen=True, slots=True)
class Interval:
    """An expectation, and where it lies in `COVERED` of all cases.

    Attributes:
        value: Median of the draws, less `ATTAINMENT_BIAS` where it is attainment.
        draws: Their quantiles: the interval before the residual.
    """

    low: float
    value: float
    high: float
    draws: tuple[float, float]


def slowdown(draw: int) -> float:
    """Factor of a draw's executions, counted from 0: over `DRAWS` of them, each part of the distribution comes once."""
    return _part(SLOWDOWNS, draw * _STRIDES[0])


def overheads(draw: int) -> Overheads:
    """What requests of a draw pay besides executions, likewise."""
    factor = _part(WAYS, draw * _STRIDES[1])
    return replace(
        OVERHEADS,
        request_s=OVERHEADS.request_s * factor,
        send_s=OVERHEADS.send_s * factor,
        answer_s=OVERHEADS.answer_s * factor,
    )


def attainment(draws: Sequence[float]) -> Interval:
    """A part of requests in time, 0 to 1."""
    low, value, high = _quantiles(draws)
    value -= ATTAINMENT_BIAS * 4.0 * value * (1.0 - value)
    below, above = (
        least + share * 4.0 * end * (1.0 - end)
        for (least, share), end in zip(ATTAINMENT_RESIDUALS, (low, high), strict=True)
    )
    return Interval(max(0.0, low - below), value, min(1.0, high + above), (low, high))


def latency(draws: Sequence[float]) -> Interval:
    """Seconds."""
    low, value, high = _quantiles(draws)
    return Interval(low / LATENCY_RESIDUAL, value, high * LATENCY_RESIDUAL + LATENCY_RESIDUAL_S, (low, high))


def utilisation(draws: Sequence[float]) -> Interval:
    """A part of the time, 0 to 1."""
    low, value, high = _quantiles(draws)
    return Interval(max(0.0, low - UTILISATION_RESIDUAL), value, min(1.0, high + UTILISATION_RESIDUAL), (low, high))


def _part(quantiles: Sequence[float], place: int) -> float:
    """The quantile at a place of `DRAWS`."""
    part = ((_FIRST + place) % DRAWS + 0.5) / DRAWS
    return float(np.interp(part, np.linspace(0.0, 1.0, len(quantiles)), quantiles))


def _quantiles(draws: Sequence[float]) -> tuple[float, float, float]:
    tail = (1.0 - COVERED) / 2.0
    low, value, high = np.quantile(draws, (tail, 0.5, 1.0 - tail))
    return float(low), float(value), float(high)
