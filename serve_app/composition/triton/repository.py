"""All models of a Triton repository, and what they ask of the classes that they share here."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pydantic import ValidationError

from serve_app.composition.triton.classes import ModelQueues, merge_classes
from serve_app.composition.triton.fields import FILE, Document
from serve_app.composition.triton.translation import Translated, translate
from serve_app.config import ModelConfig
from serve_app.config.files import home, is_remote
from serve_app.config.problems import problems_of
from serve_app.errors import ConfigError, ServeAppError

_SHARES: Final = 10_000
"""Ray divides a GPU into as many parts."""


@dataclass(frozen=True, slots=True)
class RepositoryModel:
    """One folder of a repository.

    Attributes:
        name: Its name.
        keys: An entry of `models`; ``None`` where it is not served.
        notes: What is followed otherwise than there, or why it is not served, one line each.
    """

    name: str
    keys: Mapping[str, Any] | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Repository:
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
        return [dict(model.keys) for model in self.models if model.keys is not None]

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to tell of all models."""
        return tuple(note for model in self.models for note in model.notes)


def read_repository(
    path: str,
    taken: Collection[str] = (),
    classes: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    strict: bool = False,
) -> Repository:
    """Translate every model of a repository.

    Args:
        path: The folder, relative to ``SERVE_APP_HOME`` or absolute.
        taken: Names of models that are configured by hand: their folders are left out.
        classes: What the configuration says of classes, which counts more than what models ask.
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
    found: dict[str, _Model] = {}
    problems: list[str] = []
    for folder in folders:
        if folder.name.startswith(".") or not folder.is_dir():
            continue
        model = _Model(folder.name, str(PurePosixPath(path) / folder.name))
        found[folder.name] = model
        if folder.name in taken:
            model.notes.append(
                f"{model.path}: models has an entry {folder.name!r}, which counts in place of the folder"
            )
            continue
        try:
            model.read(folder, environ, strict=strict)
        except ConfigError as error:
            problems += error.problems
    served = [model for model in found.values() if model.translated is not None]
    _share_gpus(served)
    queues = [ModelQueues(model.document, model.translated.queues) for model in served if model.translated is not None]
    merged = merge_classes(queues, {} if classes is None else classes)
    for model in served:
        try:
            ModelConfig.model_validate(model.keys)
        except ValidationError as error:
            found_here = problems_of(error, model.keys, ModelConfig.model_json_schema())
            problems += [f"{model.path}: {problem}" for problem in found_here]
    if problems:
        raise ConfigError(tuple(problems))
    return Repository(
        tuple(
            RepositoryModel(model.name, None if model.translated is None else model.keys, tuple(model.lines()))
            for model in found.values()
        ),
        merged,
    )


class _Model:
    """A folder while the repository is read."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path
        self.document: Document | None = None
        self.translated: Translated | None = None
        self.notes: list[str] = []

    @property
    def keys(self) -> dict[str, Any]:
        return {} if self.translated is None else self.translated.keys

    def read(self, folder: Path, environ: Mapping[str, str], *, strict: bool) -> None:
        """Translate it. Raises `ConfigError` for what is wrong, and if ``strict`` for what cannot be served."""
        file = f"{self.path}/{FILE}"
        try:
            if (folder / FILE).is_file():
                self.document = Document(file, (folder / FILE).read_text(encoding="utf-8"))
            self.translated = translate(self.document, self.name, self.path, folder, environ)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError((f"{file}: cannot be read: {error}",)) from None
        except ServeAppError as error:
            problems = error.problems if isinstance(error, ConfigError) else (str(error),)
            if self.document is not None or strict or (folder / FILE).is_file():
                raise ConfigError(problems) from None
            self.notes += self._not_served(problems)
            return
        if self.document is None:
            return
        remarks = self.document.remarks
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
        if self.translated is not None and self.document is not None:
            yield from (remark.line() for remark in self.document.remarks)


def _share_gpus(models: list[_Model]) -> None:
    """Give every replica that may run on a GPU an equal share, so that one GPU has room for what it has in Triton."""
    instances = {model.name: model.translated.instances.per_gpu for model in models if model.translated is not None}
    total = sum(instances.values())
    for model in models:
        if instances[model.name]:
            share = max(1, math.floor(_SHARES / total)) / _SHARES
            model.keys["resources"] = {**model.keys.get("resources", {}), "gpus": share}
