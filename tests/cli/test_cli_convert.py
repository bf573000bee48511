"""``serve-app convert``."""

from __future__ import annotations

from pathlib import Path

import onnx_models
import pytest
from typer.testing import CliRunner

from serve_app.cli import app


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
