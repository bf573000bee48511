"""References to models in registries: Hugging Face's Hub and MLflow, asked once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import onnx_models
import pytest
from hub import serving, serving_hub
from mlflow import MlflowClient

from serve_app.composition.locate import resolve_model
from serve_app.composition.references import is_pinned, pin_models, pin_path
from serve_app.config.args import parse_args
from serve_app.errors import ConfigError

_IN_A_PROCESS = """
import json, sys
from serve_app.composition.locate import resolve_model
from serve_app.composition.references import pin_path
from serve_app.errors import ConfigError

for line in sys.stdin:
    step, path = json.loads(line)
    try:
        if step == "pin":
            told = pin_path(path)
        else:
            found = resolve_model(path)
            told = [found.file, *sorted(str(file.relative_to(found.folder)) for file in found.files())]
    except ConfigError as error:
        told = {"problems": list(error.problems)}
    print(json.dumps(told), flush=True)
"""
"""The library of the Hub reads where that is once, when it is imported: a process for each hub."""


class _Process:
    """A process that pins and resolves, and tells what it found."""

    def __init__(self, hub: str, cache: Path) -> None:
        # The variables of a proxy must not lead away from this machine.
        variables = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        variables |= {"HF_ENDPOINT": hub, "SERVE_APP_CACHE": str(cache), "HF_HOME": str(cache / "hub")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _IN_A_PROCESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
        )

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask(self, step: str, path: str) -> Any:
        """What a step gives."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([step, path]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def test_a_repository_is_pinned_to_its_commit_and_copied_once(tmp_path: Path) -> None:
    """A branch moves on; what was pinned stays, and a copy of it is used without asking the Hub."""
    model = onnx_models.make(tmp_path / "made.onnx", "add_one").read_bytes()
    files = {"onnx/model.onnx": model, "config.json": b"{}", "tokenizer.json": b"{}", "README.md": b"-"}
    with serving_hub() as hub, _Process(hub.url, tmp_path) as process:
        first = hub.push("acme/flowers", files)
        pinned = f"hf://acme/flowers@{first}"
        assert process.ask("pin", "hf://acme/flowers") == pinned
        second = hub.push("acme/flowers", {**files, "config.json": b'{"a": 1}'})
        assert process.ask("pin", "hf://acme/flowers@main") == f"hf://acme/flowers@{second}"
        assert process.ask("pin", "hf://acme/flowers@main/onnx/model.onnx").endswith(f"@{second}/onnx/model.onnx")
        told = process.ask("resolve", pinned)
        assert told == ["onnx/model.onnx", "config.json", "onnx/model.onnx", "tokenizer.json"]
        hub.asked.clear()
        with _Process(hub.url, tmp_path) as another:
            assert another.ask("pin", pinned) == pinned
            assert another.ask("resolve", pinned) == told
        assert not hub.asked


