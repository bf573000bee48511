"""``serve-app traffic``, against a server in this process."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_models
import pytest
from local_server import LocalServer
from typer.testing import CliRunner, Result

from serve_app.api.http_app import HttpSettings
from serve_app.cli.commands import app


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A model whose name is not one of a URL, in two versions, and one in one version."""
    folder = tmp_path_factory.mktemp("models")
    for version in (3, 5):
        onnx_models.adder(folder / "m" / str(version) / "model.onnx", version)
    several = {"name": "m 1", "path": str(folder / "m"), "versions": {"latest": 2}}
    models = [several | {"aliases": {"stable": 3, "candidate": 5}}, {"name": "one", "path": str(folder / "m")}]
    with LocalServer({"models": models}, HttpSettings(open_administration=True)) as running:
        yield running


def run(server: LocalServer, *arguments: str) -> Result:
    """Run it."""
    return CliRunner().invoke(app, ["traffic", *arguments], env={"SERVE_APP_URL": server.url})


def shown(result: Result) -> list[list[str]]:
    """What it prints, by words."""
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.output.splitlines()]


def test_a_canary_from_its_begin_to_its_end(server: LocalServer) -> None:
    """Shown, set, promoted and rolled back."""
    assert shown(run(server, "m 1")) == [
        ["m", "1,", "revision", "0,", "sticky:", "request_id"],
        ["version", "aliases", "share", "shadow"],
        ["3", "stable", "100%"],
        ["5", "candidate", "0%"],
    ]
    canary = run(server, "m 1", "set", "stable=90", "candidate=10", "--shadow", "candidate=5", "--sticky", "key")
    assert shown(canary)[2:] == [["3", "stable", "90%"], ["5", "candidate", "10%", "5%"]]
    assert shown(run(server, "m 1", "set", "--alias", "rc=5", "--shadow", "none"))[2:] == [
        ["3", "stable", "90%"],
        ["5", "candidate,", "rc", "10%"],
    ]
    assert shown(run(server, "m 1", "promote"))[2:] == [["3", "0%"], ["5", "stable,", "candidate,", "rc", "100%"]]
    assert shown(run(server, "m 1", "rollback"))[0][2:4] == ["revision", "4,"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nobody"], 1, "there is no 'nobody' here; models: m 1, one"),
        (["one", "promote"], 1, "is served in one version"),
        (["m 1", "set", "rc2=1"], 1, "traffic.rc2: is no version and no alias"),
        (["m 1", "promote", "--to", "7"], 1, "'7' is no version and no alias"),
        (["m 1", "set"], 2, "nothing to set"),
        (["m 1", "set", "stable"], 2, "must be NAME=VALUE"),
        (["m 1", "set", "stable=all"], 2, "must be a number"),
        (["m 1", "show", "stable=1"], 2, "are for set"),
        (["m 1", "--url", "ftp://here"], 2, "must begin with http://"),
        (["m 1", "--url", "http://127.0.0.1:1"], 1, "http://127.0.0.1:1: "),
    ],
)
def test_what_is_wrong_is_told(server: LocalServer, arguments: list[str], status: int, message: str) -> None:
    """In the words of the server where it knows better."""
    result = run(server, *arguments)
    assert result.exit_code == status
    assert message in " ".join(result.output.replace("│", " ").split())
