"""All models and ensembles of a Triton repository, and what they ask of the classes that they share here."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pydantic import ValidationError

from serve_app import wings
from serve_app.config.files import home, is_remote
from serve_app.config.model import ModelConfig
from serve_app.config.problems import problems_of
from serve_app.errors import ConfigError, ServeAppError
from serve_app.triton.classes import ModelQueues, merge_classes
from serve_app.triton.fields import FILE, TritonDocument
from serve_app.triton.neighbours import Neighbours, is_ensemble
from serve_app.triton.translation import Translated, translate

_SHARES: Final = 10_000
"""Ray divides a GPU into as many parts."""


@dataclass(frozen=True, slots=True)
class RepositoryModel:
    """One folder of a repository.

    Attributes:
        keys: An entry of `models`, or of `pipelines`; ``None`` where it is not served.
        notes: What is followed otherwise than there, or why it is not served, one line each.
        is_pipeline: Whether it is an ensemble.
    """

    name: str
    keys: Mapping[str, Any] | None
    notes: tuple[str, ...]
    is_pipeline: bool = False


@dataclass(frozen=True, slots=True)
class TritonRepository:
    """A repository as our configuration.

    Attributes:
        models: By folder, in order of their names.
        classes: What stands under `classes`, where the models agree about it.
    """

    models: tuple[RepositoryModel, ...]
    classes: Mapping[str, Any]

    @property
    def served(self) -> list[dict[str, Any]]:
        """The entries of `models`."""
        return [dict(model.keys) for model in self.models if model.keys is not None and not model.is_pipeline]

    @property
    def pipelines(self) -> list[dict[str, Any]]:
        """The entries of `pipelines`."""
        return [dict(model.keys) for model in self.models if model.keys is not None and model.is_pipeline]

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to tell of all models."""
        return tuple(note for model in self.models for note in model.notes)


def read_repository(
    path: str,
    given: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    strict: bool = False,
) -> TritonRepository:
    """Translate every model of a repository.

    Args:
        path: The folder, relative to ``SERVE_APP_HOME`` or absolute.
        given: What else stands under ``args:``. Folders that are called as one of its `models` or `pipelines` are left
            out; what it says of `classes` counts more than what models ask.
        environ: Environment variables; by default those of this process.
        strict: Whether all of them must be served.

    Raises:
        ConfigError: It is not there, a `config.pbtxt` is wrong or does not fit its model's file; with ``strict``, a
            model cannot be served. One line per fault, with file, line and column.
    """
    environ = os.environ if environ is None else environ
    root = home(environ) / path
    if is_remote(path) or not root.is_dir():
        raise ConfigError((f"repository.path: {path}: is no folder of this machine (looked for {root})",))
    if (root / FILE).is_file():
        raise ConfigError((f"repository.path: {path}: is the folder of one model; name the folder that holds it",))
    try:
        folders = sorted(root.iterdir(), key=lambda item: item.name)
    except OSError as error:
        raise ConfigError((f"repository.path: {path}: cannot be read: {error.strerror}",)) from None
    given = {} if given is None else given
    found, problems = _read_models(path, folders, given, environ, strict=strict)
    served = [model for model in found if model.translated is not None]
    _share_gpus(served)
    queues = [ModelQueues(model.document, model.translated.queues) for model in served if model.translated is not None]
    classes = given.get("classes")
    merged = merge_classes(queues, classes if isinstance(classes, Mapping) else {})
    for model in served:
        try:
            ModelConfig.model_validate(model.keys)
        except ValidationError as error:
            found_here = problems_of(error, model.keys, ModelConfig.model_json_schema())
            problems += [f"{model.path}: {problem}" for problem in found_here]
    if problems:
        raise ConfigError(tuple(problems))
    return TritonRepository(
        tuple(RepositoryModel(model.name, model.entry, tuple(model.lines()), model.is_ensemble) for model in found),
        merged,
    )


