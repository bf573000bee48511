"""Where a model's files are, here or behind any fsspec URI: a folder of versions, a flat folder, or one file.

A folder of versions holds one folder per version, named by a number, with the model's file inside, called as a backend
calls it:

    models/digits/
      1/model.onnx
      2/model.onnx  labels.txt

Files beside the versions belong to all of them. A version is a number without zeros in front, as in Triton. A remote
folder is copied into a cache once per version, with those files; a version never changes under the same number, but a
copy that cannot be read is made again.

A flat folder holds a file of that name, or one other file that a backend runs; a file is that file. Both are version 1,
and of what lies beside the file only what the model needs belongs to it: files with its weights, and those that
processors look for. A remote one is copied again when it has changed. The file of a flat folder may also lie in one
that is called as its backend (`onnx/model.onnx`), as in many repositories of Hugging Face.

Which backend runs a model is told by the name of its file, unless the configuration names one. Among files of several
backends, those count whose backend is installed. One that runs code must be named.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, TypeVar

import fsspec

from serve_app.backends.kind import AnyKind
from serve_app.backends.registry import BACKENDS, kinds_of
from serve_app.composition.copies import copying, marks
from serve_app.composition.references import is_pinned, pin_path
from serve_app.config.files import cache_folder, home, is_remote
from serve_app.config.model import ModelConfig
from serve_app.config.problems import short_repr
from serve_app.errors import ConfigError
from serve_app.processors.model_folder import MODULES, SIDECARS, ModelFolder, module_files

_ONLY = "1"
"""The version of a model without versions."""

_VERSION = re.compile("[1-9][0-9]{0,17}")

_Kinds: TypeAlias = Sequence[AnyKind]

_Found = TypeVar("_Found")

_log = logging.getLogger(__name__)


_looked: ContextVar[dict[Hashable, Any] | None] = ContextVar("looked", default=None)


@contextmanager
def looking_once() -> Iterator[None]:
    """Cache file look-ups within the context: the same look-up returns the first result.

    So a configuration is built from one state of the files, and a thousand models cause a thousand look-ups, not six
    thousand.
    """
    known = _looked.get()
    token = _looked.set({} if known is None else known)
    try:
        yield
    finally:
        _looked.reset(token)


def _once(what: Hashable, look: Callable[[], _Found]) -> _Found:
    """The cached result of a look-up; errors are not cached."""
    known = _looked.get()
    if known is None:
        return look()
    if what not in known:
        known[what] = look()
    found: _Found = known[what]
    return found


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """A model's files on this machine.

    Attributes:
        folder: Holds the model's file and the files beside it; of the version in use, if it has any.
        version: The version in use, a decimal string.
        versions: All versions, ascending.
        file: The model's file, relative to the folder.
        kind: Its backend.
        numbered: Whether the model is a folder of versions, whose files above the versions belong to all.
        beside: Further files that belong to a model without versions, if they exist, relative to the folder.
        copied: Whether it is a copy of a remote folder of versions.
    """

    folder: Path
    version: str
    versions: tuple[str, ...]
    file: str
    kind: AnyKind
    numbered: bool = True
    beside: tuple[str, ...] = ()
    copied: bool = False

    @property
    def model_file(self) -> Path:
        """The model's file."""
        return self.folder / self.file

    @property
    def root(self) -> Path:
        """The base of the names of `files`."""
        return self.folder.parent if self.numbered else self.folder

    def sidecars(self) -> ModelFolder:
        """Files that processors read beside the model."""
        return ModelFolder(self.folder, versioned=self.numbered)

    def files(self) -> Iterator[Path]:
        """All files of the model.

        Raises:
            ConfigError: The file is none that its backend runs.
            OSError: It cannot be read.
        """
        yield from _once(("files", self), lambda: tuple(self._files()))

    def _files(self) -> Iterator[Path]:
        if not self.numbered:
            further = (_neighbour(self.file, name) for name in self.kind.further_files(self.model_file))
            names = (self.file, *further, *self.beside)
            yield from (self.folder / name for name in dict.fromkeys(names) if (self.folder / name).is_file())
            return
        for item in (self.folder, *(item for item in self.root.iterdir() if not item.name.isdecimal())):
            yield from (file for file in (item.rglob("*") if item.is_dir() else (item,)) if file.is_file())


