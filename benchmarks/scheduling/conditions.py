"""What the experiments have in common: curves, classes, overheads, noise, and scenarios of one model.

Everything is in absolute seconds, as a real server was measured: see `docs/benchmarks/calibration.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from serve_app.config.profile_points import fit_affine
from serve_app.domain.priority import Priority
from serve_app.scheduling.settings import ClassSettings, ModelScheduling
from serve_app_simulator.measured_curve import MeasuredCurve
from serve_app_simulator.scenario import Affine, Curve, Noise, Overheads, Scenario, SimulatedModel, Stream
from serve_app_simulator.scenarios.costs import capacity

TYPICAL = Affine(0.025, 0.005)
"""25 ms per batch and 5 ms per row: a model of tens of milliseconds, for which a batch pays."""
LIGHT = Affine(0.005, 0.001)
"""A fifth of it, for video: frames come faster than answers of a typical model."""
L1_S = TYPICAL(1)
"""What one row takes, L(1): deadlines are multiples of it."""


def measured(points_ms: Sequence[tuple[int, float]]) -> MeasuredCurve:
    """Straight lines through the milliseconds of batches of so many rows."""
    rows = tuple(rows for rows, _ in points_ms)
    seconds = tuple(1e-3 * ms for _, ms in points_ms)
    return MeasuredCurve(((0, rows, seconds, *fit_affine(zip(rows, seconds, strict=True))),))


WIDE = measured(
    (
        (1, 2.982), (2, 3.493), (3, 3.725), (4, 3.755), (6, 4.018), (8, 4.802), (12, 6.292), (16, 7.673),
        (24, 11.035), (32, 13.638), (48, 19.799), (64, 26.089), (96, 38.072), (128, 51.824),
    )
)  # fmt: skip
"""The benchmark model ``wide`` on one core: means of ``measured[].batch_s`` in `docs/benchmarks/calibration.json`."""
MINILM = measured(
    (
        (1, 5.5), (2, 9.389), (3, 13.207), (4, 17.131), (6, 25.006), (8, 32.13), (12, 47.603), (16, 63.059),
        (24, 93.884), (32, 125.547),
    )
)  # fmt: skip
"""The model ``minilm`` on one core, from the same file."""

OVERHEADS = Overheads(
    request_s=0.0019, send_s=0.00085, answer_s=0.0027, between_s=0.0009, scatter=0.5, router_s=0.00013
)
"""What a server with a router adds, from the calibration: ways and pauses are its means over both models.

With sigma 0.5 the 99th percentile of a way is 3.2 times its median, which is about what the calibration's stalls at a
busy router add. A small request costs a router 130 us (`docs/performance.md`).
"""
NOISE = Noise("lognormal", 0.08)
"""Profiles of one model scatter by 3 to 11%."""
MAX_ROWS = 32
MODEL = "model"


@dataclass(frozen=True, slots=True)
class ByLength:
    """A fixed cost and one per row that grows with the cost bucket.

    Attributes:
        alpha_s: Of a batch.
        beta_s: Of a row at the reference bucket.
        reference: A bucket.
    """

    alpha_s: float
    beta_s: float
    reference: int

    def __call__(self, rows: int, bucket: int = 0) -> float:
        """Seconds."""
        return self.alpha_s + self.beta_s * rows * (bucket or self.reference) / self.reference


def classes(min_share: float = 0.05) -> dict[Priority, ClassSettings]:
    """The three classes, the lower ones with a guaranteed share. Queues are bounded by deadlines alone."""
    return {
        priority: ClassSettings(1 << 20, 1 << 50, 10.0, min_share=0.0 if priority is Priority.HIGH else min_share)
        for priority in Priority
    }


def one_model(
    slo_s: float, *, curve: Curve = TYPICAL, replicas: int = 1, max_rows: int = MAX_ROWS, policy: str = "auto"
) -> SimulatedModel:
    """A model whose target is the deadline of its requests."""
    return SimulatedModel(ModelScheduling(MODEL, max_rows, slo_s, policy=policy), curve, replicas)  # type: ignore[arg-type]


def rate_at(load: float, model: SimulatedModel) -> float:
    """Requests per second of one row that are this load; 1 is the most that the replicas do within the target."""
    return load * capacity(model, OVERHEADS.between_s * OVERHEADS.mean_factor)


def scenario(
    name: str,
    model: SimulatedModel,
    workload: Iterable[Stream],
    seconds: float,
    *,
    noise: Noise = NOISE,
    min_share: float = 0.05,
    routers: int = 1,
    warm_up_s: float = 1.0,
) -> Scenario:
    """One model under a workload, with everybody's overheads."""
    return Scenario(
        name,
        (model,),
        tuple(workload),
        seconds + warm_up_s,
        classes(min_share),
        overheads=OVERHEADS,
        noise=noise,
        routers=routers,
        warm_up_s=warm_up_s,
    )
