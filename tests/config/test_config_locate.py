"""Finding models: versions, relative paths, and folders behind a URI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from serve_app.config import ModelLocation, parse_args, resolve_model
from serve_app.errors import ConfigError


def make_version(folder: Path, version: str, content: bytes = b"onnx") -> Path:
    """A version of a model."""
    (folder / version).mkdir(parents=True)
    (folder / version / "model.onnx").write_bytes(content)
    return folder


def environ(tmp_path: Path) -> dict[str, str]:
    """An environment whose folders are the test's own."""
    return {"SERVE_APP_HOME": str(tmp_path), "SERVE_APP_CACHE": str(tmp_path / "cache")}


def problem(path: str, version: int | None, variables: dict[str, str]) -> str:
    """The one fault of resolving."""
    with pytest.raises(ConfigError) as caught:
        resolve_model(path, version, variables)
    (line,) = caught.value.problems
    return line


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    """Fsspec's filesystem in memory, empty before and after."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


def test_the_highest_version_is_the_default(tmp_path: Path) -> None:
    """Versions are numbers: 10 is above 9. Other folders and empty ones do not count."""
    folder = tmp_path / "models" / "digits"
    for version in ("9", "10", "2", "old"):
        make_version(folder, version)
    (folder / "11").mkdir()
    found = resolve_model("models/digits", None, environ(tmp_path))
    assert found == ModelLocation(folder / "10", "10", ("2", "9", "10"))
    assert found.model_file == folder / "10" / "model.onnx"


def test_a_version_can_be_chosen(tmp_path: Path) -> None:
    """A configured version wins over the highest."""
    folder = make_version(make_version(tmp_path / "m", "1"), "2")
    assert resolve_model("m", 1, environ(tmp_path)).folder == folder / "1"


def test_an_absolute_path_needs_no_home(tmp_path: Path) -> None:
    """An absolute path is taken as it is."""
    folder = make_version(tmp_path / "m", "1")
    assert resolve_model(str(folder), None, {"SERVE_APP_HOME": "/nowhere"}).folder == folder / "1"


def test_the_working_directory_is_the_default_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SERVE_APP_HOME relative paths start where the server was started."""
    make_version(tmp_path / "m", "1")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("m", None, {}).folder == tmp_path / "m" / "1"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """A missing folder, an empty one and a missing version each say what was looked for."""
    (tmp_path / "empty").mkdir()
    make_version(make_version(tmp_path / "m", "1"), "2")
    variables = environ(tmp_path)
    assert problem("none", None, variables) == f"none: no such folder (looked for {tmp_path}/none)"
    assert problem("empty", None, variables) == "empty: holds no <version>/model.onnx"
    assert problem("m", 3, variables) == "m: has no version '3'; there is 1, 2"


def test_missing_models_are_named_by_their_place(tmp_path: Path) -> None:
    """A configuration's models and variants are looked for together; remote ones are left alone."""
    make_version(tmp_path / "there", "1")
    args = parse_args(
        {
            "models": [
                {"name": "a", "path": "there", "variants": [{"name": "int8", "path": "gone"}]},
                {"name": "b", "path": "there", "version": 7},
                {"name": "c", "path": "s3://bucket/c"},
            ]
        }
    )
    assert args.model_problems(environ(tmp_path)) == (
        f"args.models[0].variants[0].path: gone: no such folder (looked for {tmp_path}/gone)",
        "args.models[1].path: there: has no version '7'; there is 1",
    )


def test_a_remote_model_is_copied_once(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    """A version behind a URI is copied whole, with what lies beside it, and then used from the cache."""
    memory.pipe(
        {"/bucket/m/1/model.onnx": b"one", "/bucket/m/2/model.onnx": b"two", "/bucket/m/2/labels.txt": b"a\nb\n"}
    )
    variables = environ(tmp_path)
    found = resolve_model("memory://bucket/m", None, variables)
    assert (found.version, found.versions) == ("2", ("1", "2"))
    assert {path.name: path.read_bytes() for path in found.folder.iterdir()} == {
        "model.onnx": b"two",
        "labels.txt": b"a\nb\n",
    }
    memory.pipe("/bucket/m/2/model.onnx", b"changed")
    assert resolve_model("memory://bucket/m", 2, variables).model_file.read_bytes() == b"two"
    assert sorted(path.name for path in found.folder.parent.parent.iterdir()) == [found.folder.parent.name]
    assert [path.name for path in found.folder.parent.iterdir()] == ["2"]


def test_files_above_the_versions_are_copied_too(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    """Labels and tokenizers may lie beside the versions instead of inside one."""
    memory.pipe({"/bucket/m/1/model.onnx": b"one", "/bucket/m/labels.txt": b"a\n", "/bucket/m/sub/config.json": b"{}"})
    found = resolve_model("memory://bucket/m", None, environ(tmp_path))
    assert (found.folder.parent / "labels.txt").read_bytes() == b"a\n"
    assert (found.folder.parent / "sub" / "config.json").read_bytes() == b"{}"


def test_a_remote_model_that_is_missing_is_named(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    """Missing folders, missing versions and unknown protocols name the URI."""
    memory.pipe("/bucket/m/1/model.onnx", b"one")
    variables = environ(tmp_path)
    assert problem("memory://bucket/none", None, variables) == "memory://bucket/none: no such folder"
    assert problem("memory://bucket/m", 2, variables) == "memory://bucket/m: has no version '2'; there is 1"
    assert problem("nonsense://m", None, variables) == (
        "nonsense://m: cannot be read: ValueError: Protocol not known: nonsense"
    )