def resolve_model(
    path: str,
    version: int | None = None,
    environ: Mapping[str, str] | None = None,
    beside: Iterable[str] = (),
    backend: str | None = None,
    file: str | None = None,
) -> ModelLocation:
    """Find a model's files, copying remote ones here first.

    Args:
        path: Relative to ``SERVE_APP_HOME``, absolute, or an fsspec URI such as ``s3://bucket/models/digits``: a folder
            of versions, a flat folder, or a file.
        version: ``None`` for the highest.
        beside: Files that belong to the model besides those that processors look for.
        backend: ``None``: any that runs files of such a name.
        file: Name of its file in the folder, or in each version; ``None``: the backend's default.

    Raises:
        ConfigError: There is no such backend, or the path, or the version in it, is missing or unreadable; names the
            path.
    """
    beside = tuple(dict.fromkeys((*SIDECARS, *beside)))
    if environ is not None:
        return _resolve(path, version, environ, beside, backend, file)
    return _once(
        (path, version, beside, backend, file), lambda: _resolve(path, version, os.environ, beside, backend, file)
    )


def _resolve(
    path: str,
    version: int | None,
    environ: Mapping[str, str],
    beside: tuple[str, ...],
    backend: str | None,
    file: str | None,
) -> ModelLocation:
    path = pin_path(path)
    try:
        kinds = kinds_of(backend)
    except ConfigError as error:
        raise ConfigError(tuple(f"{path}: {problem}" for problem in error.problems)) from None
    if file is not None:
        named = file  # known to be a text from here on
        fitting = [kind for kind in kinds if kind.recognises(PurePosixPath(named).name)]
        kinds = tuple(replace(kind, file=named) for kind in fitting or kinds)
    if is_pinned(path):
        return _resolve_pinned(path, version, environ, beside, kinds)
    if is_remote(path):
        return _resolve_remote(path, version, environ, beside, kinds)
    try:
        return _resolve_here(path, version, environ, beside, kinds)
    except OSError as error:  # not to be read, or it vanishes at this moment
        raise ConfigError((f"{path}: cannot be read: {error.strerror}",)) from None


def _resolve_here(
    path: str, version: int | None, environ: Mapping[str, str], beside: tuple[str, ...], kinds: _Kinds
) -> ModelLocation:
    place = home(environ) / path
    if place.is_file():
        return _flat(place.parent, *_checked_file(path, place.name, version, kinds), beside)
    if not place.is_dir():
        raise ConfigError((f"{path}: no such {_what(path, kinds)} (looked for {place})",))
    is_folder = {item.name: item.is_dir() for item in place.iterdir()}
    names = [name for name, folder in is_folder.items() if folder]
    inside = {name: [kind for kind in kinds if (place / name / kind.file).is_file()] for name in names}
    versions = _sorted_versions(name for name, found in inside.items() if found)
    files = [name for name, folder in is_folder.items() if not folder and _is_model(name, kinds)]
    files = [name for name in files if (place / name).is_file()]
    if not versions:
        nested = [kind for kind in kinds if kind.name in names and (place / _nested(kind)).is_file()]
        code: _Kinds = ()
        if not files and not nested:
            within = ("", *names)
            code = [kind for kind in BACKENDS.values() if any((place / name / kind.file).is_file() for name in within)]
        return _flat(place, *_choose_file(path, version, files, kinds, nested, code), beside)
    _tell_ignored(path, [*files, *(name for name, found in inside.items() if found and not _is_version(name))])
    chosen = _choose(path, version, versions)
    kind = _only(f"{path}, version {chosen}", inside[chosen])
    return ModelLocation(place / chosen, chosen, versions, kind.file, kind)


