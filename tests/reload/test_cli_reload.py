"""`serve-app reload` against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_server import LocalServer
from typer.testing import CliRunner

from reload.test_local_reload import OPEN, serving, write_constant
from serve_app.cli.commands import app


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServer]:
    """Serves a model that answers 1."""
    monkeypatch.setenv("SERVE_APP_CACHE", str(tmp_path / "cache"))
    write_constant(tmp_path / "model" / "model.onnx", 1.0)
    with LocalServer(serving(tmp_path / "model"), OPEN) as server:
        yield server


def test_it_tells_what_has_changed(server: LocalServer, tmp_path: Path) -> None:
    """All models without a name, one by its name; unchanged ones are told as such."""
    told = CliRunner().invoke(app, ["reload", "--url", server.url])
    assert (told.exit_code, told.stdout.startswith("constant: unchanged, revision ")) == (0, True)
    write_constant(tmp_path / "model" / "model.onnx", 2.0)
    told = CliRunner().invoke(app, ["reload", "constant", "--url", server.url])
    assert told.exit_code == 0
    assert "constant: version 1, revision " in told.stdout


def test_it_fails_where_a_model_cannot_be_loaded(server: LocalServer, tmp_path: Path) -> None:
    """One line says why, and the exit code tells."""
    (tmp_path / "model" / "model.onnx").write_bytes(b"no model")
    told = CliRunner().invoke(app, ["reload", "constant", "nobody", "--url", server.url])
    assert told.exit_code == 1
    assert "model 'constant': model.onnx is not an ONNX file" in told.output
    assert "nobody: " in told.output


def test_it_says_where_nobody_listens() -> None:
    """As for any other failure."""
    told = CliRunner().invoke(app, ["reload", "--url", "http://127.0.0.1:1"])
    assert told.exit_code == 1
    assert "no answer" in told.output
    assert CliRunner().invoke(app, ["reload", "--url", "file:///etc"]).exit_code == 1