def test_what_the_hub_does_not_have_is_one_line(tmp_path: Path) -> None:
    """An unknown repository, revision or file."""
    with serving_hub() as hub, _Process(hub.url, tmp_path) as process:
        commit = hub.push("acme/flowers", {"config.json": b"{}"})
        for path, part in (
            ("hf://acme/none", "not found"),
            ("hf://acme/flowers@nope", "revision not found"),
            ("hf://flowers", "namespace/name"),
        ):
            (line,) = process.ask("pin", path)["problems"]
            assert line.startswith(f"{path}: cannot be resolved: "), line
            assert part in line, line
        (line,) = process.ask("resolve", f"hf://acme/flowers@{commit}")["problems"]
        assert "holds no <version>/model.onnx" in line


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """MLflow's registry in a folder."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/runs")
    monkeypatch.delenv("MLFLOW_REGISTRY_URI", raising=False)
    return MlflowClient()


def _register(registry: MlflowClient, name: str, folder: Path) -> str:
    folder.mkdir(parents=True)
    onnx_models.make(folder / "model.onnx", "add_one")
    (folder / "MLmodel").write_text("flavors: {onnx: {data: model.onnx}}\n", encoding="utf-8")
    return str(registry.create_model_version(name, source=f"file://{folder}").version)


def test_an_alias_of_mlflow_is_resolved_once(registry: MlflowClient, tmp_path: Path) -> None:
    """The alias moves on; the configuration keeps the version that it named."""
    registry.create_registered_model("flowers")
    for number in (1, 2):
        version = _register(registry, "flowers", tmp_path / "artifacts" / str(number))
        registry.set_registered_model_alias("flowers", "stable", version)
        assert pin_path("models:/flowers@stable") == str(tmp_path / "artifacts" / version)
    config = parse_args(
        {
            "models": [
                {
                    "name": "a",
                    "path": "models:/flowers@stable",
                    "variants": [{"name": "old", "path": "models:/flowers/1"}],
                },
                {"name": "b", "path": "models/b"},
            ]
        }
    )
    first, second = pin_models(config).models
    assert (first.path, first.variants[0].path) == (f"{tmp_path}/artifacts/2", f"{tmp_path}/artifacts/1")
    assert second == config.models[1]
    assert resolve_model("models:/flowers/1").model_file == tmp_path / "artifacts" / "1" / "model.onnx"


def test_what_a_run_has_logged_is_found(registry: MlflowClient, tmp_path: Path) -> None:
    """A version that is registered under its run is where that run has put it."""
    model = onnx_models.make(tmp_path / "model.onnx", "add_one")
    run = registry.create_run(registry.create_experiment("training")).info.run_id
    registry.log_artifact(run, str(model), "model")
    registry.create_registered_model("flowers")
    registry.create_model_version("flowers", source=f"runs:/{run}/model", run_id=run)
    assert resolve_model("models:/flowers/1").model_file.read_bytes() == model.read_bytes()


def test_what_the_registry_does_not_have_is_told_of_every_model(registry: MlflowClient) -> None:
    """One line for each reference, with the model that has it."""
    registry.create_registered_model("flowers")
    paths = [
        "models:/flowers/3",
        "models:/flowers@stable",
        "models:/flowers",
        "models:/flowers/latest",
        "models:/a@b/1",
    ]
    models = [{"name": f"m{at}", "path": path} for at, path in enumerate(paths)]
    with pytest.raises(ConfigError) as caught:
        pin_models(parse_args({"models": models}))
    lines = caught.value.problems
    assert [line.split(": ")[0] for line in lines] == [f"model 'm{at}'" for at in range(len(paths))]
    assert all(path in line for path, line in zip(paths, lines, strict=True))
    assert all("expected models:/name/3, a version's number, or models:/name@alias" in line for line in lines[2:])


class _Artifacts(SimpleHTTPRequestHandler):
    """MLflow's way to artifacts: a listing of one folder, and a file."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        root, _, inside = url.path.partition("/api/2.0/mlflow-artifacts/artifacts")
        assert not root
        if inside:
            self.path = inside
            super().do_GET()
            return
        folder = Path(self.directory) / parse_qs(url.query)["path"][0]
        entries = sorted(folder.iterdir()) if folder.is_dir() else []
        files = [
            {
                "path": item.name,
                "is_dir": item.is_dir(),
                **({} if item.is_dir() else {"file_size": item.stat().st_size}),
            }
            for item in entries
        ]
        body = json.dumps({"files": files}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of artifacts, and MLflow's server in front of it."""
    folder = tmp_path / "artifacts"
    folder.mkdir()
    with serving(partial(_Artifacts, directory=str(folder))) as url:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        yield folder


def test_artifacts_behind_a_server_are_copied(artifacts: Path, tmp_path: Path) -> None:
    """A model that only MLflow's server can read is found and copied as from any filesystem."""
    model = onnx_models.make(artifacts / "1" / "m" / "model.onnx", "add_one").read_bytes()
    (artifacts / "1" / "m" / "labels.txt").write_bytes(b"a\n")
    (artifacts / "1" / "m" / "metadata").mkdir()
    variables = {"SERVE_APP_CACHE": str(tmp_path / "cache")}
    found = resolve_model("mlflow-artifacts:///1/m", None, variables)
    assert {path.name: path.read_bytes() for path in found.files()} == {"model.onnx": model, "labels.txt": b"a\n"}
    assert resolve_model("mlflow-artifacts:///1/m/model.onnx", None, variables).model_file.read_bytes() == model
    with pytest.raises(ConfigError, match=r"mlflow-artifacts:///1/none: no such folder"):
        resolve_model("mlflow-artifacts:///1/none", None, variables)


@pytest.mark.parametrize(
    ("path", "pinned"),
    [
        ("hf://a/b@" + "0" * 40, True),
        ("hf://a/b@" + "0" * 40 + "/x.onnx", True),
        ("hf://a/b@main", False),
        ("m", False),
    ],
)
def test_what_never_changes(path: str, pinned: bool) -> None:
    """A commit, whole; a branch may move, and so may a folder."""
    assert is_pinned(path) is pinned
