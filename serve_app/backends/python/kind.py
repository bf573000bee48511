"""The kind ``python``: models that are a class in a Python file."""

from __future__ import annotations

from pathlib import Path

from serve_app.backends.backend import Backend
from serve_app.backends.kind import BackendKind, BuildSettings, ModelFile
from serve_app.backends.python.backend import PythonBackend, StreamingPythonBackend
from serve_app.backends.python.declaration import files_beside, read_declaration
from serve_app.backends.python.options import PythonOptions


def _inspect(model_file: Path, model: str, options: PythonOptions) -> ModelFile:
    declared = read_declaration(model_file, model, options.class_)
    return ModelFile(declared.signature, declared.prove, declared.streams)


def _processes(model_file: Path, model: str, options: PythonOptions) -> bool:
    return bool(read_declaration(model_file, model, options.class_, processes=True).methods)


def _create(build: BuildSettings, options: PythonOptions) -> Backend:
    streams = read_declaration(build.model_file, build.model, options.class_).streams
    return (StreamingPythonBackend if streams else PythonBackend)(build, options)


PYTHON = BackendKind(
    name="python",
    file="model.py",
    suffixes=(".py",),
    inspect=_inspect,
    create=_create,
    options=PythonOptions,
    further_files=files_beside,
    processes=_processes,
    platform="python",
    distributions=("numpy",),
    runs_code=True,
)
"""The kind ``python``."""
