"""Settings of a Redis server, as those of jobs have one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from api.authority import Authority

from serve_app.config.args import AppArgs, parse_args
from serve_app.errors import ConfigError
from serve_app.jobs.composition import machine_problems
from serve_app.jobs.redis_config import RedisConfig


def configured(redis: Any) -> AppArgs:
    """A configuration with jobs in this server."""
    return parse_args({"router": {"jobs": {"redis": redis}}, "models": [{"name": "m", "path": "m"}]})


def redis_of(config: AppArgs) -> RedisConfig:
    """Its server."""
    assert config.router.jobs is not None
    assert config.router.jobs.redis is not None
    return config.router.jobs.redis


def parse(redis: Any) -> RedisConfig:
    """The same of a configuration."""
    return redis_of(configured(redis))


def faults(redis: Any) -> str:
    """What is wrong with it."""
    with pytest.raises(ConfigError) as caught:
        configured(redis)
    return str(caught.value)


@pytest.mark.parametrize(
    ("redis", "message"),
    [
        ({"url": "http://a"}, "redis.url: must be redis://host:port/db"),
        ({"url": "redis://"}, "redis.url: must be redis://host:port/db"),
        ({"url": "redis://h:port"}, "redis.url: must be redis://host:port/db"),
        ({"url": "redis://:hunter2@h"}, "redis.url: must not hold a user or a password"),
        ({"url": "redis://h?password=hunter2"}, "redis.url: must not hold a user or a password"),
        ({"url": "redis://h?username=me"}, "redis.url: must not hold a user or a password"),
        ({"url": "redis://h?socket_timeout=1"}, "redis.url: must not hold options"),
        ({"url": "unix:///s?db=one"}, "redis.url: must not hold options"),
        ({"url": "redis://h", "password": "hunter2"}, "redis.password: unknown key; did you mean"),
        ({"url": "redis://h", "password_file": "a", "password_variable": "B"}, "not both"),
        ({"url": "redis://h", "ca_file": "a"}, "counts for nothing unless url begins with rediss://"),
        ({"url": "redis://h", "write_ms": 0}, "redis.write_ms: must be more than 0"),
    ],
)
def test_faults_are_told_in_words_and_without_secrets(redis: Any, message: str) -> None:
    """Where they are, and what to write instead."""
    told = faults(redis)
    assert message in told
    assert "hunter2" not in told


def test_passwords_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    """Of the router; without them it does not start."""
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    for given in ({"password_variable": "SECRET"}, {"password_file": str(secret)}):
        settings = parse({"url": "rediss://h:1/2", **given}).settings({"SECRET": "hunter2"})
        assert settings.password == "hunter2"
        assert "hunter2" not in repr(settings)
    for given, message in (
        ({"password_variable": "SECRET"}, "password_variable: 'SECRET' is not set"),
        ({"password_file": str(tmp_path / "none")}, "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse({"url": "redis://h", **given}).settings({})


def test_files_of_redis_are_found_from_home_and_looked_for(tmp_path: Path) -> None:
    """As models are; what is wrong with them is told before the start, and nothing of what stands in them."""
    environ = {"SERVE_APP_HOME": str(tmp_path)}
    config = configured({"url": "rediss://h", "password_file": "secret", "ca_file": "ca.pem"})
    secret, authority = tmp_path / "secret", tmp_path / "ca.pem"
    place = "args.router.jobs.redis"
    assert machine_problems(config, environ) == (
        f"{place}.password_file: {secret}: cannot be read: No such file or directory",
        f"{place}.ca_file: {authority}: cannot be read: No such file or directory",
    )
    secret.write_bytes(b"\xffhunter2")
    authority.write_text("hunter2")
    assert machine_problems(config, environ) == (
        f"{place}.password_file: {secret}: is not text in UTF-8",
        f"{place}.ca_file: {authority}: holds no certificates in PEM",
    )
    secret.write_text("hunter2\n")
    Authority(tmp_path / "authority").ca_file.replace(authority)
    assert machine_problems(config, environ) == ()
    settings = redis_of(config).settings(environ)
    assert (settings.password, settings.ca_file) == ("hunter2", str(authority))


def test_a_variable_is_the_routers_own() -> None:
    """Whoever checks a file need not have it."""
    assert machine_problems(configured({"url": "redis://h", "password_variable": "SECRET"}), {}) == ()


def test_a_socket_has_its_database_in_the_query() -> None:
    """There is no other place for it."""
    settings = parse({"url": "unix:///run/redis.sock?db=1"}).settings({})
    assert settings.url == "unix:///run/redis.sock?db=1"
