"""Fixtures that several areas share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis_profiles
import onnx_models
import pytest
import yaml
from collector import freeze, without_cycles
from deployments import fallback_model, named_models, refusing_models
from deployments.own_models import bring
from serve_process import NO_CLUSTER, ROOT, ServeProcess

from benchmarks.ports import free_ports
from serve_app import wings

hypothesis_profiles.load_profile()

_TESTS = Path(__file__).parent
_CLUSTERS = ("clusters", "deployments", "examples")
"""As in the Makefile."""
_WITHOUT_CYCLES = frozenset(
    {"access", "api", "cache", "pipelines", "pools", "replica", "router", "telemetry", "transport", "versions"}
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Run the tests of what is left without a wing."""
    parser.addoption("--without-wing", choices=wings.WINGS, help="Run as if this wing were not installed.")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out tests of a wing that is not there."""
    wing = config.getoption("--without-wing")
    if wing is None or collection_path.suffix != ".py":
        return None
    folder = collection_path.relative_to(_TESTS).parts[0]
    own = folder.partition("_")[0] == wing
    return own or f"serve_app.{wing}" in collection_path.read_text("utf-8") or None


def pytest_configure(config: pytest.Config) -> None:
    """What holds for all tests, and for what they start."""
    if (wing := config.getoption("--without-wing")) is not None:
        sys.modules[f"serve_app.{wing}"] = None  # type: ignore[assignment] # the import system's way to block it
    # Ray starts a cluster for whoever asks it something: only `serve_process` starts any.
    os.environ[NO_CLUSTER] = "0"
    # A background job of a shell ignores SIGINT, and what it starts does so too: tests interrupt what they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What is there for as long as the tests run, half a million objects, is no matter of the collector of cycles."""
    gc.disable()
    try:
        return (yield)
    finally:
        freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # when Hypothesis has marked its tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A property test that fails has the time to say what failed: see `hypothesis_profiles.TIMEOUT_S`.

    Tests that need a wing are skipped without it.
    """
    wing = config.getoption("--without-wing")
    for item in items:
        if item.get_closest_marker("cluster") and item.path.relative_to(_TESTS).parts[0] not in _CLUSTERS:
            raise pytest.UsageError(f"{item.nodeid}: tests that start a cluster belong in one of {_CLUSTERS}")
        if wing is not None and any(mark.args == (wing,) for mark in item.iter_markers("wing")):
            item.add_marker(pytest.mark.skip(reason=f"run without {wing}"))
        if item.get_closest_marker("hypothesis") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(hypothesis_profiles.TIMEOUT_S))


@pytest.fixture
def collect_never() -> Iterator[None]:
    """Python's collector of cycles stays away: what goes goes because nobody holds it."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    yield
    if enabled:
        gc.enable()


@pytest.fixture
def no_cycles(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """However a request ends, what it held is free at once: the server leaves nothing to the collector of cycles."""
    with without_cycles():
        yield
        for phase in ("setup", "call"):
            caplog.get_records(phase).clear()  # they hold what was logged with its traceback
        caplog.clear()


@pytest.fixture(autouse=True)
def _leave_no_cycles(request: pytest.FixtureRequest) -> None:
    """Of all tests of what handles requests; commands end with their process."""
    folder = request.path.relative_to(_TESTS).parts[0]
    if folder in _WITHOUT_CYCLES and request.path.name != "test_commands.py":
        request.getfixturevalue("no_cycles")


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[onnx_models.Kind], Path]:
    """Makes the file of a tiny ONNX model by its kind, once per test session. Treat it as read-only.

    `onnx_models.make` writes one where a test wants it, e.g. at ``models/<name>/1/model.onnx``.
    """
    folder = tmp_path_factory.mktemp("onnx-models")

    def model_file(kind: onnx_models.Kind) -> Path:
        path = folder / kind / "1" / "model.onnx"
        return path if path.exists() else onnx_models.make(path, kind)

    return model_file


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """The demo's models, tiny ones, a user's, one with a fallback, two with free names, and two with narrow inputs.

    One real server for all tests that only ask it things. How it was started does not matter to them, and `serve-app
    run` is quicker than `serve run`.
    """
    folder = tmp_path_factory.mktemp("server")
    demo = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    args = demo["applications"][0]["args"]
    kinds: tuple[onnx_models.Kind, ...] = ("sum_diff", "fail_on_negative", "string_identity")
    for kind in kinds:
        onnx_models.make(folder / "models" / kind / "1" / "model.onnx", kind)
        args["models"].append({"name": kind, "path": str(folder / "models" / kind), "resources": {"cpus": 0.1}})
    args["models"] += [*bring(folder / "own"), fallback_model.bring(folder / "fallback")]
    args["models"] += [*named_models.bring(folder / "named"), *refusing_models.bring(folder / "refusing")]
    direct, direct_grpc = free_ports(2)
    args["router"] = {"limits": {"max_body": "4MiB"}, "http": {"port": direct}, "grpc": {"port": direct_grpc}}
    for model in args["models"]:
        model.setdefault("resources", {})["cpus"] = 0.1
        model["autoscaling"] = {"min_replicas": 1, "max_replicas": 1}
    with ServeProcess(args, folder, graceful=True) as running:
        yield running
