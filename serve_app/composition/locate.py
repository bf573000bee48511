"""Where a model's files are, here or behind any fsspec URI: a folder of versions, a flat folder, or one ONNX file.

A folder of versions holds one folder per version, named by a number, with ``model.onnx`` inside:

    models/digits/
      1/model.onnx
      2/model.onnx  labels.txt

Files beside the versions belong to all of them. A remote folder is copied into a cache once per version, with those
files; a version never changes under the same number.

A flat folder holds ``model.onnx``, or one other file that ends in ``.onnx``; a file is that file. Both are version 1,
and of what lies beside the file only what the model needs belongs to it: files with its weights, and those that
processors look for. A remote one is copied again when it has changed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import fsspec

from serve_app.backends.onnx.external_data import external_data
from serve_app.config.faults import shown
from serve_app.config.files import cache_folder, home, is_remote
from serve_app.config.model import ModelConfig
from serve_app.errors import ConfigError
from serve_app.processors.model_folder import SIDECARS, ModelFolder

MODEL_FILE = "model.onnx"
"""The file in a version's folder that makes it a version."""

SUFFIX: Final = ".onnx"

_ONLY = "1"
"""The version of a model without versions."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """A model's files on this machine.

    Attributes:
        folder: The folder that holds the model's file and what lies beside it; of the version in use, if it has any.
        version: The version in use, a decimal string.
        versions: Every version there is, ascending.
        file: Name of the ONNX file in the folder.
        numbered: Whether the model is a folder of versions, whose files above the versions belong to all.
        beside: Further files that belong to a model without versions, where they are there, relative to the folder.
    """

    folder: Path
    version: str
    versions: tuple[str, ...]
    file: str = MODEL_FILE
    numbered: bool = True
    beside: tuple[str, ...] = ()

    @property
    def model_file(self) -> Path:
        """The ONNX file."""
        return self.folder / self.file

    @property
    def root(self) -> Path:
        """What the names of `files` are relative to."""
        return self.folder.parent if self.numbered else self.folder

    def sidecars(self) -> ModelFolder:
        """What processors read beside the model."""
        return ModelFolder(self.folder, versioned=self.numbered)

    def files(self) -> Iterator[Path]:
        """Everything that belongs to the model.

        Raises:
            ConfigError: The ONNX file is none.
            OSError: It cannot be read.
        """
        if not self.numbered:
            names = (self.file, *external_data(self.model_file), *self.beside)
            yield from (self.folder / name for name in dict.fromkeys(names) if (self.folder / name).is_file())
            return
        for item in (self.folder, *(item for item in self.root.iterdir() if not item.name.isdecimal())):
            yield from (file for file in (item.rglob("*") if item.is_dir() else (item,)) if file.is_file())


def resolve_model(
    path: str, version: int | None = None, environ: Mapping[str, str] | None = None, beside: Iterable[str] = ()
) -> ModelLocation:
    """Find a model's files, copying them here first where they are remote.

    Args:
        path: Relative to ``SERVE_APP_HOME``, absolute, or an fsspec URI such as ``s3://bucket/models/digits``: a folder
            of versions, a flat folder, or an ONNX file.
        version: The version to use; ``None`` for the highest there is.
        environ: Environment variables; by default those of this process.
        beside: Files that belong to the model besides those that processors look for.

    Raises:
        ConfigError: When what the path names, or the version in it, is not there or cannot be read; names the path.
    """
    environ = os.environ if environ is None else environ
    beside = tuple(dict.fromkeys((*SIDECARS, *beside)))
    if is_remote(path):
        return _resolve_remote(path, version, environ, beside)
    place = home(environ) / path
    if place.is_file():
        return _flat(place.parent, _checked_file(path, place.name, version), beside)
    if not place.is_dir():
        what = "file" if _is_onnx(path) else "folder"
        raise ConfigError((f"{path}: no such {what} (looked for {place})",))
    names = [item.name for item in place.iterdir()]
    versions = _sorted_versions(name for name in names if (place / name / MODEL_FILE).is_file())
    files = [name for name in names if _is_onnx(name) and (place / name).is_file()]
    if not versions:
        return _flat(place, _choose_file(path, version, files), beside)
    _tell_ignored(path, files)
    chosen = _choose(path, version, versions)
    return ModelLocation(place / chosen, chosen, versions)


def missing_models(models: Sequence[ModelConfig], environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Say which models of this machine cannot be found, one line each. Remote ones are not looked for.

    Args:
        models: The models of a configuration.
        environ: Environment variables; by default those of this process.
    """
    problems: list[str] = []
    for number, model in enumerate(models):
        wanted = [("path", model.path, model.version)]
        wanted += [(f"variants[{at}].path", variant.path, None) for at, variant in enumerate(model.variants)]
        for key, path, version in wanted:
            if not is_remote(path):
                problems += _missing(f"args.models[{number}].{key}", path, version, environ)
    return tuple(problems)


def _flat(folder: Path, file: str, beside: tuple[str, ...]) -> ModelLocation:
    return ModelLocation(folder, _ONLY, (_ONLY,), file, numbered=False, beside=beside)


