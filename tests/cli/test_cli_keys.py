"""``serve-app key``."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from serve_app.cli.commands import app
from serve_app.cli.key_file import add, read, remove
from serve_app.config.api_keys import parse_api_keys
from serve_app.errors import ConfigError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Not there yet."""
    return tmp_path / "keys.yaml"


@pytest.fixture
def folder_of_all() -> Iterator[Path]:
    """A folder that every user of the machine can write to."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


def run(*arguments: object) -> Result:
    """Run ``serve-app key``."""
    return CliRunner().invoke(app, ["key", *map(str, arguments)])


def test_a_key_is_printed_once_and_its_hash_kept(file: Path) -> None:
    """For the owner's eyes only; standard output holds nothing else, so that it can be piped."""
    made = run("new", "dashboard", "--file", file, "--models", "digits, minilm", "--rate", "10/s", "--admin")

    assert made.exit_code == 0
    key = made.stdout.strip()
    assert "\n" not in key
    assert key not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    [entry] = parse_api_keys(file.read_bytes()).keys
    assert entry.hash == f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"
    assert (entry.name, entry.models, entry.rate, entry.admin) == ("dashboard", ("digits", "minilm"), "10/s", True)


def test_keys_come_and_go(file: Path) -> None:
    """What else is in the file stays as it is."""
    run("new", "a", "--file", file, "--expires-at", "2027-01-01T12:00:00Z", "--note", "the first")
    run("new", "b", "--file", file, "--highest-class", "low")
    before = parse_api_keys(file.read_bytes()).keys

    assert run("new", "c", "--file", file).exit_code == 0
    assert run("revoke", "c", "--file", file).exit_code == 0
    assert parse_api_keys(file.read_bytes()).keys == before
    listed = run("list", "--file", file).stdout
    assert "until 2027-01-01 12:00, the first" in listed
    assert "low" in listed
    assert "sha256" not in listed


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["new", "a"], "there is a key 'a' already"),
        (["new", "b", "--rate", "fast"], "rate: must be a number of requests per time"),
        (["new", "b", "--expires-at", "soon"], "expires_at: "),
        (["new", "b b"], "name: must be 1 to 63 letters"),
        (["revoke", "b"], "there is no key 'b'"),
    ],
)
def test_faults_change_nothing(file: Path, arguments: list[str], fault: str) -> None:
    """And no key is printed that would not work."""
    run("new", "a", "--file", file)
    before = file.read_text()
    result = run(*arguments, "--file", file)

    assert result.exit_code == 2
    assert fault in result.stderr
    assert result.stdout == ""
    assert file.read_text() == before


def test_files_of_others(file: Path) -> None:
    """Listing warns of them, a change closes them, and links stay links."""
    target = file.with_name("target.yaml")
    file.symlink_to(target)
    run("new", "a", "--file", file)
    target.chmod(0o644)
    assert "every user of this machine" in run("list", "--file", file).stderr
    run("new", "b", "--file", file)
    assert target.stat().st_mode & 0o777 == 0o640
    assert file.is_symlink()


@needs_root
def test_owner_and_group_stay(file: Path) -> None:
    """Otherwise the server could not read any more what was changed for it, and a revoked key would go on counting."""
    run("new", "a", "--file", file)
    file.chmod(0o640)
    os.chown(file, 12345, 23456)
    assert run("revoke", "a", "--file", file).exit_code == 0
    found = file.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (12345, 23456, 0o640)


@needs_root
def test_owner_and_group_that_cannot_stay(folder_of_all: Path) -> None:
    """Then nothing is changed."""
    file = folder_of_all / "keys.yaml"
    add(file, "a", {})
    os.chown(file, 12345, 23456)
    file.chmod(0o644)
    os.seteuid(54321)
    try:
        with pytest.raises(ConfigError, match="12345:23456, and this user cannot write one like it"):
            remove(file, "a")
    finally:
        os.seteuid(0)
    assert [key.name for key in read(file)] == ["a"]
    assert list(folder_of_all.iterdir()) == [file]


def test_changes_at_once(file: Path) -> None:
    """None is lost: a revoked key must not come back."""
    add(file, "old", {})
    names = [f"new{number}" for number in range(8)]
    ready = threading.Barrier(len(names) + 1)

    def change(name: str) -> None:
        ready.wait()
        if name == "old":
            remove(file, name)
        else:
            add(file, name, {})

    with ThreadPoolExecutor(len(names) + 1) as threads:
        list(threads.map(change, ["old", *names]))
    assert sorted(key.name for key in read(file)) == names


def test_files_that_are_not_there(file: Path) -> None:
    """Nothing to list, nowhere to write."""
    assert "cannot be read: No such file" in run("list", "--file", file).stderr
    assert "cannot be written: No such file" in run("new", "a", "--file", file / "deeper" / "keys.yaml").stderr
