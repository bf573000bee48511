"""A revision: a state of a model's files, the same for all routers and replicas. Found, kept, and opened again.

Only the agreed revision may be loaded, however late a replica starts. So a revision is named by a digest of everything
that its answers depend on, and is compared when opened. Replicas keep the files that they load by hard links, which
cost no room: a replaced file (by `rename`, as it should be) is still there under the link.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from serve_app.backends.description import Description
from serve_app.composition.copies import forget_unused, is_being_written, staging, use_folder
from serve_app.composition.digests import Digests
from serve_app.composition.identity import identities
from serve_app.composition.locate import ModelLocation
from serve_app.composition.model import file_bytes, find_files, read_builds
from serve_app.config.files import cache_folder
from serve_app.config.model import ModelConfig
from serve_app.errors import ConfigError

_log = logging.getLogger(__name__)

_EXACT = "exact"
"""Folder of the exact model's files; a variant's is the variant's number."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A state of a model's files.

    Attributes:
        model: The model, with the version of these files if there are several.
        identities: Of the builds, by variant.
        name: A digest over these.
        states: Marks of the files in their filesystem, which change with the contents.
    """

    model: ModelConfig
    locations: Mapping[str, ModelLocation]
    identities: Mapping[str, str]
    name: str
    states: Sequence[tuple[int, int, int]]

    def changed(self) -> bool:
        """Whether a file is another now, or may be."""
        try:
            return _states(self.locations) != self.states
        except (OSError, ConfigError):
            return True

    def check_written(self) -> None:
        """Raise ConfigError if a process of this machine is writing one of the files."""
        for location in self.locations.values():
            for file in location.files():
                if is_being_written(file):
                    what = f"{file.relative_to(location.root)} is being written; rename it when it is whole"
                    raise ConfigError((f"model {self.model.name!r}: {what}",))

    @property
    def version(self) -> int | None:
        """The version of the model; ``None`` if it has none."""
        return self.model.version

    @property
    def builds(self) -> dict[str, Description]:
        """Contents of the files, by variant. Raises ConfigError if they cannot be served."""
        return read_builds(self.model, self.locations)

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return file_bytes(self.locations)


def find_revision(
    model: ModelConfig, environ: Mapping[str, str] | None = None, digests: Digests | None = None
) -> Revision:
    """Find the present state of a model's files.

    Args:
        digests: Of its files; by default those of the cache folder.

    Raises:
        ConfigError: Something is missing, or cannot be read.
    """
    locations = find_files(model, environ)
    exact = locations[""]
    if exact.numbered:
        model = model.model_copy(update={"version": int(exact.version)})
    return _revision(model, locations, Digests(environ) if digests is None else digests)


def find_revisions(models: Sequence[ModelConfig], environ: Mapping[str, str] | None = None) -> dict[str, Revision]:
    """Find the present states of several models, by name. Their files are read several at a time."""
    digests = Digests(environ)
    digests.read_ahead(model_files(models, environ))
    return {model.name: find_revision(model, environ, digests) for model in models}


def model_files(models: Iterable[ModelConfig], environ: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Existing files of models; faults are reported when a model is read by itself."""
    for model in models:
        with suppress(OSError, ConfigError):
            for location in find_files(model, environ).values():
                yield from location.files()


def open_revision(
    model: ModelConfig, name: str, version: int | None = None, environ: Mapping[str, str] | None = None
) -> Revision:
    """Open a known state of a model's files, from the kept files on this machine or their original place.

    Args:
        version: Of the model.

    Raises:
        ConfigError: The files are others now, and none were kept here.
    """
    if version is not None:
        model = model.model_copy(update={"version": version})
    problem = ""
    try:
        found = _revision(model, find_files(model, environ), Digests(environ))
    except ConfigError as error:
        problem = f" ({error.problems[0]})"
    else:
        if found.name == name:
            return found
    folder = _kept(model, environ) / name
    if folder.is_dir():
        kept = _open_kept(model, folder, environ)
        if kept is not None and kept.name == name:
            return kept
    again = "deploy it again"
    if model.pool is None:
        again = f"load the model again, or {again} if it has no other replica"
    raise ConfigError((f"model {model.name!r}: its files are not those of revision {name} any more{problem}; {again}",))


