"""The NetworkPolicies and the PodDisruptionBudget fit the pods of the RayService."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serve_app.cli.check import check_file

OWN = {"app.kubernetes.io/part-of": "serve-app"}
NODE_TYPE = "ray.io/node-type"


@pytest.fixture
def labels(ray_service: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The labels of head and worker pods: the template's, and the operator's that policies select by."""
    cluster = ray_service["spec"]["rayClusterConfig"]
    (worker,) = cluster["workerGroupSpecs"]
    return {
        kind: group["template"]["metadata"]["labels"] | {NODE_TYPE: kind}
        for kind, group in (("head", cluster["headGroupSpec"]), ("worker", worker))
    }


def test_policies_select_the_pods(
    labels: dict[str, dict[str, str]], network_policies: dict[str, dict[str, Any]]
) -> None:
    """One policy is for every pod, the other for the head, beside which the autoscaler runs."""
    selected = {
        name: [kind for kind, found in labels.items() if _selects(policy["spec"]["podSelector"], found)]
        for name, policy in network_policies.items()
    }
    assert selected == {"serve-app": ["head", "worker"], "serve-app-autoscaler": ["head"]}


def test_everything_not_named_is_dropped(network_policies: dict[str, dict[str, Any]]) -> None:
    """Both directions are governed, and no rule for incoming traffic is open to everybody."""
    spec = network_policies["serve-app"]["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    for rule in spec["ingress"]:
        assert all(any(selector.get("matchLabels") for selector in source.values()) for source in rule["from"])


def test_pods_of_the_cluster_reach_each_other(network_policies: dict[str, dict[str, Any]]) -> None:
    """Ray picks ports itself, so pods of the cluster may use any."""
    spec = network_policies["serve-app"]["spec"]
    assert {"from": [{"podSelector": {"matchLabels": OWN}}]} in spec["ingress"]
    assert {"to": [{"podSelector": {"matchLabels": OWN}}]} in spec["egress"]


def test_clients_reach_the_served_ports_only(
    ray_service: dict[str, Any], network_policies: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Clients get what the configuration serves and nothing of Ray's own; the operator gets the dashboard too."""
    path = tmp_path / "serve.yaml"
    path.write_text(ray_service["spec"]["serveConfigV2"], "utf-8")
    file = check_file(path, look_for_models=False)
    served = {port for port in (file.http_address[1], file.grpc_port) if port is not None}
    ports: dict[str, set[int]] = {}
    for rule in network_policies["serve-app"]["spec"]["ingress"]:
        for source in rule["from"]:
            for selector in source.values():
                for label in selector["matchLabels"]:
                    ports.setdefault(label, set()).update(port["port"] for port in rule.get("ports", []))
    assert ports["serve-app-client"] == served
    assert ports["app.kubernetes.io/name"] == {file.http_address[1], 8265}


def test_budget_protects_workers_and_lets_nodes_drain(
    ray_service: dict[str, Any], labels: dict[str, dict[str, str]], disruption_budget: dict[str, Any]
) -> None:
    """A worker always stays, and there is one more than must stay."""
    spec = disruption_budget["spec"]
    (group,) = ray_service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert [kind for kind, found in labels.items() if _selects(spec["selector"], found)] == ["worker"]
    assert 1 <= spec["minAvailable"] < group["minReplicas"]


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    wanted: dict[str, str] = selector["matchLabels"]
    return wanted.items() <= labels.items()
