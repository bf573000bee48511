"""Backends of a configuration: their kinds, options, and one instance per build."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from serve_app.backends.backend import Backend
from serve_app.backends.description import Description
from serve_app.backends.kind import AnyKind, BackendKind, BuildSettings, OptionsT
from serve_app.backends.layout import ROWS_FIRST, Layout
from serve_app.backends.registry import BACKENDS, kinds_of
from serve_app.composition.locate import ModelLocation
from serve_app.config.model import ModelConfig
from serve_app.config.problems import nearest, problems_of
from serve_app.errors import ConfigError


def make_backend(model: ModelConfig, location: ModelLocation, build: Description, *, gpu_available: bool) -> Backend:
    """Make the backend of one build of a model. The caller calls `Backend.load`.

    Args:
        location: The build's files, one of `find_files`.
        build: Their contents, one of `read_builds`.
        gpu_available: Whether the cluster gave this replica a GPU, whole or in part.

    Raises:
        ConfigError: The backend cannot have these settings.
    """
    settings = build_settings(model, location.model_file, gpu_available=gpu_available, layout=build.layout)
    if model.processor is not None:
        settings = replace(settings, processor_threads=model.resources.preprocess_threads)
    return location.kind.create(settings, read_options(model, location.kind))


def load_builds(
    model: ModelConfig,
    locations: Mapping[str, ModelLocation],
    builds: Mapping[str, Description],
    backends: dict[str, Backend],
    tell: Callable[[str], None],
    *,
    gpu_available: bool,
) -> None:
    """Load every build of a model.

    Args:
        builds: Contents of the files, by variant.
        backends: Receives the backends, also one that failed to load; existing ones are closed.
        tell: Called with notes for operators.

    Raises:
        ConfigError: One cannot be loaded.
    """
    for variant, location in locations.items():
        backend = make_backend(model, location, builds[variant], gpu_available=gpu_available)
        if variant in backends:
            backends[variant].close()
        backends[variant] = backend
        if (note := backend.load()) is not None:
            tell(note)


def build_settings(
    model: ModelConfig, model_file: Path, *, gpu_available: bool, layout: Layout = ROWS_FIRST
) -> BuildSettings:
    """Settings of one build of a model, its own or a variant, which share the GPU memory.

    Args:
        model_file: The build's file.
        layout: Position of its rows, from `read_builds`.
    """
    memory = model.resources.gpu_memory
    return BuildSettings(
        model=model.name,
        model_file=model_file,
        device=model.resources.device,
        gpu_available=gpu_available,
        gpu_memory_bytes=None if memory is None else max(1, int(memory) // (1 + len(model.variants))),
        threads=model.resources.session_threads,
        max_rows=model.batching.configured_rows,
        row_sizes=model.resources.chosen_sizes,
        layout=layout,
        among_others=model.pool is not None,
        tf32=model.resources.tf32,
    )


def read_options(model: ModelConfig, kind: BackendKind[OptionsT]) -> OptionsT:
    """The configured options of a model's backend.

    Raises:
        ConfigError: With one line per fault.
    """
    place = f"model {model.name!r}: backend_options"
    try:
        return kind.options.model_validate(model.backend_options)
    except ValidationError as error:
        schema = kind.options.model_json_schema()
        raise ConfigError(problems_of(error, model.backend_options, schema, place)) from None


def backend_problems(models: Iterable[ModelConfig]) -> tuple[str, ...]:
    """Faults in models' backend options, one line each, as far as they show without the models' files.

    Args:
        models: The options of one that names no backend are checked unless several possible ones have all of them.
    """
    problems: list[str] = []
    for model in models:
        try:
            kinds = kinds_of(model.backend)
        except ConfigError as error:
            problems += [f"model {model.name!r}: {problem}" for problem in error.problems]
            continue
        keys = model.backend_options.keys()
        able = [kind for kind in kinds if _takes_any(kind) or _keys(kind) >= keys]
        if not able:  # a kind with keys like these explains best
            able = [kind for kind in kinds if any(nearest(key, sorted(_keys(kind))) for key in keys)] or [*kinds]
            able = able[:1]
        try:
            if len(able) == 1:
                read_options(model, able[0])
        except ConfigError as error:
            problems += error.problems
    return tuple(problems)


def _takes_any(kind: AnyKind) -> bool:
    return bool(kind.options.model_config.get("extra") == "allow")


def _keys(kind: AnyKind) -> set[str]:
    return {field.alias or name for name, field in kind.options.model_fields.items()}


def with_backends(definitions: Mapping[str, Any], ref_template: str) -> dict[str, Any]:
    """Add the installed backends and their options to the JSON Schema of a configuration.

    Args:
        definitions: Those of `serve_app.config.args.AppArgs`, by name.
        ref_template: Format of their references.
    """
    found = dict(definitions)
    options = {}
    for name, kind in BACKENDS.items():
        options[name] = kind.options.model_json_schema(ref_template=ref_template)
        found |= options[name].pop("$defs", {})
    model = found["ModelConfig"]
    backend, backend_options = (model["properties"][key] for key in ("backend", "backend_options"))
    found["ModelConfig"] = {
        **model,
        "properties": {
            **model["properties"],
            "backend": {**backend, "enum": [*BACKENDS, None]},
            "backend_options": {**backend_options, "anyOf": list(options.values())},
        },
        "allOf": [
            *model.get("allOf", ()),
            *(
                {
                    "if": {"properties": {"backend": {"const": name}}, "required": ["backend"]},
                    "then": {"properties": {"backend_options": each}},
                }
                for name, each in options.items()
            ),
        ],
    }
    return found
