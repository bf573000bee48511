"""Checks a whole configuration file, Serve's part and serve_app's, and describes it for editors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema

from serve_app.cli.gpus import without_cuda
from serve_app.composition import describe_models, expand_models, read_args, with_versions
from serve_app.composition.access import key_problems, tls_problems
from serve_app.composition.backend import backend_problems, with_backends
from serve_app.composition.locate import looking_once, missing_models
from serve_app.composition.wing_parts import check_wings, machine_problems
from serve_app.config.args import AppArgs
from serve_app.config.file import IMPORT_PATH, ServeFile, parse_document, read_document
from serve_app.config.problems import Location, place, problems_of, short_repr
from serve_app.domain.service import ModelInfo
from serve_app.errors import ConfigError

_OURS = "#/$defs/serve_app.{model}"


@looking_once()
def check_file(
    path: Path, *, look_for_models: bool = True, tell: Callable[[Mapping[str, ModelInfo]], None] | None = None
) -> ServeFile:
    """Check a Serve file as strictly as possible without starting anything.

    Args:
        look_for_models: Whether local models must exist. Members of pools are then included.
        tell: Receives the models' information by name, if they are read.

    Raises:
        ConfigError: One line per fault of the whole file.
    """
    document = read_document(path)
    problems = list(serve_problems(document))
    try:
        file = parse_document(document, read_args)
        problems += json_problems(document["applications"][file.application].get("args"), ("args",))
        problems += key_problems(file.args.router, must_be_here=look_for_models)
        problems += backend_problems(file.args.models)
        if look_for_models and not problems:
            file = replace(file, args=expand_models(file.args))
            infos = _check_models(file.args)
            if tell is not None:
                tell(infos)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(tuple(dict.fromkeys(problems)))
    return file


def _check_models(args: AppArgs) -> Mapping[str, ModelInfo]:
    """Read the local models as the application would. Remote ones are not fetched.

    Raises:
        ConfigError: One line per fault.
    """
    problems = (*missing_models(args.models), *tls_problems(args.router), *machine_problems(args))
    if problems:
        raise ConfigError(problems)
    here = tuple(model for model in args.models if not model.remote)
    served = with_versions(args.model_copy(update={"models": here}))
    names = {model.name for model in here}
    afar = tuple(model for model in args.models if model.name not in names)  # of these only the names are known
    infos = describe_models(served)
    if problems := tuple(without_cuda(here, "cuda")):
        raise ConfigError(problems)
    check_wings(served.model_copy(update={"models": (*served.models, *afar)}), infos)
    return infos


def serve_problems(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Faults in Serve's own part of a file, one line each. Serve itself would ignore unknown keys."""
    try:
        ServeDeploySchema.model_validate(document, extra="forbid")
    except ValidationError as error:
        return problems_of(error, document, ServeDeploySchema.model_json_schema())
    return ()


def json_problems(value: Any, location: Location) -> Iterator[str]:
    """Find arguments that Serve cannot deploy, one line each: it encodes them as JSON with sorted keys.

    Args:
        value: From YAML.
        location: In the document.
    """
    if isinstance(value, Mapping):
        try:
            json.dumps(dict.fromkeys(value), sort_keys=True)
        except TypeError:
            keys = ", ".join(map(short_repr, value))
            yield f"{place(location)}: Serve takes keys of one type, text or numbers; put quotes around {keys}"
        for key, below in value.items():
            yield from json_problems(below, (*location, str(key)))
    elif isinstance(value, list):
        for number, below in enumerate(value):
            yield from json_problems(below, (*location, number))
    elif not isinstance(value, str | int | float | None):
        yield f"{place(location)}: {short_repr(value)} is not JSON; put quotes around it"


def file_schema() -> dict[str, Any]:
    """JSON Schema of a whole configuration file: Serve's without unknown keys, and serve_app's for its args."""
    ours = AppArgs.model_json_schema(ref_template=_OURS)
    serve = _without_unknown_keys(ServeDeploySchema.model_json_schema())
    definitions = serve.pop("$defs")
    definitions |= {
        f"serve_app.{name}": definition for name, definition in with_backends(ours.pop("$defs"), _OURS).items()
    }
    definitions["serve_app.AppArgs"] = ours
    definitions["ServeApplicationSchema"] |= {
        "if": {"properties": {"import_path": {"const": IMPORT_PATH}}, "required": ["import_path"]},
        "then": {"properties": {"args": {"$ref": "#/$defs/serve_app.AppArgs"}}, "required": ["args"]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **serve,
        "title": "Configuration of a Ray Serve cluster with serve_app",
        "$defs": dict(sorted(definitions.items())),
    }


def _without_unknown_keys(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_unknown_keys(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _without_unknown_keys(part) for key, part in schema.items()}
    if "properties" in strict and strict.get("type") == "object":
        strict["additionalProperties"] = False
    return strict
