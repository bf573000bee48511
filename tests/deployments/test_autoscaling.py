"""The policy by which Serve scales, on contexts of Serve's own class."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from serve_app.deployments.autoscaling import BUSY, IDLE_CORES, ROUTER, load_metric, scale_by_queue

MODEL = "m_digits"


def context(name: str, metrics: Mapping[str, list[float]], target: int = 1, minimum: int = 1) -> AutoscalingContext:
    """What Serve tells of a deployment whose replicas have reported these numbers."""
    deployment = DeploymentID(name, "app")
    replicas = [ReplicaID(f"r{number}", deployment) for number in range(max(map(len, metrics.values()), default=0))]
    return AutoscalingContext(
        deployment_id=deployment,
        deployment_name=name,
        app_name="app",
        current_num_replicas=target,
        target_num_replicas=target,
        running_replicas=replicas,
        total_num_requests=0.0,
        total_queued_requests=0.0,
        aggregated_metrics={key: dict(zip(replicas, values, strict=False)) for key, values in metrics.items()},
        raw_metrics={},
        capacity_adjusted_min_replicas=minimum,
        capacity_adjusted_max_replicas=2,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=None,
        config=AutoscalingConfig(min_replicas=minimum, max_replicas=2, target_ongoing_requests=64),
    )


@pytest.mark.parametrize(
    ("rows", "target", "minimum", "replica", "expected"),
    [
        ([16.0], 1, 1, {}, 1),
        ([40.0, 60.0], 1, 1, {}, 2),
        ([16.0], 1, 1, {BUSY: [0.95], IDLE_CORES: [0.5]}, 2),
        ([16.0], 1, 1, {BUSY: [0.95], IDLE_CORES: [0.0]}, 1),
        ([16.0], 1, 1, {BUSY: [0.5], IDLE_CORES: [1.0]}, 1),
        ([16.0], 2, 1, {BUSY: [0.7, 0.6], IDLE_CORES: [0.0, 0.1]}, 2),
        ([16.0], 2, 1, {BUSY: [1.0, 1.0], IDLE_CORES: [4.0, 4.0]}, 2),
        ([1.0], 2, 1, {BUSY: [0.1, 0.1], IDLE_CORES: [2.0, 2.0]}, 1),
        ([0.0], 1, 0, {BUSY: [0.01], IDLE_CORES: [2.0]}, 0),
    ],
)
def test_replicas_follow_the_queue_and_their_processes(
    rows: list[float], target: int, minimum: int, replica: dict[str, list[float]], expected: int
) -> None:
    """Whichever asks for more, within the bounds; a model that may sleep is not kept awake by its idle process."""
    contexts = [context(ROUTER, {load_metric(MODEL): rows}), context(MODEL, replica, target, minimum)]

    decisions, states = scale_by_queue({each.deployment_id: each for each in contexts})

    assert (decisions, states) == ({DeploymentID(MODEL, "app"): expected}, {})


def test_a_model_of_which_no_router_has_reported_stays_as_it_is() -> None:
    """A router that starts, or has died, is no reason to end replicas."""
    contexts = [context(ROUTER, {}), context(MODEL, {BUSY: [1.0], IDLE_CORES: [1.0]})]

    assert scale_by_queue({each.deployment_id: each for each in contexts}) == ({}, {})
