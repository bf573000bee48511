"""The policy by which Serve scales, on contexts of Serve's own class."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from serve_app.deployments.autoscaling import BUSY, CORES, IDLE_CORES, ROUTER, load_metric, scale_by_queue

MODEL = "m_digits"


def context(
    name: str, metrics: Mapping[str, list[float]], target: int = 1, minimum: int = 1, maximum: int = 2
) -> AutoscalingContext:
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
        capacity_adjusted_max_replicas=maximum,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=None,
        config=AutoscalingConfig(min_replicas=minimum, max_replicas=maximum, target_ongoing_requests=64),
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


@pytest.mark.parametrize(
    ("busy", "idle", "cores", "expected"),
    [
        ([0.5], 15.0, 16, 1),
        ([0.95], 12.0, 16, 2),
        ([0.95, 0.9], 8.0, 16, 3),
        ([0.95], 0.1, 16, 1),
        ([0.95], 1.0, 2, 1),
        ([0.9, 0.9, 0.9, 0.9], 1.0, 8, 4),
        ([0.2, 0.2, 0.1], 12.0, 16, 1),
        ([0.95], 12.0, None, 1),
    ],
)
def test_routers_follow_how_busy_they_are(busy: list[float], idle: float, cores: int | None, expected: int) -> None:
    """One more while cores are idle, and half of a node's cores at most."""
    told = {BUSY: busy, IDLE_CORES: [idle] * len(busy)} | ({} if cores is None else {CORES: [cores] * len(busy)})
    router = context(ROUTER, told, len(busy), maximum=8)

    assert scale_by_queue({router.deployment_id: router})[0] == {router.deployment_id: expected}


def test_a_number_of_routers_that_is_given_stays() -> None:
    """However busy they are."""
    router = context(ROUTER, {BUSY: [1.0, 1.0], IDLE_CORES: [9.0, 9.0], CORES: [16.0, 16.0]}, 2, 2, 2)

    assert scale_by_queue({router.deployment_id: router})[0] == {}
