"""What the experiments have in common: curves, classes, overheads, and scenarios of one model."""

from __future__ import annotations

from collections.abc import Iterable

from serve_app.config.measured_curve import MeasuredCurve
from serve_app.config.profile_points import fit_affine
from serve_app.config.scenario_costs import capacity
from serve_app.scheduling.entry import Priority
from serve_app.scheduling.settings import ClassSettings, ModelScheduling
from serve_app.simulation.scenario import Affine, Curve, Noise, Overheads, Scenario, SimulatedModel, Stream

GPU = Affine(0.005, 0.001)
"""5 ms per batch and 1 ms per row: the shape of a model on a GPU."""

_WIDE_MS = ((1, 1.51), (8, 3.00), (32, 7.28), (64, 11.35))
WIDE = MeasuredCurve(
    (
        (
            0,
            tuple(rows for rows, _ in _WIDE_MS),
            tuple(1e-3 * ms for _, ms in _WIDE_MS),
            *fit_affine((rows, 1e-3 * ms) for rows, ms in _WIDE_MS),
        ),
    )
)
"""The benchmark model ``wide`` on one core, as measured."""

OVERHEADS = Overheads(request_s=0.0002, send_s=0.0005, answer_s=0.0005)
MAX_ROWS = 32
MODEL = "model"


def classes(min_share: float = 0.05) -> dict[Priority, ClassSettings]:
    """The three classes, the lower ones with a guaranteed share. Queues are bounded by deadlines alone."""
    return {
        priority: ClassSettings(1 << 20, 1 << 50, 10.0, min_share=0.0 if priority is Priority.HIGH else min_share)
        for priority in Priority
    }


def one_model(
    slo_s: float, *, curve: Curve = GPU, replicas: int = 1, max_rows: int = MAX_ROWS, policy: str = "auto"
) -> SimulatedModel:
    """A model whose target is the deadline of its requests."""
    return SimulatedModel(ModelScheduling(MODEL, max_rows, slo_s, policy=policy), curve, replicas)  # type: ignore[arg-type]


def rate_at(load: float, model: SimulatedModel) -> float:
    """Requests per second of one row that are this load; 1 is the most that the replicas do within the target."""
    return load * capacity(model)


def scenario(
    name: str,
    model: SimulatedModel,
    workload: Iterable[Stream],
    seconds: float,
    *,
    noise: Noise = Noise(),  # noqa: B008 - frozen
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
