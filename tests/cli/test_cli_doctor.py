"""``serve-app doctor``: what it finds out about this machine and a configuration."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx_models
import pytest

from serve_app.cli.doctor import Finding, examine

CONFIG = """\
applications:
  - import_path: serve_app.app:build
    args:
      models:
        - {name: one, path: models/one}
        - {name: two, path: "s3://bucket/two"}
"""


def findings(config: Path | None, subject: str) -> list[Finding]:
    """What was found about one subject."""
    return [finding for finding in examine(config) if finding.subject == subject]


def test_versions_are_listed() -> None:
    """The versions are those that are installed."""
    assert findings(None, "ray") == [Finding("ok", "ray", importlib.metadata.version("ray"))]


def test_a_missing_model_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that could not be served is reported with the lines of the check."""
    monkeypatch.setenv("SERVE_APP_HOME", str(tmp_path))
    config = tmp_path / "a.yaml"
    config.write_text(CONFIG, "utf-8")
    assert findings(config, "a.yaml") == [
        Finding(
            "error", "a.yaml", f"args.models[0].path: models/one: no such folder (looked for {tmp_path}/models/one)"
        )
    ]


def test_sessions_are_really_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_model: Callable[[onnx_models.Kind], Path]
) -> None:
    """A model is reported with the device that its session runs on; a remote one is not fetched."""
    monkeypatch.setenv("SERVE_APP_HOME", str(tmp_path))
    (tmp_path / "models" / "one" / "1").mkdir(parents=True)
    shutil.copyfile(make_model("add_one"), tmp_path / "models" / "one" / "1" / "model.onnx")
    config = tmp_path / "a.yaml"
    config.write_text(CONFIG, "utf-8")
    assert findings(config, "one") == [Finding("ok", "one", "version 1 of 1, runs on cpu")]
    assert findings(config, "two") == [
        Finding("note", "two", "not tried, because it would be copied here: s3://bucket/two")
    ]


def test_a_file_that_is_no_model_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken model is found before the server is started."""
    monkeypatch.setenv("SERVE_APP_HOME", str(tmp_path))
    (tmp_path / "models" / "one" / "1").mkdir(parents=True)
    (tmp_path / "models" / "one" / "1" / "model.onnx").write_bytes(b"no model")
    config = tmp_path / "a.yaml"
    config.write_text(CONFIG, "utf-8")
    (finding,) = findings(config, "a.yaml")
    assert finding.level == "error"
    assert finding.detail.startswith("model 'one': ")
