"""The RayService: valid for KubeRay's schema, the demo's configuration inside, room for it, and locked down."""

from __future__ import annotations

import copy
import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ray._private import ray_constants

from serve_app.cli.check import check_file
from serve_app.config.args import AppArgs
from serve_app.config.file import ServeFile
from serve_app.config.router import GrpcConfig, HttpConfig
from serve_app.errors import ConfigError

SCHEMAS = os.environ.get("KUBERAY_SCHEMAS")
RESTRICTED_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.fixture
def serve_file(ray_service: dict[str, Any], tmp_path: Path) -> ServeFile:
    """The configuration inside, checked as ``serve-app validate`` checks a file."""
    return _checked(ray_service["spec"]["serveConfigV2"], tmp_path)


@pytest.fixture
def pods(ray_service: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The pod template of the head and of every worker group, by name."""
    cluster = ray_service["spec"]["rayClusterConfig"]
    return {"head": cluster["headGroupSpec"]["template"]} | {
        group["groupName"]: group["template"] for group in cluster["workerGroupSpecs"]
    }


@pytest.mark.skipif(not SCHEMAS, reason="KUBERAY_SCHEMAS does not name a folder with rayservice-ray-v1.json")
class TestSchema:
    """Against the schema of KubeRay's custom resource."""

    def test_manifest_is_valid(self, ray_service: dict[str, Any]) -> None:
        """No key is unknown, missing or of the wrong type."""
        assert _schema_errors(ray_service) == []

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            (("spec", "rayClusterConfig", "authOption"), {"mode": "token"}),
            (("spec", "rayClusterConfig", "authOptions", "mode"), "tokens"),
            (("spec", "rayClusterConfig", "headGroupSpec", "rayStartParams", "num-cpus"), 0),
            (("spec", "upgradeStrategy"), "NewCluster"),
        ],
        ids=["unknown-key", "unknown-mode", "number-for-text", "text-for-mapping"],
    )
    def test_schema_finds_mistakes(self, ray_service: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
        """The schema in use is strict enough to be worth passing."""
        parent = ray_service
        for step in path[:-1]:
            parent = parent[step]
        parent[path[-1]] = value
        assert len(_schema_errors(ray_service)) == 1


def test_configuration_differs_from_the_demo_only_where_declared(root: Path, serve_file: ServeFile) -> None:
    """Whatever is not named here is the same in both files."""
    demo = check_file(root / "configs" / "demo.yaml", look_for_models=False)
    differences = {
        "http_options.host": ("127.0.0.1", "0.0.0.0"),
        "controller_options.runtime_env.env_vars.RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": ("1", None),
        "controller_options.runtime_env.env_vars.RAY_SERVE_HAPROXY_MAXCONN": (None, "8192"),
        # Who runs a cluster scrapes Serve's own metrics too.
        "controller_options.runtime_env.env_vars.RAY_SERVE_HAPROXY_METRICS_ENABLED": ("0", None),
    }
    document = copy.deepcopy(dict(demo.document))
    # The service leads to Serve's ports only, and to those of any node.
    assert document["applications"][0]["args"].pop("router") == {"http": {"port": 8100}, "grpc": {"port": 9000}}
    document["grpc_options"] = serve_file.document["grpc_options"]
    assert dict(_differences(document, serve_file.document)) == differences
    router = demo.args.router.model_copy(update={"http": HttpConfig(), "grpc": GrpcConfig()})
    assert demo.args.model_copy(update={"router": router}) == serve_file.args


@pytest.mark.parametrize(
    ("right", "wrong", "problem"),
    [
        ("route_prefix: /", "route_prefx: /", "route_prefx"),
        ("max_rows: 32", "max_row: 32", "max_row"),
        ("port: 8000", "port: 8000\n  port: 8001", "twice"),
    ],
    ids=["serve-key", "our-key", "repeated-key"],
)
def test_mistakes_inside_the_configuration_are_found(
    ray_service: dict[str, Any], tmp_path: Path, right: str, wrong: str, problem: str
) -> None:
    """To Kubernetes the configuration is mere text, so the check here must see into it."""
    text = ray_service["spec"]["serveConfigV2"]
    assert right in text
    with pytest.raises(ConfigError, match=problem):
        _checked(text.replace(right, wrong, 1), tmp_path)


def test_every_process_gets_the_configured_environment(serve_file: ServeFile, pods: dict[str, dict[str, Any]]) -> None:
    """Head and workers have the variables of the fast data path, and usage statistics are off."""
    configured = serve_file.document["controller_options"]["runtime_env"]["env_vars"]
    expected = {name: configured | {"RAY_USAGE_STATS_ENABLED": "0"} for name in pods}
    found = {
        name: {variable["name"]: variable["value"] for variable in _container(pod)["env"]} for name, pod in pods.items()
    }
    assert expected == found


def test_workers_hold_what_the_configuration_asks_for(ray_service: dict[str, Any], serve_file: ServeFile) -> None:
    """The smallest deployment fits the fewest workers, the largest the most, and each replica fits a worker."""
    (group,) = ray_service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    cpus = int(_container(group["template"])["resources"]["limits"]["cpu"])
    fewest, most, largest_replica = _cpu_demand(serve_file.args)
    assert largest_replica <= cpus
    assert fewest <= cpus * group["minReplicas"]
    assert most <= cpus * group["maxReplicas"]
    assert {model.resources.device for model in serve_file.args.models} <= {"auto", "cpu"}


def test_pods_are_given_time_to_drain(serve_file: ServeFile, pods: dict[str, dict[str, Any]]) -> None:
    """Kubernetes kills a pod only after Ray has drained the node and the models have finished their work."""
    models = max(model.health.drain_timeout_s for model in serve_file.args.models)
    drain = ray_constants.RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S + models
    assert [name for name, pod in pods.items() if pod["spec"]["terminationGracePeriodSeconds"] <= drain] == []


def test_pods_keep_to_the_restricted_standard(ray_service: dict[str, Any], pods: dict[str, dict[str, Any]]) -> None:
    """Nothing runs as root, gains privileges or keeps a capability; only the head may talk to Kubernetes."""
    options = ray_service["spec"]["rayClusterConfig"]["autoscalerOptions"]
    assert options["securityContext"] == RESTRICTED_CONTAINER
    for name, pod in pods.items():
        context = pod["spec"]["securityContext"]
        assert (context["runAsNonRoot"], context["runAsUser"]) == (True, 1000)
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert _container(pod)["securityContext"] == RESTRICTED_CONTAINER
        assert pod["spec"].get("automountServiceAccountToken", True) == (name == "head")


def test_ray_is_guarded_by_a_token(ray_service: dict[str, Any]) -> None:
    """Who reaches the dashboard can run code, so it asks for a token; nothing is exposed outside the cluster."""
    cluster = ray_service["spec"]["rayClusterConfig"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"].get("serviceType", "ClusterIP") == "ClusterIP"
    assert not cluster["headGroupSpec"].get("enableIngress", False)


def test_ray_version_is_the_pinned_one(
    root: Path, ray_service: dict[str, Any], pods: dict[str, dict[str, Any]]
) -> None:
    """Manifest, package and image agree on Ray's version, and all pods run the same image."""
    cluster = ray_service["spec"]["rayClusterConfig"]
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    assert f"ray[serve]=={cluster['rayVersion']}" in project["dependencies"]
    assert f"ARG BASE=rayproject/ray:{cluster['rayVersion']}-" in (root / "Dockerfile").read_text("utf-8")
    assert {_container(pod)["image"] for pod in pods.values()} == {f"serve-app:{project['version']}"}


def _container(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def _checked(text: str, folder: Path) -> ServeFile:
    path = folder / "serve.yaml"
    path.write_text(text, "utf-8")
    return check_file(path, look_for_models=False)


def _schema_errors(manifest: dict[str, Any]) -> list[str]:
    schema = json.loads(Path(SCHEMAS or "", "rayservice-ray-v1.json").read_text("utf-8"))
    plain = json.loads(json.dumps(manifest))
    return [
        f"{error.json_path}: {error.message}" for error in jsonschema.Draft202012Validator(schema).iter_errors(plain)
    ]


def _differences(left: Any, right: Any, place: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Places where two documents differ, with both values; ``None`` for a key that is not there."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in left | right:
            yield from _differences(left.get(key), right.get(key), f"{place}.{key}" if place else key)
    elif left != right:
        yield place, (left, right)


def _cpu_demand(args: AppArgs) -> tuple[float, float, float]:
    """CPUs of the smallest deployment and of the largest, and of the largest replica."""
    fewest, most = args.router.fewest * args.router.cpus, args.most_routers() * args.router.cpus
    for model in args.models:
        fewest += max(model.autoscaling.min_replicas, model.autoscaling.initial_replicas or 0) * model.resources.cpus
        most += model.most_replicas * model.resources.cpus
    return fewest, most, max(args.router.cpus, *(model.resources.cpus for model in args.models))
