"""The application that Serve is given, without a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import onnx_models
import pytest
import ray
from ray import serve
from triton_repositories import SUM_DIFF, add_model

from serve_app.app import build
from serve_app.composition import describe_models
from serve_app.composition.model import find_files
from serve_app.composition.profile import sha256
from serve_app.config.args import parse_args
from serve_app.config.names import ROUTER
from serve_app.config.profile import FORMAT, Machine, Memory, Profile
from serve_app.config.profile_points import Point, fit_points
from serve_app.deployments import register, replica_directory
from serve_app.deployments.router import RouterDeployment
from serve_app.errors import ConfigError, InvalidRequest
from serve_app.payloads import Execution


@pytest.fixture
def _on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Ray tells a replica of where it runs: Ray itself would start a cluster to answer."""
    context = SimpleNamespace(get_node_id=lambda: "node")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)


@pytest.fixture
def _in_a_cluster(_on_a_node: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's store, and what Serve tells a replica of its application."""
    kept: dict[bytes, bytes] = {}

    def put(key: bytes, value: bytes, **_: Any) -> None:
        kept[key] = value

    monkeypatch.setattr(register, "_internal_kv_get", lambda key, **_: kept.get(key))
    monkeypatch.setattr(register, "_internal_kv_put", put)
    monkeypatch.setattr(serve, "get_replica_context", lambda: SimpleNamespace(app_name="app"))


def test_replicas_keep_to_the_version_that_the_router_describes(tmp_path: Path) -> None:
    """A version that appears later must not be picked up by the replicas that happen to start later."""
    onnx_models.make(tmp_path / "m" / "7" / "model.onnx", "add_one")
    application = build({"models": [{"name": "m", "path": str(tmp_path / "m")}]})
    deployment = application._bound_deployment
    assert deployment.name == ROUTER
    _, infos, models = deployment.init_args
    onnx_models.make(tmp_path / "m" / "8" / "model.onnx", "add_one")
    (config,) = models["m"]._bound_deployment.init_args
    assert infos["m"].version == "7"
    assert find_files(config)[""].version == "7"


@pytest.mark.parametrize("path", ["m", "m/net.onnx"])
def test_a_model_without_versions_is_version_1(tmp_path: Path, path: str) -> None:
    """For clients; there is no version to keep replicas to."""
    onnx_models.make(tmp_path / "m" / "net.onnx", "add_one")
    application = build({"models": [{"name": "m", "path": str(tmp_path / path)}]})
    _, infos, models = application._bound_deployment.init_args
    (config,) = models["m"]._bound_deployment.init_args
    assert (infos["m"].version, infos["m"].file) == ("1", "net.onnx")
    assert find_files(config)[""].model_file == tmp_path / "m" / "net.onnx"


def test_models_of_a_repository_are_deployed(tmp_path: Path) -> None:
    """Each folder of it, as its `config.pbtxt` says."""
    text = SUM_DIFF + "instance_group { kind: KIND_CPU count: 2 }"
    for name in ("a", "b"):
        add_model(tmp_path, name, text, version=3)
    _, infos, models = build({"repository": str(tmp_path)})._bound_deployment.init_args
    assert [(info.name, info.version, info.max_rows) for info in infos.values()] == [("a", "3", 8), ("b", "3", 8)]
    (config,) = models["a"]._bound_deployment.init_args
    assert (config.version, config.resources.device, config.autoscaling.max_replicas) == (3, "cpu", 2)


def test_deployments_are_called_as_plainly_as_they_have_to_be(tmp_path: Path) -> None:
    """Models are called as their clients call them, and one may be called like the router."""
    onnx_models.make(tmp_path / "m" / "1" / "model.onnx", "add_one")
    names = ("ResNet50", "ResNet50 v2.1", "router")
    router = build({"models": [{"name": name, "path": str(tmp_path / "m")} for name in names]})._bound_deployment
    _, infos, models = router.init_args
    assert tuple(infos) == tuple(models) == names
    deployments = [models[name]._bound_deployment.name for name in names]
    assert deployments == ["ResNet50", "ResNet50-v2.1~d6b4332903", "router~74c9560404"]
    assert router.name == ROUTER


@pytest.mark.usefixtures("_on_a_node")
async def test_a_router_reports_load_by_deployment_and_takes_replicas_for_models(tmp_path: Path) -> None:
    """Serve knows deployments, clients know models, and the router both."""
    onnx_models.make(tmp_path / "m" / "1" / "model.onnx", "add_one")
    config = parse_args({"models": [{"name": "ResNet50 v2.1", "path": str(tmp_path / "m")}]})
    router = RouterDeployment(config, describe_models(config), {}, priors={})
    reported = await router.record_autoscaling_stats()
    name = "ResNet50-v2.1~d6b4332903"
    needs = {f"need_CPU_{name}", "need_CPU_router"}
    assert reported.keys() == {f"load_{name}", *needs, "busy", "idle_cores", "cores"}
    assert (reported[f"load_{name}"], reported[f"need_CPU_{name}"]) == (0.0, 0.25)
    replica_directory.directory.publish("ResNet50-v2.1~d6b4332903", {"r1": {}})
    await asyncio.sleep(0)
    transport = httpx.ASGITransport(router.__serve_build_asgi_app__())
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
        status = (await client.get("/status")).json()
    assert status["models"]["ResNet50 v2.1"]["replicas"] == ["r1"]


@pytest.mark.usefixtures("_in_a_cluster")
async def test_the_first_router_fails_on_what_it_cannot_read_and_later_ones_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever deploys sees what is wrong at once; what is served goes on although a router is replaced."""
    monkeypatch.setenv("SERVE_APP_CACHE", str(tmp_path / "cache"))
    onnx_models.make(tmp_path / "m" / "model.onnx", "image_logits")
    application = build({"models": [{"name": "m", "task": "image-classification", "path": str(tmp_path / "m")}]})
    config, infos, _ = application._bound_deployment.init_args

    def start() -> RouterDeployment:
        return RouterDeployment(config, infos, {}, **application._bound_deployment.init_kwargs)

    (tmp_path / "m").rename(tmp_path / "away")
    with pytest.raises(ConfigError, match="its files are not those of revision"):
        start()
    (tmp_path / "away").rename(tmp_path / "m")
    start()
    (tmp_path / "m").rename(tmp_path / "away")
    router = start()
    transport = httpx.ASGITransport(router.__serve_build_asgi_app__())
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
        refused = await client.post("/v1/models/m/predict", content=b"", headers={"Content-Type": "image/png"})
    assert refused.status_code == 503
    assert refused.json()["error"].startswith("model 'm': its files are not those of revision")


def test_routers_and_replicas_agree_on_what_is_cached(tmp_path: Path) -> None:
    """Both are given what tells the files of the model from others, where its answers are kept."""
    onnx_models.make(tmp_path / "m" / "7" / "model.onnx", "add_one")
    path = str(tmp_path / "m")
    models = [{"name": "m", "path": path, "cache": {}}, {"name": "n", "path": path}]
    router = build({"models": models})._bound_deployment
    deployments = router.init_args[2]
    replicas = {name: deployments[name]._bound_deployment.init_kwargs["identities"] for name in ("m", "n")}
    assert router.init_kwargs["identities"] == {"m": replicas["m"]}
    assert list(replicas["m"]) == [""]
    assert replicas["n"] == {}


def profiled(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """The arguments of an application with one model, that model with a variant, and its profile."""
    file = onnx_models.make(tmp_path / "m" / "1" / "model.onnx", "add_one")
    points = [
        Point.of([0.25], (0.95,), rows=rows, variant=variant) for variant in ("", "gone") for rows in (1, 4)
    ]  # fmt: skip
    measured: dict[str, Any] = {
        "format": FORMAT,
        "serve_app": "0.1.0",
        "measured": "2026-01-31T12:00:00+00:00",
        "model": "m",
        "task": "tensors",
        "version": "1",
        "files": {"": sha256(file), "gone": sha256(file)},
        "device": "cpu",
        "threads": 1,
        "machine": Machine(cpu="a", cores=2, system="Linux", python="3.12", runtime="1.23"),
        "memory": Memory(),
        "points": tuple(points),
        "fits": fit_points(points),
    }
    Profile(**(measured | changes)).write(tmp_path / "m.json")
    model = {"name": "m", "path": str(tmp_path / "m"), "profile": str(tmp_path / "m.json")}
    return {"models": [model | {"batching": {"max_rows": 4}}]}


def test_the_router_is_given_what_profiles_say(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It knows what batches cost before any replica does; variants that are not served are left out."""
    deployment = build(profiled(tmp_path))._bound_deployment
    assert deployment.init_kwargs["priors"] == {"m": [Execution(1, 0, 0.25), Execution(4, 0, 0.25)]}
    assert caplog.messages == []


def test_the_profile_of_another_model_stops_the_build(tmp_path: Path) -> None:
    """Before any replica starts."""
    with pytest.raises(ConfigError, match=r"m\.json: model: it is the profile of 'n', not of 'm'"):
        build(profiled(tmp_path, model="n"))


def test_a_profile_of_other_threads_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is better than nothing, and not what replicas will do."""
    args = profiled(tmp_path, threads=8)
    build(args)
    assert caplog.messages == []  # replicas decide themselves
    args["models"][0]["resources"] = {"threads": 1}
    build(args)
    note = f"model 'm': profile: {tmp_path}/m.json was measured with threads: 8, replicas have 1"
    assert caplog.messages == [note]


@pytest.mark.usefixtures("_on_a_node")
async def test_other_applications_are_told_of_unknown_variants(tmp_path: Path) -> None:
    """As clients are, before anything is queued."""
    onnx_models.make(tmp_path / "m" / "1" / "model.onnx", "add_one")
    config = parse_args({"models": [{"name": "m", "path": str(tmp_path / "m")}]})
    router = RouterDeployment(config, describe_models(config), {}, priors={})
    with pytest.raises(InvalidRequest, match="model 'm' has no variant 'light'"):
        await router.infer("m", {"x": np.zeros((1, 1), np.float32)}, variant="light")
