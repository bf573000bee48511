"""Autoscaling that follows the router's queue, and how busy replicas are.

Serve counts calls to a deployment, and here one call is a bundle of many requests: its own numbers say little about
the backlog. The router reports rows queued and running per model, each replica how busy its process is
(`record_autoscaling_stats`), and the application-level policy below turns them into replicas. Serve still applies each
deployment's bounds and delays.

The configuration names it: ``autoscaling_policy.policy_function: serve_app.deployments.autoscaling:scale_by_queue``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING, Any

from serve_app.scheduling.scaling import busy_replicas, desired_replicas, routers_on

if TYPE_CHECKING:
    from ray.serve._private.common import DeploymentID
    from ray.serve.config import AutoscalingContext

ROUTER = "router"
"""Name of the router's deployment. No model's deployment has it."""

BUSY, IDLE_CORES, CORES = "busy", "idle_cores", "cores"
"""What a replica or a router reports: the part of the time for which it computes, the cores of its node that nobody
uses, and how many cores it may use in all."""

_PREFIX = "load_"


def load_metric(deployment: str) -> str:
    """The name under which the router reports the rows, queued and running, of the model of a deployment."""
    return _PREFIX + deployment


def scale_by_queue(
    contexts: Mapping[DeploymentID, AutoscalingContext],
) -> tuple[dict[DeploymentID, int], dict[DeploymentID, dict[str, Any]]]:
    """Decide how many replicas each model should have.

    A model's load is summed over router replicas; each replica is meant to hold ``target_ongoing_requests`` rows of
    it (the configuration's ``target_queue``). A light model never queues that many: its replica is one process, which
    decodes and runs on one core. So a replica that is busy most of the time gets another one while cores are idle.
    Routers follow how busy they are alone, and leave half of a node's cores to replicas. Deployments that are left out
    keep the number they have.
    """
    reported: dict[str, Mapping[Any, float]] = {}
    decisions: dict[DeploymentID, int] = {}
    for deployment, context in contexts.items():
        if deployment.name == ROUTER:
            reported = context.aggregated_metrics or {}
            least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
            if least < most and reported.get(BUSY):
                most = max(least, routers_on(int(max(reported.get(CORES, {}).values(), default=1)), most))
                decisions[deployment] = max(least, min(_busier(reported, context.target_num_replicas), most))
    for deployment, context in contexts.items():
        per_router = reported.get(load_metric(deployment.name))
        if deployment.name == ROUTER or per_router is None:
            continue
        current, maximum = context.target_num_replicas, context.capacity_adjusted_max_replicas
        wanted = desired_replicas(
            load_rows=ceil(sum(per_router.values())),
            target_rows=context.config.get_target_ongoing_requests(),
            current=current,
            minimum=context.capacity_adjusted_min_replicas,
            maximum=maximum,
        )
        own = context.aggregated_metrics or {}
        if wanted and own.get(BUSY):
            wanted = max(wanted, min(_busier(own, current), maximum))
        decisions[deployment] = wanted
    return decisions, {}


def _busier(reported: Mapping[str, Mapping[Any, float]], current: int) -> int:
    return busy_replicas(reported[BUSY].values(), max(reported.get(IDLE_CORES, {}).values(), default=0.0), current)
