"""Keys as a file has them, without a restart."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import pytest

from serve_app.access.guard import Guard
from serve_app.access.key_file_watcher import KeyFile, KeyFileWatcher
from serve_app.composition.access import watched_keys
from serve_app.config.router import AccessConfig, RouterConfig
from serve_app.domain.keys import Key
from serve_app.errors import ConfigError, Unauthenticated
from serve_app.telemetry.key_metrics import KEYS
from serve_app.telemetry.readings import Readings


def hash_of(name: str) -> str:
    """Of the key ``sa_<name>``, as a file has it."""
    return f"sha256:{hashlib.sha256(f'sa_{name}'.encode()).hexdigest()}"


def content(*names: str) -> str:
    """A file with the keys ``sa_<name>``."""
    lines = [f"- {{name: {name}, hash: '{hash_of(name)}'}}" for name in names]
    return "\n".join(["keys:", *lines, ""]) if names else "keys: []\n"


def watch_of(file: Path) -> KeyFileWatcher:
    """As a router makes it."""
    watch = watched_keys(RouterConfig(access=AccessConfig(keys_file=str(file))))
    assert watch is not None
    return watch


def lets_in(watch: KeyFileWatcher, name: str) -> bool:
    """Whether a key counts."""
    try:
        watch.guard.admit({b"x-api-key": f"sa_{name}".encode()})
    except Unauthenticated:
        return False
    return True


async def _poll_twice(watch: KeyFileWatcher) -> None:
    """Twice, as it takes for a change to count."""
    await watch.poll()
    await watch.poll()


def put(file: Path, text: str) -> None:
    """Write a file."""
    file.write_text(text)


def remove(file: Path) -> None:
    """Remove a file."""
    file.unlink()


def mount(folder: Path) -> None:
    """Two versions of a secret, of which the first is linked to."""
    for version, name in enumerate(("old", "new")):
        (folder / f"..{version}").mkdir()
        (folder / f"..{version}" / "keys.yaml").write_text(content(name))
    (folder / "..data").symlink_to("..0")
    (folder / "keys.yaml").symlink_to("..data/keys.yaml")


def swap(folder: Path) -> None:
    """Link to the second one."""
    (folder / "..data_tmp").symlink_to("..1")
    (folder / "..data_tmp").replace(folder / "..data")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Holds one key."""
    file = tmp_path / "keys.yaml"
    file.write_text(content("old"))
    file.chmod(0o600)
    return file


async def test_changes_count_when_two_looks_saw_them(file: Path) -> None:
    """What is new is let in, what is gone is not."""
    watch = watch_of(file)
    assert (lets_in(watch, "old"), lets_in(watch, "new")) == (True, False)
    put(file, content("new"))
    await _poll_twice(watch)
    assert (lets_in(watch, "old"), lets_in(watch, "new")) == (False, True)
    await _poll_twice(watch)
    assert watch.guard.reloads == {"ok": 1, "failed": 0}
    put(file, content())
    await _poll_twice(watch)
    assert not lets_in(watch, "new")


async def test_half_of_a_file_does_not_count(file: Path) -> None:
    """Cut off between two of its lines it is valid, and its last key could do more than the whole file says."""
    entry = content("old") + f"- name: new\n  hash: {hash_of('new')}\n"
    whole = entry + "  disabled: true\n  note: revoked soon\n"
    watch = watch_of(file)
    for written in (content("old"), entry, whole):
        put(file, written)
        await watch.poll()
        assert (lets_in(watch, "old"), lets_in(watch, "new")) == (True, False)
    await watch.poll()
    assert (watch.guard.number, lets_in(watch, "new")) == (2, False)

    put(file, whole.removesuffix(" soon\n"))  # and it stays so
    await _poll_twice(watch)
    assert watch.guard.status()["fault"] == "does not end with a line break: some of it may be missing"
    assert watch.guard.number == 2


