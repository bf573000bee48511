"""Autoscaling that follows the router's queue.

Serve counts calls to a deployment, and here one call is a bundle of many requests: its own numbers say little about
the backlog. The router reports rows queued and running per model (`record_autoscaling_stats`), and the
application-level policy below turns them into replicas. Serve still applies each deployment's bounds and delays.

The configuration names it: ``autoscaling_policy.policy_function: serve_app.deployments.autoscaling:scale_by_queue``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING, Any

from serve_app.scheduling.scaling import desired_replicas

if TYPE_CHECKING:
    from ray.serve._private.common import DeploymentID
    from ray.serve.config import AutoscalingContext

ROUTER = "router"
"""Name of the router's deployment. No model's deployment has it."""

_PREFIX = "load_"


def load_metric(deployment: str) -> str:
    """The name under which the router reports the rows, queued and running, of the model of a deployment."""
    return _PREFIX + deployment


def scale_by_queue(
    contexts: Mapping[DeploymentID, AutoscalingContext],
) -> tuple[dict[DeploymentID, int], dict[DeploymentID, dict[str, Any]]]:
    """Decide how many replicas each model should have.

    A model's load is summed over router replicas; each replica is meant to hold ``target_ongoing_requests`` rows of
    it (the configuration's ``target_queue``). Deployments that are left out keep the number they have.
    """
    reported: dict[str, Mapping[Any, float]] = {}
    for deployment, context in contexts.items():
        if deployment.name == ROUTER:
            reported = context.aggregated_metrics or {}
    decisions: dict[DeploymentID, int] = {}
    for deployment, context in contexts.items():
        per_router = reported.get(load_metric(deployment.name))
        if deployment.name == ROUTER or per_router is None:
            continue
        decisions[deployment] = desired_replicas(
            load_rows=ceil(sum(per_router.values())),
            target_rows=context.config.get_target_ongoing_requests(),
            current=context.target_num_replicas,
            minimum=context.capacity_adjusted_min_replicas,
            maximum=context.capacity_adjusted_max_replicas,
        )
    return decisions, {}
