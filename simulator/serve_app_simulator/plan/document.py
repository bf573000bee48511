"""The configuration with a plan's settings filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from serve_app.config.file import ServeFile, parse_document
from serve_app.errors import ConfigError
from serve_app_simulator.plan.planner import Choice, Plan


def filled_in(file: ServeFile, choices: Sequence[Choice]) -> dict[str, Any]:
    """The file's document with the values of a plan.

    Raises:
        ConfigError: The result is not valid, or a model is not written in the file itself.
    """
    document: dict[str, Any] = deepcopy(dict(file.document))
    args = document["applications"][file.application]["args"]
    models: Mapping[str, dict[str, Any]] = {model["name"]: model for model in args.get("models", ())}
    for choice in choices:
        if choice.value is None:
            continue
        if choice.model not in models:
            message = f"model {choice.model!r} is not written in the file; write it under models to set its replicas"
            raise ConfigError((message,))
        section, _, key = choice.key.partition(".")
        model = models[choice.model]
        if model.get(section) == "none":  # short for `{join: never}`
            model[section] = {"join": "never"}
        values = model.setdefault(section, {})
        values[key] = choice.value
        if section == "autoscaling":
            values.pop("initial_replicas", None)
    parse_document(document)
    return document


def write_config(path: Path, file: ServeFile, plan: Plan, source: str) -> None:
    """Write the configuration of a plan, with the reasons as comments.

    Raises:
        ConfigError: It is not valid, or cannot be written.
    """
    lines = [f"# {source}", "#"]
    lines += [
        f"# {each.model}: {each.key}: {each.value}: {each.because}" for each in plan.choices if each.value is not None
    ]
    lines += [f"# not held: {problem}" for problem in plan.problems]
    text = yaml.safe_dump(filled_in(file, plan.choices), sort_keys=False, allow_unicode=True)
    try:
        path.write_text("\n".join([*lines, text]), encoding="utf-8")
    except OSError as error:
        raise ConfigError((f"{path}: cannot be written: {error.strerror}",)) from None