def _read_models(
    path: str, folders: Iterable[Path], given: Mapping[str, Any], environ: Mapping[str, str], *, strict: bool
) -> tuple[list[_Model], list[str]]:
    """Every folder, with faults: models first, since ensembles are made of them."""
    by_hand, pipelines = _by_name(given.get("models")), _by_name(given.get("pipelines"))
    found: dict[str, _Model] = {}
    problems: list[str] = []
    for folder in folders:
        if folder.name.startswith(".") or not folder.is_dir():
            continue
        model = found[folder.name] = _Model(folder, str(PurePosixPath(path) / folder.name))
        if folder.name in {**by_hand, **pipelines}:
            section = "models" if folder.name in by_hand else "pipelines"
            model.notes.append(
                f"{model.path}: {section} has an entry {folder.name!r}, which counts in place of the folder"
            )
            continue
        try:
            model.read(environ, strict=strict)
        except ConfigError as error:
            problems += error.problems
    ensembles = {name: model for name, model in found.items() if model.is_ensemble}
    entries = {name: model.entry for name, model in found.items() if name not in {*ensembles, *pipelines}}
    neighbours = Neighbours({**entries, **by_hand}, {*ensembles, *pipelines}, complete=not given.get("pools"))
    for model in ensembles.values():
        try:
            model.read_ensemble(neighbours, strict=strict)
        except ConfigError as error:
            problems += error.problems
    return list(found.values()), problems


def _by_name(entries: Any) -> dict[str, Mapping[str, Any]]:
    """What is configured by hand, as far as it has a name."""
    given = entries if isinstance(entries, list | tuple) else []
    return {str(entry.get("name")): entry for entry in given if isinstance(entry, Mapping)}


class _Model:
    """A folder while the repository is read."""

    def __init__(self, folder: Path, path: str) -> None:
        self.name, self.path = folder.name, path
        self.document: TritonDocument | None = None
        self.translated: Translated | None = None
        self.pipeline: dict[str, Any] | None = None
        self.is_ensemble = False
        self.notes: list[str] = []
        self._folder = folder

    @property
    def keys(self) -> dict[str, Any]:
        return {} if self.translated is None else self.translated.keys

    @property
    def entry(self) -> dict[str, Any] | None:
        """Of `models` or `pipelines`; ``None`` where it is not served."""
        return self.pipeline if self.translated is None else self.translated.keys

    def read(self, environ: Mapping[str, str], *, strict: bool) -> None:
        """Translate it, unless it is an ensemble.

        Raises:
            ConfigError: Something is wrong with it; if ``strict``, it cannot be served.
        """
        try:
            if (self._folder / FILE).is_file():
                self.document = TritonDocument(f"{self.path}/{FILE}", (self._folder / FILE).read_text(encoding="utf-8"))
                self.is_ensemble = is_ensemble(self.document)
            if not self.is_ensemble:
                self.translated = translate(self.document, self.name, self.path, self._folder, environ)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError((f"{self.path}/{FILE}: cannot be read: {error}",)) from None
        except ServeAppError as error:
            problems = error.problems if isinstance(error, ConfigError) else (str(error),)
            if self.document is not None or strict or (self._folder / FILE).is_file():
                raise ConfigError(problems) from None
            self.notes += self._not_served(problems)
            return
        self._settle(strict=strict)

    def read_ensemble(self, neighbours: Neighbours, *, strict: bool) -> None:
        """The same of an ensemble."""
        assert self.document is not None
        wings.need("pipelines", "config", f"{self.path}: an ensemble")
        from serve_app.triton.ensembles import translate_ensemble  # noqa: PLC0415 - needs pipelines

        self.pipeline = translate_ensemble(self.document, self.name, self._folder, neighbours)
        self._settle(strict=strict)

    def _settle(self, *, strict: bool) -> None:
        """What keeps it from being served becomes an error or notes."""
        remarks = [] if self.document is None else self.document.remarks
        faults = tuple(remark.line() for remark in remarks if remark.level == "fault")
        refusals = [remark.line() for remark in remarks if remark.level == "refusal"]
        if faults and not refusals:
            raise ConfigError(faults)
        if refusals:
            lines = self._not_served(refusals)
            if strict:
                raise ConfigError(lines)
            self.notes += lines

    def _not_served(self, reasons: Iterable[str]) -> tuple[str, ...]:
        return tuple(f"{reason}: model {self.name!r} is not served" for reason in reasons)

    def lines(self) -> Iterator[str]:
        yield from self.notes
        if self.entry is not None and self.document is not None:
            yield from (remark.line() for remark in self.document.remarks)


def _share_gpus(models: list[_Model]) -> None:
    """Give every replica that may run on a GPU an equal share, so that one GPU has room for what it has in Triton."""
    instances = {model.name: model.translated.instances.per_gpu for model in models if model.translated is not None}
    total = sum(instances.values())
    for model in models:
        if instances[model.name]:
            share = max(1, math.floor(_SHARES / total)) / _SHARES
            model.keys["resources"] = {**model.keys.get("resources", {}), "gpus": share}
