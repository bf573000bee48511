"""Reads the section ``args:``, with the models of a repository that it names."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from serve_app import wings
from serve_app.config.args import AppArgs, parse_args
from serve_app.config.repository import RepositoryConfig
from serve_app.errors import ConfigError

_ENTRY = re.compile(r"\.(models|pipelines)\[(\d+)\]")

_log = logging.getLogger(__name__)


def read_args(data: Any, prefix: str = "args") -> AppArgs:
    """Check the section ``args:``, and find the models of its repository. Differences there are logged.

    Args:
        data: Plain data, as from YAML.
        prefix: Written before every place in a message.

    Raises:
        ConfigError: With one line per fault.
    """
    if not isinstance(data, Mapping) or data.get("repository") is None:
        return parse_args(data, prefix)
    try:
        config = RepositoryConfig.model_validate(data["repository"])
    except ValidationError:
        return parse_args(data, prefix)  # reports it with all other faults
    if config.path is None:
        return parse_args(data, prefix)
    try:
        triton = wings.need("triton", "repository", "repository.path")
        repository = triton.read_repository(config.path, data, strict=config.strict)
    except ConfigError as error:
        raise ConfigError(tuple(_placed(problem, prefix) for problem in error.problems)) from None
    found = {"models": repository.served, "pipelines": repository.pipelines}
    try:
        args = parse_args(_expanded(data, found, repository.classes), prefix)
    except ConfigError as error:
        names = {
            (key, len(_listed(data.get(key))) + number): entry["name"]
            for key, entries in found.items()
            for number, entry in enumerate(entries)
        }
        raise ConfigError(tuple(_named(problem, names) for problem in error.problems)) from None
    for note in repository.notes:
        _log.warning("%s", note)
    return args


def _listed(entries: Any) -> list[Any]:
    return list(entries) if isinstance(entries, list | tuple) else []


def _expanded(
    data: Mapping[str, Any], found: Mapping[str, list[dict[str, Any]]], of_repository: Mapping[str, Any]
) -> dict[str, Any]:
    """Replace the repository's path by its models and pipelines."""
    classes = data.get("classes")
    merged: Any = classes
    if classes is None or isinstance(classes, Mapping):
        merged = dict(classes or {})
        for name, value in of_repository.items():
            of_file = merged.get(name)
            if isinstance(value, Mapping) and name != "priorities" and isinstance(of_file, Mapping):
                merged[name] = {**value, **of_file}
            else:
                merged.setdefault(name, value)
    rest = {key: value for key, value in data.items() if key != "repository"}
    if isinstance(of_all := data["repository"], Mapping):
        rest["repository"] = {key: value for key, value in of_all.items() if key not in {"path", "strict"}}
    entries = {key: [*_listed(data.get(key)), *of_folders] for key, of_folders in found.items() if of_folders}
    return {**rest, "models": _listed(data.get("models")), **entries, **({"classes": merged} if merged else {})}


def _placed(problem: str, prefix: str) -> str:
    return f"{prefix}.{problem}" if problem.startswith("repository.") else problem


def _named(problem: str, names: Mapping[tuple[str, int], str]) -> str:
    """Name a repository's model in a problem, instead of its number, which is in no file."""
    found = _ENTRY.search(problem)
    name = names.get((found[1], int(found[2]))) if found else None
    if found is None or name is None:
        return problem
    kind = "model" if found[1] == "models" else "ensemble"
    return f"{problem[: found.start()]}.repository: {kind} {name!r}{problem[found.end() :]}"