def _resolve_remote(
    path: str, version: int | None, environ: Mapping[str, str], beside: tuple[str, ...]
) -> ModelLocation:
    try:
        filesystem, root = fsspec.url_to_fs(path)
        if _is_onnx(root) and filesystem.isfile(root):
            folder, _, name = root.rpartition("/")
            return _copy_flat(filesystem, path, folder, _checked_file(path, name, version), beside, environ)
        listing = filesystem.ls(root, detail=False)
        names = {PurePosixPath(item).name: item for item in listing}
        versions = _sorted_versions(
            name for name, item in names.items() if name.isdecimal() and filesystem.isfile(f"{item}/{MODEL_FILE}")
        )
        files = [name for name, item in names.items() if _is_onnx(name) and filesystem.isfile(item)]
        if not versions:
            file = _choose_file(path, version, files)
            return _copy_flat(filesystem, path, root.rstrip("/"), file, beside, environ)
        _tell_ignored(path, files)
        chosen = _choose(path, version, versions)
        copy = _cache(environ) / _digest(path, chosen)
        if not copy.is_dir():
            wanted = {name: item for name, item in names.items() if name == chosen or not name.isdecimal()}
            _copy(filesystem, wanted, copy, f"{path}, version {chosen}")
    except ConfigError:
        raise
    except FileNotFoundError:
        raise ConfigError((f"{path}: no such {'file' if _is_onnx(path) else 'folder'}",)) from None
    except Exception as error:  # every filesystem behind fsspec has errors of its own
        raise ConfigError((f"{path}: cannot be read: {type(error).__name__}: {error}",)) from error
    return ModelLocation(copy / chosen, chosen, versions)


def _copy_flat(
    filesystem: Any, path: str, folder: str, file: str, beside: tuple[str, ...], environ: Mapping[str, str]
) -> ModelLocation:
    """Copy a model's file and what belongs to it, unless that was done since they last changed."""

    def at(name: str) -> str:
        return f"{folder}/{name}" if folder else name

    found = [file, *(name for name in beside if filesystem.isfile(at(name)))]
    states = [part for name in found for part in (name, *_state(filesystem, at(name)))]
    copy = _cache(environ) / _digest(path, *states)
    if not copy.is_dir():
        _copy(filesystem, {name: at(name) for name in found}, copy, path, file)
    return _flat(copy, file, beside)


def _state(filesystem: Any, item: str) -> tuple[str, str]:
    """What tells a remote file from what it was before, as far as its filesystem knows."""
    return str(filesystem.ukey(item)), str(filesystem.info(item).get("ETag", ""))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _copy(filesystem: Any, items: Mapping[str, str], target: Path, label: str, model_file: str = "") -> None:
    """Copy remote files and folders so that the target appears whole or not at all, whoever else copies it too.

    Args:
        filesystem: Where they are.
        items: Their paths there, by their names in the target.
        target: The folder to make.
        label: What it is, for the log.
        model_file: Name of an ONNX file among them whose weights in other files are to be copied too.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".copying-") as staging:
        copy = Path(staging) / "copy"
        copy.mkdir()
        mebibytes = sum(filesystem.du(item) for item in items.values()) / 1024**2
        _log.info("Copying %s (%.1f MiB) to %s", label, mebibytes, target)
        for name, item in items.items():
            _get(filesystem, item, copy / name)
        if model_file:
            for name in external_data(copy / model_file):
                _get(filesystem, items[model_file][: -len(model_file)] + name, copy / name)
        try:
            copy.rename(target)
        except OSError:
            if not target.is_dir():  # nobody else was faster: it is a fault of its own
                raise
        _log.info("Copied %s", label)


def _get(filesystem: Any, item: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    filesystem.get(item.rstrip("/"), str(target), recursive=True)


def _cache(environ: Mapping[str, str]) -> Path:
    return cache_folder(environ) / "models"


def _is_onnx(name: str) -> bool:
    return name.lower().endswith(SUFFIX)


def _sorted_versions(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted((name for name in names if name.isdecimal()), key=int))


def _tell_ignored(path: str, files: list[str]) -> None:
    if files:
        _log.warning("%s: is a folder of versions; not used: %s", path, ", ".join(sorted(files)))


def _choose(path: str, version: int | None, versions: tuple[str, ...]) -> str:
    if version is None:
        return versions[-1]
    if str(version) not in versions:
        raise ConfigError((f"{path}: has no version {shown(str(version))}; there is {', '.join(versions)}",))
    return str(version)


def _choose_file(path: str, version: int | None, files: list[str]) -> str:
    """The one model of a folder without versions."""
    if not files:
        raise ConfigError((f"{path}: holds no <version>/{MODEL_FILE}, no {MODEL_FILE} and no other file *{SUFFIX}",))
    if MODEL_FILE not in files and len(files) > 1:
        listed = ", ".join(sorted(files))
        raise ConfigError((f"{path}: holds several models and no {MODEL_FILE}: name one in the path ({listed})",))
    return _without_versions(path, MODEL_FILE if MODEL_FILE in files else files[0], version)


def _checked_file(path: str, name: str, version: int | None) -> str:
    if not _is_onnx(name):
        raise ConfigError((f"{path}: is a file, and not an ONNX model (*{SUFFIX})",))
    return _without_versions(path, name, version)


def _without_versions(path: str, file: str, version: int | None) -> str:
    if version is not None:
        raise ConfigError(
            (f"{path}: has no versions, only {file}; leave version out, or put the file into {version}/{MODEL_FILE}",)
        )
    return file


def _missing(place: str, path: str, version: int | None, environ: Mapping[str, str] | None) -> list[str]:
    try:
        resolve_model(path, version, environ)
    except ConfigError as error:
        return [f"{place}: {problem}" for problem in error.problems]
    return []
