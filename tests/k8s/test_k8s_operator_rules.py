"""What the KubeRay operator refuses although its schema allows it.

The rules are those of ``ray-operator/controllers/ray/utils/validation.go`` (KubeRay 1.7), as far as they concern a
RayService.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

NAME_LENGTH = 47
"""Longest name of a RayService: the operator adds its own endings to it."""

RESOURCE_PARAMETERS = ("num-cpus", "num-gpus", "memory", "resources")
REDIS_VARIABLES = ("REDIS_PASSWORD", "RAY_REDIS_ADDRESS")
AUTOSCALER_VARIABLE = "RAY_enable_autoscaler_v2"
OLDEST_RAY_WITH_TOKENS = (2, 52, 0)
UPGRADES = ("NewCluster", "NewClusterWithIncrementalUpgrade", "None")


def refusals(manifest: dict[str, Any]) -> Iterator[str]:
    """Reasons for which the operator would refuse a RayService."""
    name = manifest["metadata"]["name"]
    if len(name) > NAME_LENGTH:
        yield f"name: longer than {NAME_LENGTH}"
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        yield "name: not a DNS-1035 label"
    spec = manifest["spec"]
    cluster = spec["rayClusterConfig"]
    yield from _upgrade(spec, cluster)
    yield from _authentication(cluster)
    yield from _head(cluster)
    groups = [("head", cluster["headGroupSpec"])]
    groups += [(group["groupName"], group) for group in cluster["workerGroupSpecs"]]
    for name, group in groups:
        yield from _group(name, group, cluster)
    for group in cluster["workerGroupSpecs"]:
        fewest, most = group.get("minReplicas", 0), group.get("maxReplicas", 2**31 - 1)
        if not fewest <= group.get("replicas", fewest) <= most:
            yield f"{group['groupName']}: replicas outside minReplicas and maxReplicas"


def _upgrade(spec: dict[str, Any], cluster: dict[str, Any]) -> Iterator[str]:
    strategy = spec.get("upgradeStrategy", {})
    if strategy.get("type", "NewCluster") not in UPGRADES:
        yield "upgradeStrategy: unknown type"
    if strategy.get("type") == "NewClusterWithIncrementalUpgrade":
        options = strategy.get("clusterUpgradeOptions", {})
        if not cluster.get("enableInTreeAutoscaling", False):
            yield "upgradeStrategy: incremental upgrades need the autoscaler"
        if not options.get("gatewayClassName") or options.get("intervalSeconds", 0) <= 0:
            yield "upgradeStrategy: incomplete clusterUpgradeOptions"
        if not 0 <= options.get("stepSizePercent", -1) <= options.get("maxSurgePercent", 100) <= 100:
            yield "upgradeStrategy: percentages"


def _authentication(cluster: dict[str, Any]) -> Iterator[str]:
    options = cluster.get("authOptions", {})
    if options.get("mode") == "token":
        version = cluster.get("rayVersion", "")
        if not re.fullmatch(r"\d+\.\d+\.\d+", version):
            yield "authOptions: no rayVersion"
        elif tuple(int(part) for part in version.split(".")) < OLDEST_RAY_WITH_TOKENS:
            yield "authOptions: Ray is too old for tokens"
    if options.get("enableK8sTokenAuth"):
        yield "authOptions: enableK8sTokenAuth is not for a RayService"


def _head(cluster: dict[str, Any]) -> Iterator[str]:
    head = cluster["headGroupSpec"]
    if head.get("headService", {}).get("metadata", {}).get("name"):
        yield "head: headService has a name"
    variables = _variables(head)
    if any(variable in variables for variable in REDIS_VARIABLES):
        yield "head: Redis belongs into gcsFaultToleranceOptions"
    autoscaling = cluster.get("enableInTreeAutoscaling", False)
    if AUTOSCALER_VARIABLE in variables and (not autoscaling or "version" in cluster.get("autoscalerOptions", {})):
        yield f"head: {AUTOSCALER_VARIABLE} beside autoscalerOptions.version, or without the autoscaler"


def _group(name: str, group: dict[str, Any], cluster: dict[str, Any]) -> Iterator[str]:
    parameters = group.get("rayStartParams", {})
    if not group["template"]["spec"]["containers"]:
        yield f"{name}: no container"
    if not all(isinstance(value, str) for value in parameters.values()):
        yield f"{name}: rayStartParams must be text"
    if "labels" in parameters:
        yield f"{name}: labels in rayStartParams"
    if group.get("resources") and any(parameters.get(key) for key in RESOURCE_PARAMETERS):
        yield f"{name}: resources in rayStartParams and in the group"
    second = (
        cluster.get("enableInTreeAutoscaling", False) and cluster.get("autoscalerOptions", {}).get("version") == "v2"
    )
    if second and group["template"]["spec"].get("restartPolicy", "Never") != "Never":
        yield f"{name}: restartPolicy with autoscaler v2"
    if "priority" in group and not second:
        yield f"{name}: priority without autoscaler v2"


def _variables(group: dict[str, Any]) -> set[str]:
    return {variable["name"] for variable in group["template"]["spec"]["containers"][0].get("env", [])}


def test_operator_accepts_the_manifest(ray_service: dict[str, Any]) -> None:
    """None of the rules refuses what this repository ships."""
    assert list(refusals(ray_service)) == []


def _cluster(manifest: dict[str, Any]) -> dict[str, Any]:
    cluster = manifest["spec"]["rayClusterConfig"]
    assert isinstance(cluster, dict)
    return cluster


def _worker(manifest: dict[str, Any]) -> dict[str, Any]:
    worker = _cluster(manifest)["workerGroupSpecs"][0]
    assert isinstance(worker, dict)
    return worker


def _head_group(manifest: dict[str, Any]) -> dict[str, Any]:
    head = _cluster(manifest)["headGroupSpec"]
    assert isinstance(head, dict)
    return head


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda m: m["metadata"].update(name="Serve_App"), "name: not a DNS-1035 label"),
        (lambda m: m["metadata"].update(name="a" * 48), "name: longer than 47"),
        (lambda m: m["spec"]["upgradeStrategy"].update(type="Rolling"), "upgradeStrategy: unknown type"),
        (lambda m: _cluster(m).update(rayVersion="2.51.0"), "authOptions: Ray is too old for tokens"),
        (lambda m: _cluster(m).pop("rayVersion"), "authOptions: no rayVersion"),
        (lambda m: _worker(m).update(minReplicas=5), "cpu: replicas outside minReplicas and maxReplicas"),
        (
            lambda m: _head_group(m).update(resources={"CPU": "1"}),
            "head: resources in rayStartParams and in the group",
        ),
        (lambda m: _head_group(m)["rayStartParams"].update({"num-cpus": 0}), "head: rayStartParams must be text"),
        (lambda m: _worker(m)["rayStartParams"].update(labels="a=b"), "cpu: labels in rayStartParams"),
        (
            lambda m: _worker(m)["template"]["spec"].update(restartPolicy="Always"),
            "cpu: restartPolicy with autoscaler v2",
        ),
        (
            lambda m: _head_group(m).update(headService={"metadata": {"name": "mine"}}),
            "head: headService has a name",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rules_find_mistakes(
    ray_service: dict[str, Any], spoil: Callable[[dict[str, Any]], object], reason: str
) -> None:
    """Each rule refuses what it is there for, and nothing else does."""
    spoil(ray_service)
    assert [reason] == list(refusals(ray_service))
