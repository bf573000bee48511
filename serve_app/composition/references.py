"""References to models in registries, whose targets change: resolved once, to their present targets.

A branch of a Hugging Face repository and an alias of an MLflow model move. `pin_models` replaces them by a commit and
by a version's artifacts before anything is read, so that all replicas run the same files, however late they start.

The client libraries of registries are extras, and slow to import: functions import them.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import fsspec
from fsspec.spec import AbstractFileSystem

from serve_app.config.args import AppArgs
from serve_app.errors import ConfigError

_HUGGING_FACE = "hf://"
_MLFLOW = "models:/"
_ARTIFACTS = "mlflow-artifacts"
"""Scheme of artifacts read through MLflow's own server."""

_COMMIT = re.compile(r"hf://[^@]+@[0-9a-f]{40}(/.*)?")

_log = logging.getLogger(__name__)


def is_pinned(path: str) -> bool:
    """Whether a path names files that never change, so that a copy of them stays valid."""
    return _COMMIT.fullmatch(path) is not None


def pin_models(config: AppArgs) -> AppArgs:
    """Replace the path of every model and variant by one whose files never change.

    Raises:
        ConfigError: One line for each reference without a target, or whose registry cannot be asked.
    """
    problems: list[str] = []

    def pinned(path: str, label: str) -> str:
        try:
            return pin_path(path)
        except ConfigError as error:
            problems.extend(f"{label}: {problem}" for problem in error.problems)
            return path

    models = []
    for model in config.models:
        label = f"model {model.name!r}"
        variants = tuple(
            variant.model_copy(update={"path": pinned(variant.path, f"{label}, variant {variant.name!r}")})
            for variant in model.variants
        )
        models.append(model.model_copy(update={"path": pinned(model.path, label), "variants": variants}))
    if problems:
        raise ConfigError(tuple(problems))
    return config.model_copy(update={"models": tuple(models)})


def pin_path(path: str) -> str:
    """The present target of a reference; any other path is unchanged.

    Args:
        path: ``hf://owner/repository[@revision][/path]``: becomes the same at a commit. ``models:/name/version`` or
            ``models:/name@alias``: becomes the URI of that version's artifacts.

    Raises:
        ConfigError: It has no target, the registry cannot be asked, or its client library is not installed.
    """
    if is_pinned(path):
        return path
    for scheme, resolve, extra in (
        (_HUGGING_FACE, _commit_of, "huggingface"),
        (_MLFLOW, _artifacts_of, "mlflow"),
    ):
        if path.startswith(scheme):
            found = _asked(path, resolve, extra)
            if found != path:
                _log.info("%s is %s", path, found)
            return found
    return path


def _asked(path: str, resolve: Callable[[str], str], extra: str) -> str:
    try:
        return resolve(path)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigError((f"{path}: {error.name} is not installed: pip install 'serve-app[{extra}]'",)) from None
    except Exception as error:  # each library has a tree of errors of its own, and those of its HTTP client
        reason = next(iter(str(error).strip().splitlines()), "")
        raise ConfigError((f"{path}: cannot be resolved: {type(error).__name__}: {reason}",)) from error


def _commit_of(path: str) -> str:
    from huggingface_hub import HfApi, HfFileSystem  # noqa: PLC0415
    from huggingface_hub.hf_file_system import HfFileSystemResolvedRepositoryPath  # noqa: PLC0415

    place = HfFileSystem().resolve_path(path)
    if not isinstance(place, HfFileSystemResolvedRepositoryPath) or place.repo_type != "model":
        raise ConfigError((f"{path}: names no repository of models; expected hf://owner/repository",))
    commit = HfApi().model_info(place.repo_id, revision=place.revision).sha
    return f"{_HUGGING_FACE}{place.repo_id}@{commit}" + (f"/{place.path_in_repo}" if place.path_in_repo else "")


def _artifacts_of(path: str) -> str:
    name, alias, version = _parts(path)
    from mlflow import MlflowClient  # noqa: PLC0415
    from mlflow.store.artifact.models_artifact_repo import ModelsArtifactRepository  # noqa: PLC0415
    from mlflow.store.artifact.runs_artifact_repo import RunsArtifactRepository  # noqa: PLC0415

    client = MlflowClient()
    if alias:
        version = client.get_model_version_by_alias(name, alias).version
    uri = client.get_model_version_download_uri(name, version)
    # Models logged by a run or a training script are registered under a URI of MLflow's own.
    if ModelsArtifactRepository.is_models_uri(uri):
        uri = ModelsArtifactRepository.get_underlying_uri(uri)
    if RunsArtifactRepository.is_runs_uri(uri):
        uri = RunsArtifactRepository.get_underlying_uri(uri)
    return _as_uri(uri)


def _parts(path: str) -> tuple[str, str, str]:
    """Name, and alias or version, of a reference to MLflow's registry."""
    name, _, version = path.removeprefix(_MLFLOW).strip("/").partition("/")
    name, _, alias = name.partition("@")
    if not name or bool(alias) == bool(version) or (version and not version.isdecimal()):
        raise ConfigError((f"{path}: expected models:/name/3, a version's number, or models:/name@alias",))
    return name, alias, version


def _as_uri(source: str) -> str:
    """The URI of artifacts for fsspec. Raises `ConfigError` for one that leads back to the registry."""
    parts = urlsplit(source)
    if parts.scheme in {"", "file"}:
        return parts.path
    if parts.scheme == _ARTIFACTS:
        return f"{_ARTIFACTS}://{parts.netloc}/{parts.path.lstrip('/')}"
    return source


class MlflowArtifacts(AbstractFileSystem):  # type: ignore[misc]
    """Artifacts of a model, read through MLflow's server at `MLFLOW_TRACKING_URI`."""

    protocol = _ARTIFACTS
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix(f"{_ARTIFACTS}://").rstrip("/")

    def ls(self, path: str, detail: bool = True, **_options: Any) -> list[Any]:
        """Entries of a folder, or the file itself."""
        path = self._strip_protocol(path)
        found = [self._entry(path, item) for item in _repository(path).list_artifacts()]
        if not found:
            found = [self.info(path)]
        return found if detail else [each["name"] for each in found]

    def info(self, path: str, **_options: Any) -> dict[str, Any]:
        """One entry, by the listing of the folder that holds it."""
        path = self._strip_protocol(path)
        folder, _, name = path.rpartition("/")
        for item in _repository(folder).list_artifacts():
            if PurePosixPath(item.path).name == name:
                return self._entry(folder, item)
        raise FileNotFoundError(path)

    def get_file(self, rpath: str, lpath: str, **_options: Any) -> None:
        """Copy one file here."""
        folder, _, name = self._strip_protocol(rpath).rpartition("/")
        _repository(folder).download_artifacts(name, os.path.dirname(lpath))  # noqa: PTH120 - fsspec gives strings

    def _entry(self, folder: str, item: Any) -> dict[str, Any]:
        return {
            "name": f"{folder}/{PurePosixPath(item.path).name}",
            "size": item.file_size or 0,
            "type": "directory" if item.is_dir else "file",
        }


def _repository(path: str) -> Any:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository  # noqa: PLC0415

    host, _, inside = path.partition("/")
    return get_artifact_repository(f"{_ARTIFACTS}://{host}/{inside}" if host else f"{_ARTIFACTS}:/{inside}")


fsspec.register_implementation(_ARTIFACTS, MlflowArtifacts)
