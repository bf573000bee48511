"""Where a model's files are: a folder of versions, here or behind any fsspec URI.

A model's folder holds one folder per version, named by a number, with ``model.onnx`` inside:

    models/digits/
      1/model.onnx
      2/model.onnx  labels.txt

Files beside the versions belong to all of them. A remote folder is copied into a cache once per version, with those
files; a version never changes under the same number.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

from serve_app.config.faults import shown
from serve_app.errors import ConfigError

MODEL_FILE = "model.onnx"
"""The file in a version's folder that makes it a version."""

HOME_VARIABLE = "SERVE_APP_HOME"
"""Environment variable: the folder that relative model paths start from. Default: the working directory."""

CACHE_VARIABLE = "SERVE_APP_CACHE"
"""Environment variable: where copies of remote models are kept, and what was found of models.

Default: ``~/.cache/serve-app``.
"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """A model's files on this machine.

    Attributes:
        folder: The folder of the version in use; holds ``model.onnx`` and whatever lies beside it.
        version: The version in use, a decimal string.
        versions: Every version there is, ascending.
    """

    folder: Path
    version: str
    versions: tuple[str, ...]

    @property
    def model_file(self) -> Path:
        """The ONNX file."""
        return self.folder / MODEL_FILE


def resolve_model(path: str, version: int | None = None, environ: Mapping[str, str] | None = None) -> ModelLocation:
    """Find a model's files, copying them here first where they are remote.

    Args:
        path: Relative to ``SERVE_APP_HOME``, absolute, or an fsspec URI such as ``s3://bucket/models/digits``.
        version: The version to use; ``None`` for the highest there is.
        environ: Environment variables; by default those of this process.

    Raises:
        ConfigError: When the folder, or the version in it, is not there or cannot be read; names the path.
    """
    environ = os.environ if environ is None else environ
    if is_remote(path):
        return _resolve_remote(path, version, environ)
    folder = home(environ) / path
    if not folder.is_dir():
        raise ConfigError((f"{path}: no such folder (looked for {folder})",))
    versions = _sorted_versions(item.name for item in folder.iterdir() if (item / MODEL_FILE).is_file())
    chosen = _choose(path, version, versions)
    return ModelLocation(folder / chosen, chosen, versions)


def home(environ: Mapping[str, str]) -> Path:
    """The folder that relative model paths start from."""
    return Path(environ.get(HOME_VARIABLE) or Path.cwd())


def is_remote(path: str) -> bool:
    """Whether a model's path is a URI rather than a folder of this machine."""
    return "://" in path or "::" in path


def read_file(path: str, environ: Mapping[str, str] | None = None) -> bytes:
    """Read a file that a configuration names.

    Args:
        path: Relative to ``SERVE_APP_HOME``, absolute, or an fsspec URI.
        environ: Environment variables; by default those of this process.

    Raises:
        ConfigError: It cannot be read; does not name the path.
    """
    local = home(os.environ if environ is None else environ) / path
    try:
        if is_remote(path):
            with fsspec.open(path, "rb") as file:
                return bytes(file.read())
        return local.read_bytes()
    except FileNotFoundError:
        looked = "" if is_remote(path) else f" (looked for {local})"
        raise ConfigError((f"no such file{looked}",)) from None
    except OSError as error:
        raise ConfigError((f"cannot be read: {error.strerror or error}",)) from None
    except Exception as error:  # every filesystem behind fsspec has errors of its own
        raise ConfigError((f"cannot be read: {type(error).__name__}: {error}",)) from error


def _resolve_remote(path: str, version: int | None, environ: Mapping[str, str]) -> ModelLocation:
    try:
        filesystem, root = fsspec.url_to_fs(path)
        listing = filesystem.ls(root, detail=False)
        names = {PurePosixPath(item).name: item for item in listing}
        versions = _sorted_versions(
            name for name, item in names.items() if name.isdecimal() and filesystem.isfile(f"{item}/{MODEL_FILE}")
        )
        chosen = _choose(path, version, versions)
        copy = _cache(environ) / hashlib.sha256(f"{path}\0{chosen}".encode()).hexdigest()[:32]
        if not copy.is_dir():
            wanted = {name: item for name, item in names.items() if name == chosen or not name.isdecimal()}
            _copy(filesystem, wanted, copy, f"{path}, version {chosen}")
    except ConfigError:
        raise
    except FileNotFoundError:
        raise ConfigError((f"{path}: no such folder",)) from None
    except Exception as error:  # every filesystem behind fsspec has errors of its own
        raise ConfigError((f"{path}: cannot be read: {type(error).__name__}: {error}",)) from error
    return ModelLocation(copy / chosen, chosen, versions)


def _copy(filesystem: Any, items: Mapping[str, str], target: Path, label: str) -> None:
    """Copy remote files and folders so that the target appears whole or not at all, whoever else copies it too."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".copying-") as staging:
        copy = Path(staging) / "copy"
        copy.mkdir()
        mebibytes = sum(filesystem.du(item) for item in items.values()) / 1024**2
        _log.info("Copying %s (%.1f MiB) to %s", label, mebibytes, target)
        for name, item in items.items():
            filesystem.get(item.rstrip("/"), str(copy / name), recursive=True)
        try:
            copy.rename(target)
        except OSError:
            if not target.is_dir():  # nobody else was faster: it is a fault of its own
                raise
        _log.info("Copied %s", label)


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where copies of remote models are kept, and what was found of models."""
    environ = os.environ if environ is None else environ
    return Path(environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "serve-app")


def _cache(environ: Mapping[str, str]) -> Path:
    return cache_folder(environ) / "models"


def _sorted_versions(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted((name for name in names if name.isdecimal()), key=int))


def _choose(path: str, version: int | None, versions: tuple[str, ...]) -> str:
    if not versions:
        raise ConfigError((f"{path}: holds no <version>/{MODEL_FILE}",))
    if version is None:
        return versions[-1]
    if str(version) not in versions:
        raise ConfigError((f"{path}: has no version {shown(str(version))}; there is {', '.join(versions)}",))
    return str(version)
