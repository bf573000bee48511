"""Fingerprints a model's files from outside, without reading them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import fsspec

from serve_app.composition.copies import is_being_written, listing, seen
from serve_app.composition.locate import ModelLocation
from serve_app.composition.model import find_files
from serve_app.composition.references import is_pinned
from serve_app.config.files import is_remote
from serve_app.config.model import ModelConfig
from serve_app.errors import ConfigError


def look_at(model: ModelConfig, environ: Mapping[str, str] | None = None) -> Hashable | None:
    """Names, sizes and times of a model's files, here or behind an fsspec URI.

    Returns:
        Another value if a file has changed, as far as its filesystem knows; ``None`` if something is missing, or is
        being written by a process of this machine.
    """
    paths = (model.path, *(variant.path for variant in model.variants))
    remote = tuple(_listed(path) for path in paths if is_remote(path) and not is_pinned(path))
    if None in remote:
        return None
    if len(remote) == len(paths):
        return remote
    try:
        files = [file for location in find_files(model, environ).values() for file in _files(location)]
        if any(map(is_being_written, files)):
            return None
        here = tuple(map(_marked, files))
    except (ConfigError, OSError):
        return None
    return (remote, here)


def _files(location: ModelLocation) -> Sequence[Path]:
    """Files of a build. Its model file is read once for the names of others."""
    if location.numbered:
        return sorted(location.files())
    return [location.model_file, *_beside(location, _marked(location.model_file))]


@lru_cache(maxsize=4096)
def _beside(location: ModelLocation, _state: Hashable) -> Sequence[Path]:
    return sorted(location.files())


def _marked(file: Path) -> Hashable:
    state = file.stat()
    return str(file), state.st_ino, state.st_size, state.st_mtime_ns


def _listed(path: str) -> Hashable | None:
    try:
        filesystem, root = fsspec.url_to_fs(path)
        filesystem.invalidate_cache()
        return seen(listing(filesystem, root)) or None
    except Exception:  # every filesystem behind fsspec has errors of its own
        return None
