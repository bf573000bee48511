"""Settings of the response cache, and what tells one state of a model from another."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import onnx
import onnx_models
import pytest
from api.authority import Authority

from serve_app.composition.identity import identities
from serve_app.composition.model import find_files
from serve_app.config import AppArgs, parse_args
from serve_app.errors import ConfigError

CACHED = {"name": "m", "path": "m", "cache": {}}


def parse(cache: Any = None, model: Any = None) -> AppArgs:
    """A configuration of one model."""
    return parse_args({"router": {"cache": cache or {}}, "models": [model or CACHED]})


def faults(**given: Any) -> str:
    """What is wrong with it."""
    with pytest.raises(ConfigError) as caught:
        parse(**given)
    return str(caught.value)


def test_no_model_has_a_cache_unless_it_says_so() -> None:
    """Nor does one that has switched it off."""
    for model in ({"name": "m", "path": "m"}, {**CACHED, "cache": {"enabled": False}}):
        config = parse(model=model)
        assert not any(each.caches for each in config.models)
        assert "waiting for the same request" not in config.budget().in_flight


def test_values_reach_the_runtime() -> None:
    """In its units; the requests that may wait are counted with all others."""
    config = parse({"max_waiting": 7}, {**CACHED, "cache": {"ttl_s": 2, "max_bytes": "1KiB"}})
    settings = config.cache_settings()
    assert settings.max_followers == 7
    assert settings.redis is None
    assert config.budget().in_flight["waiting for the same request"] == 7


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
        ({"url": "redis://h", "read_ms": 0}, "redis.read_ms: must be more than 0"),
    ],
)
def test_faults_are_told_in_words_and_without_secrets(redis: Any, message: str) -> None:
    """Where they are, and what to write instead."""
    told = faults(cache={"redis": redis})
    assert message in told
    assert "hunter2" not in told


def test_a_server_for_nobody_is_a_fault() -> None:
    """It would look as if something were cached."""
    told = faults(cache={"redis": {"url": "redis://h"}}, model={"name": "m", "path": "m"})
    assert told == "args.router.cache.redis: counts for nothing unless a model has a cache"


def test_passwords_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    """Of the router; without them it does not start."""
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    for given in ({"password_variable": "SECRET"}, {"password_file": str(secret)}):
        settings = parse({"redis": {"url": "rediss://h:1/2", **given}}).cache_settings({"SECRET": "hunter2"})
        assert settings.redis is not None
        assert settings.redis.password == "hunter2"
        assert "hunter2" not in repr(settings)
    for given, message in (
        ({"password_variable": "SECRET"}, "password_variable: 'SECRET' is not set"),
        ({"password_file": str(tmp_path / "none")}, "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse({"redis": {"url": "redis://h", **given}}).cache_settings({})


def test_files_of_redis_are_found_from_home_and_looked_for(tmp_path: Path) -> None:
    """As models are; what is wrong with them is told before the start, and nothing of what stands in them."""
    environ = {"SERVE_APP_HOME": str(tmp_path)}
    config = parse({"redis": {"url": "rediss://h", "password_file": "secret", "ca_file": "ca.pem"}})
    secret, authority = tmp_path / "secret", tmp_path / "ca.pem"
    place = "args.router.cache.redis"
    assert config.redis_problems(environ) == (
        f"{place}.password_file: {secret}: cannot be read: No such file or directory",
        f"{place}.ca_file: {authority}: cannot be read: No such file or directory",
    )
    secret.write_bytes(b"\xffhunter2")
    authority.write_text("hunter2")
    assert config.redis_problems(environ) == (
        f"{place}.password_file: {secret}: is not text in UTF-8",
        f"{place}.ca_file: {authority}: holds no certificates in PEM",
    )
    secret.write_text("hunter2\n")
    Authority(tmp_path / "authority").ca_file.replace(authority)
    assert config.redis_problems(environ) == ()
    settings = config.cache_settings(environ)
    assert settings.redis is not None
    assert (settings.redis.password, settings.redis.ca_file) == ("hunter2", str(authority))


def test_a_variable_is_the_routers_own() -> None:
    """Whoever checks a file need not have it."""
    assert parse({"redis": {"url": "redis://h", "password_variable": "SECRET"}}).redis_problems({}) == ()
    assert parse().redis_problems({}) == ()


def _identities(folder: Path, **changes: Any) -> dict[str, str]:
    model = {
        "name": "m",
        "path": str(folder),
        "variants": [{"name": "light", "path": str(folder.parent / "light")}],
        **changes,
    }
    config = parse_args({"models": [model]}).models[0]
    return identities(config, find_files(config))


def test_identities_are_of_contents(tmp_path: Path) -> None:
    """Whoever copied them when; any other weights, labels or settings make another."""
    folder = tmp_path / "m"
    onnx_models.make(folder / "1" / "model.onnx", "add_one")
    onnx_models.make(tmp_path / "light" / "1" / "model.onnx", "add_one")
    (folder / "notes").mkdir()
    (folder / "notes" / "a.txt").write_text("a")
    first = _identities(folder)
    assert first[""] != first["light"]

    copy = tmp_path / "elsewhere" / "m"
    shutil.copytree(folder, copy)
    shutil.copytree(tmp_path / "light", tmp_path / "elsewhere" / "light")
    (copy / "1" / "model.onnx").touch()
    assert _identities(copy) == first

    found = [first]
    (copy / "notes" / "a.txt").write_text("b")
    found.append(_identities(copy))
    shutil.copytree(copy / "1", copy / "2")
    found.append(_identities(copy))
    found.append(_identities(copy, backend_options={"tensorrt": True, "tensorrt_fp16": True}))
    joining: list[Any] = ["none", {"axis": 1}, {"tolerance": 0.5}, {"unverified": "allow"}]
    found += [_identities(copy, batching=batching) for batching in joining]
    onnx_models.make(copy.parent / "light" / "1" / "model.onnx", "bfloat16")
    found.append(_identities(copy))
    assert len({each["light"] for each in found}) == len(found)
    assert len({each[""] for each in found}) == len(found) - 1


def test_a_socket_has_its_database_in_the_query() -> None:
    """There is no other place for it."""
    settings = parse({"redis": {"url": "unix:///run/redis.sock?db=1"}}).cache_settings({})
    assert settings.redis is not None
    assert settings.redis.url == "unix:///run/redis.sock?db=1"


def _identity(path: Path, **changes: Any) -> str:
    config = parse_args({"models": [{"name": "m", "path": str(path), **changes}]}).models[0]
    return identities(config, find_files(config))[""]


def test_the_identity_of_a_file_is_of_what_belongs_to_it(tmp_path: Path) -> None:
    """Its weights elsewhere and the files that processors read count; what else lies around it does not."""
    folder = tmp_path / "m"
    model = onnx.load(onnx_models.make(folder / "a.onnx", "image_logits"))
    onnx.save(model, folder / "a.onnx", save_as_external_data=True, location="a.bin", size_threshold=0)
    first = _identity(folder / "a.onnx")
    assert _identity(folder) == first  # the only model of a flat folder

    onnx_models.make(folder / "b.onnx", "add_one")
    (folder / "photo.jpg").write_bytes(b"x")
    assert _identity(folder / "a.onnx") == first

    found = [first]
    for name in ("a.bin", "tokenizer.json", "names.txt"):
        with (folder / name).open("ab") as file:
            file.write(b"more")
        found.append(_identity(folder / "a.onnx", labels="names.txt"))
    assert len(set(found)) == len(found)