def missing_models(models: Sequence[ModelConfig], environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Models of this machine that cannot be found, one line each. Remote ones are not looked for."""
    return tuple(
        f"args.models[{number}].{problem}"
        for number, model in enumerate(models)
        for problem in _missing(model, environ)
    )


def _missing(model: ModelConfig, environ: Mapping[str, str] | None) -> Iterator[str]:
    backend = model.backend
    try:
        kinds_of(backend)
    except ConfigError as error:
        yield from (f"backend: {problem}" for problem in error.problems)
        return
    versions = model.versions if isinstance(model.versions, tuple) else (model.version,)
    wanted = [("path", model.path, version) for version in versions]
    for at, variant in enumerate(model.variants):
        same = versions if variant.version is None and model.versions is not None else (variant.version,)
        wanted += [(f"variants[{at}].path", variant.path, version) for version in same]
    for key, path, version in wanted:
        if is_remote(path):
            continue
        try:
            found = resolve_model(path, version, environ, backend=backend, file=model.file if key == "path" else None)
        except ConfigError as error:
            yield from (f"{key}: {problem}" for problem in error.problems)
        else:
            backend = backend or found.kind.name  # that of the model runs its variants, too


def _flat(folder: Path, file: str, kind: AnyKind, beside: tuple[str, ...]) -> ModelLocation:
    with suppress(OSError):
        beside = tuple(dict.fromkeys((*beside, *module_files((folder / MODULES).read_bytes()))))
    return ModelLocation(folder, _ONLY, (_ONLY,), file, kind, numbered=False, beside=beside)


def _resolve_pinned(
    path: str, version: int | None, environ: Mapping[str, str], beside: tuple[str, ...], kinds: _Kinds
) -> ModelLocation:
    """Use the copy of a path that never changes, if there is one, without asking its source."""
    by_name = {kind.name: kind for kind in kinds}
    asked = (part for kind in kinds for part in (kind.name, kind.file))
    record = _cache(environ) / f"{_digest(path, str(version), *beside, *asked)}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads(record.read_text(encoding="utf-8"))
        folder, kind = record.parent / told.pop("folder"), by_name[told.pop("kind")]
        found = ModelLocation(folder=folder, kind=kind, beside=beside, **told)
        if found.model_file.is_file():
            return replace(found, versions=tuple(found.versions))
    found = replace(_resolve_remote(path, version, environ, beside, kinds), copied=False)
    told = {name: getattr(found, name) for name in ("version", "versions", "file", "numbered")}
    told |= {"folder": str(found.folder.relative_to(record.parent)), "kind": found.kind.name}
    _write(record, told)
    return found


def _resolve_remote(
    path: str, version: int | None, environ: Mapping[str, str], beside: tuple[str, ...], kinds: _Kinds
) -> ModelLocation:
    try:
        filesystem, root = fsspec.url_to_fs(path)
        filesystem.invalidate_cache()  # it may have been listed before
        if _is_model(root, (*kinds, *BACKENDS.values())) and filesystem.isfile(root):
            folder, _, name = root.rpartition("/")
            chosen_file = _checked_file(path, name, version, kinds)
            return _copy_flat(filesystem, path, folder, *chosen_file, beside, environ)
        listing = filesystem.ls(root, detail=False)
        names = {PurePosixPath(item).name: item for item in listing}
        inside = {
            name: [kind for kind in kinds if filesystem.isfile(f"{item}/{kind.file}")]
            for name, item in names.items()
            if _is_version(name)
        }
        versions = _sorted_versions(name for name, found in inside.items() if found)
        files = [name for name, item in names.items() if _is_model(name, kinds) and filesystem.isfile(item)]
        if not versions:
            nested = [kind for kind in kinds if kind.name in names and filesystem.isfile(f"{root}/{_nested(kind)}")]
            code: _Kinds = () if files or nested else _code_in(filesystem, names)
            chosen_file = _choose_file(path, version, files, kinds, nested, code)
            return _copy_flat(filesystem, path, root.rstrip("/"), *chosen_file, beside, environ)
        _tell_ignored(path, files)
        chosen = _choose(path, version, versions)
        label = f"{path}, version {chosen}"
        kind = _only(label, inside[chosen])
        copy = _cache(environ) / _digest(path, chosen)
        if not copy.is_dir():
            with copying(filesystem, copy.parent, label) as made:
                for name, item in names.items():
                    if name == chosen or not name.isdecimal():
                        made.get(item, name)
                _require_further(made.folder / chosen, kind, label)
                made.publish(copy)
    except ConfigError:
        raise
    except FileNotFoundError:
        raise ConfigError((f"{path}: no such {_what(path, kinds)}",)) from None
    except Exception as error:  # every filesystem behind fsspec has errors of its own
        raise ConfigError((f"{path}: cannot be read: {type(error).__name__}: {error}",)) from error
    return ModelLocation(copy / chosen, chosen, versions, kind.file, kind, copied=True)


def _code_in(filesystem: Any, names: Mapping[str, str]) -> _Kinds:
    """Backends that would run code in a remote folder or its versions, if they were named."""
    inside = [item for name, item in names.items() if _is_version(name)]
    return [
        kind
        for kind in BACKENDS.values()
        if kind.runs_code and (kind.file in names or any(filesystem.isfile(f"{item}/{kind.file}") for item in inside))
    ]


def _copy_flat(
    filesystem: Any,
    path: str,
    folder: str,
    file: str,
    kind: AnyKind,
    beside: tuple[str, ...],
    environ: Mapping[str, str],
) -> ModelLocation:
    """Copy a model's file and the files that belong to it, unless a copy of their present state exists."""

    def at(name: str) -> str:
        return f"{folder}/{name}" if folder else name

    with suppress(FileNotFoundError):
        beside = tuple(dict.fromkeys((*beside, *module_files(filesystem.cat_file(at(MODULES))))))
    found = [file, *(name for name in beside if filesystem.isfile(at(name)))]
    key = _digest(path, *_states(filesystem, {name: at(name) for name in found}))
    whole, record = _cache(environ) / key, _cache(environ) / f"{key}.json"
    if whole.is_dir():
        return _flat(whole, file, kind, beside)
    with suppress(OSError, ValueError):  # which files its file names, that had been copied before
        further = json.loads(record.read_text(encoding="utf-8"))
        copy = _cache(environ) / _digest(key, *_states(filesystem, {name: at(name) for name in further}))
        if copy.is_dir():
            return _flat(copy, file, kind, beside)
    with copying(filesystem, whole.parent, path) as made:
        for name in found:
            made.get(at(name), name)
        further = [_neighbour(file, name) for name in _further(made.folder, file, kind, path)]
        for name in further:
            try:
                made.get(at(name), name)
            except FileNotFoundError:
                raise _incomplete(path, file, name) from None
        copy = whole
        if further:
            copy = whole.parent / _digest(key, *_states(filesystem, {name: at(name) for name in further}))
            _write(record, further)
        made.publish(copy)
    return _flat(copy, file, kind, beside)


def _states(filesystem: Any, items: Mapping[str, str]) -> Iterator[str]:
    """Marks of remote files that change with their contents, as far as their filesystem has any."""
    for name, item in items.items():
        yield from (name, str(filesystem.ukey(item)), *marks(filesystem.info(item)))


def _further(folder: Path, file: str, kind: AnyKind, label: str) -> Sequence[str]:
    """Files that a model's file names. Raises ConfigError if it cannot be read."""
    try:
        return kind.further_files(folder / file)
    except ConfigError as error:
        raise ConfigError(tuple(f"{label}: {line.removeprefix(f'{folder}/')}" for line in error.problems)) from None


def _require_further(folder: Path, kind: AnyKind, label: str) -> None:
    """Raise ConfigError if a file named by a model's file is missing. An unreadable model's file names nothing."""
    names: Sequence[str] = ()
    with suppress(ConfigError):
        names = kind.further_files(folder / kind.file)
    for name in names:
        if not (folder / name).is_file():
            raise _incomplete(label, kind.file, name)


def _incomplete(label: str, file: str, name: str) -> ConfigError:
    return ConfigError((f"{label}: {file} names {name}, which is not there",))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _write(record: Path, told: Any) -> None:
    with tempfile.NamedTemporaryFile("w", dir=record.parent, prefix=".record-", delete=False) as file:
        json.dump(told, file)
    Path(file.name).replace(record)


def _neighbour(file: str, name: str) -> str:
    """The path of a name relative to a file's folder."""
    return str(PurePosixPath(file).parent / name)


def _nested(kind: AnyKind) -> str:
    return f"{kind.name}/{kind.file}"


def _cache(environ: Mapping[str, str]) -> Path:
    return cache_folder(environ) / "models"


def _is_model(path: str, kinds: _Kinds) -> bool:
    name = PurePosixPath(path).name
    return any(kind.recognises(name) for kind in kinds)


def _what(path: str, kinds: _Kinds) -> str:
    return "file" if _is_model(path, kinds) else "folder"


def _only(place: str, kinds: _Kinds) -> AnyKind:
    """The one kind that runs these files."""
    kinds = _installed(kinds)
    if len(kinds) > 1:
        names = " and ".join(kind.name for kind in kinds)
        raise ConfigError((f"{place}: {names} could run it: say which of them by backend",))
    return kinds[0]


def _installed(kinds: _Kinds) -> _Kinds:
    """Kinds that can run here; all of them if none can, so that one of them says what it lacks."""
    return [kind for kind in kinds if not kind.lacks()] or kinds


def _listed(kinds: _Kinds, of: Callable[[AnyKind], Iterable[str]]) -> str:
    return " or ".join(dict.fromkeys(name for kind in _installed(kinds) for name in of(kind)))


def _suffixes(kinds: _Kinds) -> str:
    return _listed(kinds, lambda kind: (f"*{suffix}" for suffix in kind.suffixes))


def _hint(kinds: _Kinds) -> str:
    """Advice if only kinds that must be named run these files."""
    return "".join(f"; {kind.file} runs with backend: {kind.name}" for kind in kinds if kind.runs_code)


def _sorted_versions(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(filter(_is_version, names), key=int))


def _is_version(name: str) -> bool:
    """Whether a folder's name is a version: a number as it is written in a configuration, of at most 18 digits."""
    return _VERSION.fullmatch(name) is not None


def _tell_ignored(path: str, files: list[str]) -> None:
    if files:
        _log.warning("%s: is a folder of versions; not used: %s", path, ", ".join(sorted(files)))


def _choose(path: str, version: int | None, versions: tuple[str, ...]) -> str:
    if version is None:
        return versions[-1]
    if str(version) not in versions:
        raise ConfigError((f"{path}: has no version {short_repr(str(version))}; there is {', '.join(versions)}",))
    return str(version)


def _choose_file(
    path: str, version: int | None, files: list[str], kinds: _Kinds, nested: _Kinds, others: _Kinds = ()
) -> tuple[str, AnyKind]:
    """The one model of a folder without versions, and its backend.

    Args:
        path: As configured, like ``version``.
        files: The models among the folder's files.
        kinds: Candidates.
        nested: Those of them whose model lies in a folder of their name.
        others: Kinds that would run these files, but must be named.
    """
    usual = _listed(kinds, lambda kind: (kind.file,))
    if not files and nested:
        kind = _only(path, nested)
        return _without_versions(path, _nested(kind), version, kind)
    if not files:
        versioned = _listed(kinds, lambda kind: (f"<version>/{kind.file}",))
        raise ConfigError(
            (f"{path}: holds no {versioned}, no {usual} and no other file {_suffixes(kinds)}{_hint(others)}",)
        )
    files = [name for name in files if _is_model(name, _installed(kinds))] or files
    called_so = [kind for kind in kinds if kind.file in files]
    if not called_so and len(files) > 1:
        listed = ", ".join(sorted(files))
        raise ConfigError((f"{path}: holds several models and no {usual}: name one in the path ({listed})",))
    if called_so:
        kind = _only(path, called_so)
        return _without_versions(path, kind.file, version, kind)
    return _checked_file(path, files[0], version, kinds)


def _checked_file(path: str, name: str, version: int | None, kinds: _Kinds) -> tuple[str, AnyKind]:
    fitting = [kind for kind in kinds if kind.recognises(name)]
    if not fitting:
        names = _listed(kinds, lambda kind: () if kind.file.endswith(kind.suffixes) else (kind.file,))
        listed = " or ".join(part for part in (names, _suffixes(kinds)) if part)
        others = [kind for kind in BACKENDS.values() if kind.recognises(name)]
        raise ConfigError((f"{path}: is a file, and not a model ({listed}){_hint(others)}",))
    return _without_versions(path, name, version, _only(path, fitting))


def _without_versions(path: str, file: str, version: int | None, kind: AnyKind) -> tuple[str, AnyKind]:
    if version is not None:
        raise ConfigError(
            (f"{path}: has no versions, only {file}; leave version out, or put the file into {version}/{kind.file}",)
        )
    return file, kind
