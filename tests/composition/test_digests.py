"""A kept digest saves reading a file, and never tells of another content than the file has."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import onnx_models
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.composition.digests import LEFT_ALONE_S, WORTH_BYTES, Digests
from serve_app.composition.revision import find_revision, find_revisions, model_files
from serve_app.config.files import CACHE_VARIABLE
from serve_app.config.model import ModelConfig
from serve_app.errors import ConfigError

LONG_AGO_NS = 10**18


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    """A cache folder of its own."""
    return {CACHE_VARIABLE: str(tmp_path / "cache")}


def write(file: Path, byte: bytes) -> bytes:
    """Write a file that is worth a record, in place. Returns its digest."""
    content = byte * WORTH_BYTES
    file.write_bytes(content)
    return hashlib.sha256(content).digest()


def records(environ: Mapping[str, str]) -> list[Path]:
    """What is kept."""
    folder = Path(environ[CACHE_VARIABLE]) / "digests"
    return sorted(file for file in folder.iterdir() if not file.name.startswith(".")) if folder.is_dir() else []


def later(environ: Mapping[str, str]) -> Digests:
    """Digests as of a moment when all files have been left alone for long enough."""
    return Digests(environ, lambda: time.time_ns() + int(2 * LEFT_ALONE_S * 1e9))


def tick(folder: Path) -> None:
    """Until the filesystem's clock has moved on."""
    probe = folder / "probe"
    probe.write_bytes(b"")
    first = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == first:
        probe.write_bytes(b"")
        probe.chmod(0o600)


def test_a_file_that_was_left_alone_is_read_once(tmp_path: Path, environ: Mapping[str, str]) -> None:
    """What was kept is believed: here it is a lie, to see that."""
    file = tmp_path / "model.onnx"
    digest = write(file, b"a")

    assert later(environ).of(file) == digest
    (record,) = records(environ)
    record.write_bytes(record.read_bytes().replace(digest, b"x" * len(digest)))
    assert later(environ).of(file) == b"x" * len(digest)


def test_a_file_that_has_just_been_written_is_read_again(tmp_path: Path, environ: Mapping[str, str]) -> None:
    """Another content in place, of the same size and with the same times, would not be told from it."""
    file = tmp_path / "model.onnx"
    write(file, b"a")
    Digests(environ).of(file)

    assert records(environ) == []


def test_old_times_do_not_hide_a_change(tmp_path: Path, environ: Mapping[str, str]) -> None:
    """Whoever copies files with their times of modification cannot set when their inodes changed."""
    file = tmp_path / "model.onnx"
    write(file, b"a")
    os.utime(file, ns=(LONG_AGO_NS, LONG_AGO_NS))
    Digests(environ).of(file)
    assert records(environ) == []

    later(environ).of(file)
    tick(tmp_path)
    digest = write(file, b"b")
    os.utime(file, ns=(LONG_AGO_NS, LONG_AGO_NS))
    assert later(environ).of(file) == digest


@pytest.mark.parametrize("way", ["in place", "by rename", "by a link that leads elsewhere"])
def test_another_content_has_another_digest(tmp_path: Path, environ: Mapping[str, str], way: str) -> None:
    """However it came there, as soon as it is there."""
    file, beside = tmp_path / "model.onnx", tmp_path / "next"
    if way == "by a link that leads elsewhere":
        target = tmp_path / "first"
        write(target, b"a")
        file.symlink_to(target)
    else:
        write(file, b"a")
    later(environ).of(file)
    tick(tmp_path)

    if way == "in place":
        digest = write(file, b"b")
    else:
        digest = write(beside, b"b")
        if way == "by rename":
            beside.rename(file)
        else:
            file.unlink()
            file.symlink_to(beside)
    assert later(environ).of(file) == digest


def test_a_file_that_is_open_for_writing_is_read_again(tmp_path: Path, environ: Mapping[str, str]) -> None:
    """A writer may have written what no time tells of yet."""
    file = tmp_path / "model.onnx"
    digest = write(file, b"a")
    with file.open("r+b"):
        assert later(environ).of(file) == digest
    assert records(environ) == []


def test_small_files_leave_no_record(tmp_path: Path, environ: Mapping[str, str]) -> None:
    """They are read as quickly."""
    file = tmp_path / "labels.txt"
    file.write_bytes(b"cat\ndog\n")

    assert later(environ).of(file) == hashlib.sha256(b"cat\ndog\n").digest()
    assert records(environ) == []


@given(garbage=st.binary(max_size=64))
def test_a_record_that_cannot_be_read_is_none(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    """The file is read instead."""
    folder = tmp_path_factory.mktemp("digests")
    environ = {CACHE_VARIABLE: str(folder / "cache")}
    file = folder / "model.onnx"
    digest = write(file, b"a")
    later(environ).of(file)
    (record,) = records(environ)
    record.write_bytes(garbage)

    assert later(environ).of(file) == digest


def test_without_a_cache_folder_files_are_read(tmp_path: Path) -> None:
    """One that cannot be made is no fault."""
    (tmp_path / "cache").write_text("in the way")
    file = tmp_path / "model.onnx"
    digest = write(file, b"a")

    assert later({CACHE_VARIABLE: str(tmp_path / "cache")}).of(file) == digest


def test_revisions_of_several_models_are_those_of_each(tmp_path: Path, environ: Mapping[str, str]) -> None:
    """Also where a file cannot be read ahead; what is wrong with it is told by who finds its revision."""
    models = []
    for number in range(3):
        onnx_models.adder(tmp_path / f"m{number}" / "model.onnx", number)
        models.append(ModelConfig(name=f"m{number}", task="tensors", path=str(tmp_path / f"m{number}")))

    assert find_revisions(models, environ) == {model.name: find_revision(model, environ) for model in models}

    (tmp_path / "m1" / "model.onnx").write_bytes(b"\0")
    with pytest.raises(ConfigError, match="not an ONNX file"):
        find_revisions(models, environ)


def test_files_of_models_are_those_that_are_there(tmp_path: Path, environ: Mapping[str, str]) -> None:
    """What is wrong with a model is told by who finds its revision."""
    models = []
    for number in range(3):
        onnx_models.adder(tmp_path / f"m{number}" / "model.onnx", number)
        models.append(ModelConfig(name=f"m{number}", task="tensors", path=str(tmp_path / f"m{number}")))
    (tmp_path / "m1" / "model.onnx").unlink()

    assert [*model_files(models, environ)] == [tmp_path / name / "model.onnx" for name in ("m0", "m2")]
