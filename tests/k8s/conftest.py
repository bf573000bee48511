"""The manifests of ``k8s/``, read more strictly than Kubernetes would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """Where the repository is checked out."""
    return ROOT


@pytest.fixture
def read_manifests(root: Path) -> Callable[[str], list[dict[str, Any]]]:
    """Reads every document of a file of ``k8s/``, refusing keys that stand twice in a mapping."""

    def read(name: str) -> list[dict[str, Any]]:
        text = (root / "k8s" / name).read_text("utf-8")
        repeated = [key for node in yaml.compose_all(text, yaml.SafeLoader) for key in _repeated_keys(node)]
        assert repeated == [], f"{name}: keys that stand twice"
        return list(yaml.safe_load_all(text))

    return read


@pytest.fixture
def ray_service(read_manifests: Callable[[str], list[dict[str, Any]]]) -> dict[str, Any]:
    """The RayService."""
    (manifest,) = read_manifests("rayservice.yaml")
    return manifest


@pytest.fixture
def network_policies(read_manifests: Callable[[str], list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The NetworkPolicies by name."""
    return {manifest["metadata"]["name"]: manifest for manifest in read_manifests("network-policy.yaml")}


@pytest.fixture
def disruption_budget(read_manifests: Callable[[str], list[dict[str, Any]]]) -> dict[str, Any]:
    """The PodDisruptionBudget."""
    (manifest,) = read_manifests("pod-disruption-budget.yaml")
    return manifest


def _repeated_keys(node: yaml.Node | None) -> Iterator[str]:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                yield f"{key.value} in line {key.start_mark.line + 1}"
            seen.add(key.value)
            yield from _repeated_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _repeated_keys(item)
