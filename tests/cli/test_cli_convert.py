"""``serve-app convert``."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_models
import pytest
from typer.testing import CliRunner

from serve_app.cli import app
from serve_app.config import resolve_model


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with labels, of two versions."""
    monkeypatch.setenv("SERVE_APP_HOME", str(tmp_path))
    folder = tmp_path / "models" / "pictures"
    for version in ("1", "2"):
        (folder / version).mkdir(parents=True)
        onnx_models.make(folder / version / "model.onnx", "convolution")
    (folder / "labels.txt").write_text("a\nb\n", encoding="utf-8")
    return folder


def test_it_writes_a_folder_that_can_be_served(model: Path) -> None:
    """The newest version, with what lies beside it."""
    done = CliRunner().invoke(app, ["convert", "models/pictures"])

    folder = model.with_name("pictures-fp16")
    assert (done.exit_code, done.output) == (0, f"wrote {folder}\n")
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert found == ["2/model.onnx", "labels.txt"]


def test_what_is_there_is_not_overwritten(model: Path) -> None:
    """Nor is anything left behind of what cannot be done."""
    other = model.parent / "other"
    other.mkdir()

    done = CliRunner().invoke(app, ["convert", "models/pictures", "--output", str(other)])

    assert done.exit_code == 2
    assert done.output.endswith(f"{other} is there already: name another with --output, or remove it\n")
    assert sorted(path.name for path in model.parent.iterdir()) == ["other", "pictures"]


def written(folder: Path) -> list[str]:
    """Every file of a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("path", "expected"), [("models/flat", "models/flat-fp16"), ("models/flat/net.onnx", "models/flat/net-fp16")]
)
def test_a_model_without_versions_becomes_a_flat_folder(model: Path, path: str, expected: str) -> None:
    """With what belongs to it, and without its weights in FP32."""
    flat = model.parent / "flat"
    whole = onnx.load(onnx_models.make(flat / "net.onnx", "convolution"))
    onnx.save(whole, flat / "net.onnx", save_as_external_data=True, location="net.onnx_data", size_threshold=0)
    (flat / "labels.txt").write_text("a\nb\n", encoding="utf-8")
    (flat / "photo.jpg").write_bytes(b"x")
    home = model.parent.parent

    done = CliRunner().invoke(app, ["convert", path])

    assert (done.exit_code, done.output) == (0, f"wrote {home / expected}\n")
    assert written(home / expected) == ["labels.txt", "net.onnx"]
    assert resolve_model(expected, None, {"SERVE_APP_HOME": str(home)}).file == "net.onnx"
