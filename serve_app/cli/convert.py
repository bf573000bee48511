"""``serve-app convert``: makes another build of a model, for a `path` or a variant."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from serve_app.backends.onnx.external_data import external_data
from serve_app.backends.onnx.int8.convert import convert_to_int8
from serve_app.backends.onnx.kind import ONNX
from serve_app.composition.locate import ModelLocation, resolve_model
from serve_app.errors import ConfigError


def convert_model(
    path: str,
    output: Path | None,
    environ: Mapping[str, str],
    samples: Sequence[Path] = (),
) -> tuple[Path, list[str]]:
    """Write a model in 8 bits, with the files beside it: labels, tokenizers, licences.

    Args:
        path: As in a configuration.
        output: The folder to write; default the model's, or its file's name, with the suffix ``-int8``.
        samples: NPZ files of inputs.

    Returns:
        The folder, and notes for the user.

    Raises:
        ConfigError: The model is missing or cannot be converted, or the folder exists.
    """
    location = resolve_model(path, None, environ, backend=ONNX.name)
    is_file = not location.numbered and ONNX.recognises(path)
    whole = location.root
    name = location.model_file.stem if is_file else whole.name
    folder = output or (whole / f"{name}-int8" if is_file else whole.with_name(f"{name}-int8"))
    if folder.exists():
        raise ConfigError((f"{folder} is there already: name another with --output, or remove it",))
    partial = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(partial, ignore_errors=True)

    try:
        if location.numbered:
            _copy_folder(location, partial)
        else:
            _copy_beside(location, partial)
        target = partial / location.model_file.relative_to(whole)
        target.parent.mkdir(parents=True, exist_ok=True)
        lines = convert_to_int8(location.model_file, target, samples, model=name).lines()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder, lines


def _copy_folder(location: ModelLocation, target: Path) -> None:
    """Copy a folder of versions without models and other versions."""

    def left_out(at: str, names: list[str]) -> list[str]:
        if Path(at) == location.root:  # a manifest lists the files that a build has made, and these are others
            return [
                name for name in names if name == "manifest.json" or name in set(location.versions) - {location.version}
            ]
        return [name for name in names if Path(name).suffix in {".onnx", ".data"}]

    shutil.copytree(location.root, target, ignore=left_out)


def _copy_beside(location: ModelLocation, target: Path) -> None:
    """Copy the files of an unversioned model, except the model and its weights."""
    target.mkdir(parents=True)
    near = PurePosixPath(location.file).parent
    weights = {location.file, *(str(near / name) for name in external_data(location.model_file))}
    for file in location.files():
        name = str(file.relative_to(location.folder))
        if name not in weights:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target / name)
