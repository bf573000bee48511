"""Settings of jobs: what is refused, and what becomes of the rest."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from serve_app.config.args import parse_args
from serve_app.errors import ConfigError
from serve_app.jobs.composition import job_settings
from serve_app.jobs.config import JobsConfig

MODEL = {"name": "m", "path": "models/m"}


def _parsed(jobs: Any) -> JobsConfig | None:
    return parse_args({"models": [MODEL], "router": {"jobs": jobs}}).router.jobs


def test_there_are_none_unless_they_are_named() -> None:
    """An empty section is enough."""
    assert parse_args({"models": [MODEL]}).router.jobs is None
    assert job_settings(None) is None
    config = _parsed({})
    assert config == JobsConfig()
    settings = job_settings(config, {"SERVE_APP_HOME": "/home"})
    assert settings is not None
    assert (settings.path, settings.redis, settings.callbacks.hosts) == (Path("/home/jobs.sqlite"), None, frozenset())


@pytest.mark.parametrize(
    ("jobs", "problem"),
    [
        ({"callbacks": {"hosts": ["https://a"]}}, r"router\.jobs\.callbacks\.hosts: must be names of hosts"),
        ({"callbacks": {"hosts": ["*"]}}, "must be names of hosts"),
        ({"callbacks": {"networks": ["10.0.0.0/99"]}}, r"callbacks\.networks: must be networks"),
        ({"callbacks": {"secret_file": "a", "secret_variable": "B"}}, "give this or secret_variable"),
        ({"timeout_s": 10, "max_timeout_s": 5}, "must be at least timeout_s"),
        ({"lease_s": 0.1}, r"router\.jobs\.lease_s"),
        ({"redis": {"url": "http://a"}}, r"router\.jobs\.redis\.url"),
        ({"wrong": 1}, r"router\.jobs\.wrong"),
    ],
)
def test_what_is_wrong_is_named(jobs: Any, problem: str) -> None:
    """By its place."""
    with pytest.raises(ConfigError, match=problem):
        _parsed(jobs)


def test_secrets_are_read_where_they_are(tmp_path: Path) -> None:
    """Of a file without the line's end, or of the environment; what is missing is named."""
    (tmp_path / "secret").write_text("s\n")
    home = {"SERVE_APP_HOME": str(tmp_path)}
    callbacks = {"hosts": ["a.example:8443"], "networks": ["10.0.0.0/8"]}
    of_file = job_settings(_parsed({"callbacks": {**callbacks, "secret_file": "secret"}}), home)
    of_variable = job_settings(_parsed({"callbacks": {"secret_variable": "S"}}), {**home, "S": "t"})
    assert of_file is not None
    assert of_variable is not None
    assert (of_file.callbacks.secret, of_variable.callbacks.secret) == (b"s", b"t")
    assert of_file.callbacks.networks == (ip_network("10.0.0.0/8"),)
    encoded = job_settings(_parsed({"callbacks": {"secret_variable": "S"}}), {**home, "S": "whsec_AAEC"})
    assert encoded is not None
    assert encoded.callbacks.secret == b"\0\1\2"
    (tmp_path / "wrong").write_text("whsec_AAE")
    (tmp_path / "empty").write_text("whsec_\n")
    assert "secret=" not in repr(of_file.callbacks)
    for jobs, problem in (
        ({"callbacks": {"secret_variable": "S"}}, r"args\.router\.jobs\.callbacks\.secret_variable: 'S' is not set"),
        ({"callbacks": {"secret_file": "wrong"}}, r"callbacks\.secret_file: expected base64 after whsec_"),
        ({"callbacks": {"secret_file": "empty"}}, r"callbacks\.secret_file: the secret is empty"),
        ({"callbacks": {"secret_file": "none"}}, r"args\.router\.jobs\.callbacks\.secret_file: no such file"),
        ({"redis": {"url": "redis://a", "password_variable": "P"}}, r"args\.router\.jobs\.redis\.password_variable"),
    ):
        with pytest.raises(ConfigError, match=problem):
            job_settings(_parsed(jobs), home)
