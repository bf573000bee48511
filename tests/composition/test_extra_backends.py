"""Backends that an extra brings: what is said where it is missing, and what other models notice of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx_models
import pytest

from serve_app.backends.pytorch.kind import TORCH_SCRIPT
from serve_app.backends.registry import BACKENDS
from serve_app.cli.doctor import Finding, examine
from serve_app.composition.locate import resolve_model
from serve_app.composition.model import find_files, read_builds
from serve_app.config.args import parse_args
from serve_app.errors import ConfigError

LACKS = "no-such-torch is not installed: pip install 'serve-app[torch]'"


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend of TorchScript, and what runs it is not installed."""
    monkeypatch.setitem(BACKENDS, "torchscript", replace(TORCH_SCRIPT, distributions=("no-such-torch",)))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as files are looked for."""
    monkeypatch.setitem(BACKENDS, "torchscript", replace(TORCH_SCRIPT, distributions=("numpy",)))


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder of empty files."""

    def make(*names: str) -> Path:
        for name in names:
            file = tmp_path / "model" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        return tmp_path / "model"

    return make


@pytest.mark.usefixtures("missing")
def test_a_model_says_what_to_install(folder: Callable[..., Path]) -> None:
    """In one line, before its file is read."""
    (model,) = parse_args({"models": [{"name": "m", "path": str(folder("1/model.pt"))}]}).models
    with pytest.raises(ConfigError) as caught:
        read_builds(model, find_files(model))
    assert caught.value.problems == (f"model 'm': {LACKS}",)


@pytest.mark.usefixtures("missing")
def test_the_doctor_says_what_to_install() -> None:
    """Not as a fault: servers of other models need it not."""
    (finding,) = (each for each in examine(None) if each.subject == "no-such-torch")
    assert finding == Finding("note", "no-such-torch", f"{LACKS}, if there are to be models of it")
    assert r"serve-app\[torch]" in finding.line()


@pytest.mark.usefixtures("missing")
@pytest.mark.parametrize("names", [("1/model.onnx", "1/model.pt"), ("model.onnx", "model.pt"), ("a.onnx", "a.pt")])
def test_what_can_run_here_is_chosen(names: tuple[str, ...], folder: Callable[..., Path]) -> None:
    """Files of other backends beside it are no matter, as before there was that backend."""
    assert resolve_model(str(folder(*names))).kind.name == "onnx"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("names", [("1/model.onnx", "1/model.pt"), ("model.onnx", "model.pt")])
def test_several_that_can_run_have_to_be_told_apart(names: tuple[str, ...], folder: Callable[..., Path]) -> None:
    """By the configuration."""
    path = str(folder(*names))
    with pytest.raises(ConfigError, match=r"onnx and torchscript could run it: say which of them by backend$"):
        resolve_model(path)
    assert resolve_model(path, backend="torchscript").file == "model.pt"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["ranker.ts", "ranker.PT", "model.pt"])
def test_its_files_are_found(name: str, folder: Callable[..., Path]) -> None:
    """By their endings."""
    found = resolve_model(str(folder(name)))
    assert (found.kind.name, found.file) == ("torchscript", name)


@pytest.mark.usefixtures("missing")
def test_other_models_are_read(tmp_path: Path) -> None:
    """Without it."""
    onnx_models.make(tmp_path / "1" / "model.onnx", "add_one")
    (model,) = parse_args({"models": [{"name": "m", "path": str(tmp_path)}]}).models
    assert read_builds(model, find_files(model))[""].joinable.verdict == "proven"