async def test_files_swapped_as_kubernetes_does(tmp_path: Path) -> None:
    """The file is a link to a link to a folder, which is replaced at once."""
    mount(tmp_path)
    watch = watch_of(tmp_path / "keys.yaml")
    swap(tmp_path)
    await _poll_twice(watch)
    assert (lets_in(watch, "old"), lets_in(watch, "new")) == (False, True)


async def test_what_could_not_be_read_counts_when_two_looks_saw_it(file: Path) -> None:
    """Looks between which the file was away are not in succession."""
    watch = watch_of(file)
    put(file, content("new"))
    await watch.poll()
    remove(file)
    await watch.poll()
    put(file, content("new"))
    await watch.poll()
    assert lets_in(watch, "old")
    await watch.poll()
    assert (lets_in(watch, "old"), lets_in(watch, "new")) == (False, True)


@pytest.mark.parametrize(
    "broken", ["keys: [", "", "[a]: 1", "keys:\n- {name: a, expires_at: 2027-02-29}\n", "[" * 3000, None]
)
async def test_what_cannot_be_read_changes_nothing(
    file: Path, caplog: pytest.LogCaptureFixture, broken: str | None
) -> None:
    """It is said once, and forgotten when the file is well again, even if it holds what it held before."""
    watch = watch_of(file)
    if broken is None:
        remove(file)
    else:
        put(file, broken)
    for _ in range(3):
        await watch.poll()
    assert lets_in(watch, "old")
    assert watch.guard.reloads == {"ok": 0, "failed": 1}
    assert watch.guard.status()["fault"]
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    assert "the previous keys stay in use" in caplog.text
    put(file, content("old"))
    await _poll_twice(watch)
    assert watch.guard.status()["fault"] == ""
    assert lets_in(watch, "old")


async def test_a_fault_of_ours_is_a_fault(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was revoked must not go on counting unnoticed. What the fault says is not shown: it may hold a key."""

    def parse(content: bytes) -> tuple[Key, ...]:
        if b"new" in content:
            raise LookupError("sa_secret")
        return (Key(name="old", digest=hashlib.sha256(b"sa_old").digest()),)

    watch = KeyFileWatcher(KeyFile(file, Path.read_bytes, parse), 60.0, Guard)
    put(file, content("new"))
    for _ in range(3):
        await watch.poll()
    assert lets_in(watch, "old")
    assert watch.guard.status()["fault"] == "cannot be understood: LookupError"
    assert watch.guard.reloads == {"ok": 0, "failed": 1}
    assert "sa_secret" not in caplog.text


@pytest.mark.parametrize("broken", ["keys: [", "expires_at: 2027-02-29", None])
def test_a_server_does_not_start_without_its_keys(file: Path, broken: str | None) -> None:
    """It would be open to nobody, or worse."""
    if broken is None:
        file.unlink()
    else:
        put(file, broken)
    with pytest.raises(ConfigError, match=r"^args.router.access.keys_file: .*keys.yaml: "):
        watch_of(file)


def test_files_that_everybody_can_read_are_told(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With what to do about it."""
    watch_of(file)
    assert caplog.text == ""
    file.chmod(0o644)
    watch_of(file)
    assert f"chmod 600 {file}" in caplog.text


async def test_metrics(file: Path) -> None:
    """Counts by the names of keys, and how reading them went."""
    watch = watch_of(file)
    lets_in(watch, "old")
    lets_in(watch, "other")
    put(file, "keys: [")
    await _poll_twice(watch)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in Readings(KEYS, lambda: watch.guard).collect()
        for sample in metric.samples
    }
    assert samples["serve_app_key_requests_total", "old", "admitted"] == 1
    assert samples["serve_app_key_requests_total", "", "unauthenticated"] == 1
    assert samples["serve_app_key_reloads_total", "failed"] == 1
    assert samples["serve_app_keys",] == 1
    assert samples["serve_app_keys_loaded_timestamp_seconds",] > 1.7e9