def keep_revision(revision: Revision, environ: Mapping[str, str] | None = None) -> ExitStack:
    """Keep the files of a revision by hard links. Without hard links in the filesystem, nothing is kept.

    Returns:
        Until this is closed, `forget_revisions` leaves them alone.
    """
    folder = _kept(revision.model, environ)
    target = folder / revision.name
    kept = ExitStack()
    try:
        while not use_folder(target, kept):
            with staging(folder, ".linking-") as place_beside:
                copy = place_beside / "copy"
                for place, location in _places(revision.model, revision.locations):
                    _link(location, copy / place)
                try:
                    copy.rename(target)
                except OSError:
                    if not target.is_dir():  # no other process was faster: it is a real fault
                        raise
    except (OSError, ConfigError) as error:
        _log.info("model %r: the files of revision %s are not kept: %s", revision.model.name, revision.name, error)
    return kept


def forget_revisions(model: ModelConfig, agreed: str, environ: Mapping[str, str] | None = None) -> None:
    """Remove the kept files of a model's revisions, except those that a process of this machine has loaded.

    Args:
        agreed: The agreed revision, which stays; empty: the model is unloaded.
    """
    folder = _kept(model, environ)
    try:
        for other in folder.iterdir() if folder.is_dir() else ():
            if other.name != agreed and not other.name.startswith("."):
                forget_unused(other)
    except OSError as error:
        _log.info("model %r: files of former revisions are still kept: %s", model.name, error)


def _revision(model: ModelConfig, locations: Mapping[str, ModelLocation], digests: Digests) -> Revision:
    try:
        states = _states(locations)  # before they are read
    except OSError as error:
        raise ConfigError((f"model {model.name!r}: {error}",)) from None
    known = identities(model, locations, digests)
    digest = hashlib.sha256("\0".join(part for item in sorted(known.items()) for part in item).encode())
    return Revision(model, locations, known, digest.hexdigest()[:16], states)


def _states(locations: Mapping[str, ModelLocation]) -> Sequence[tuple[int, int, int]]:
    found = (file.stat() for location in locations.values() for file in sorted(location.files()))
    return [(state.st_ino, state.st_size, state.st_mtime_ns) for state in found]


def _open_kept(model: ModelConfig, folder: Path, environ: Mapping[str, str] | None) -> Revision | None:
    """A revision whose files were linked into this folder. They are listed anew."""
    try:
        moved = model.model_copy(
            update={
                "path": str(folder / _EXACT),
                "variants": tuple(
                    variant.model_copy(update={"path": str(folder / str(at))})
                    for at, variant in enumerate(model.variants)
                ),
            }
        )
        found = _revision(moved, find_files(moved), Digests(environ))
    except (OSError, ConfigError) as error:
        _log.warning("model %r: %s cannot be used: %s", model.name, folder, error)
        return None
    return replace(found, model=model)


def _places(model: ModelConfig, locations: Mapping[str, ModelLocation]) -> list[tuple[str, ModelLocation]]:
    """The folder of each build's kept files."""
    names = [(_EXACT, ""), *((str(at), variant.name) for at, variant in enumerate(model.variants))]
    return [(place, locations[variant]) for place, variant in names]


def _link(location: ModelLocation, folder: Path) -> None:
    for file in location.files():
        target = folder / file.relative_to(location.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(file.resolve(), target)


def _kept(model: ModelConfig, environ: Mapping[str, str] | None) -> Path:
    place = hashlib.sha256(model.path.encode()).hexdigest()[:16]
    return cache_folder(environ) / "revisions" / f"{model.deployment}-{place}"
