"""``serve-app convert``: another build of a model, for a `path` or a variant of the configuration."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from serve_app.config import resolve_model
from serve_app.errors import ConfigError
from serve_app.inference.half import convert_to_fp16


def convert_model(path: str, output: Path | None, environ: Mapping[str, str]) -> Path:
    """Write a model in FP16, with the files that lie beside it: labels, tokenizers, licences.

    Args:
        path: The model's folder, as in a configuration.
        output: The folder to write; by default the model's with ``-fp16`` behind it.
        environ: Environment variables.

    Returns:
        The folder.

    Raises:
        ConfigError: The model is not there or cannot be converted, or the folder is there already.
    """
    location = resolve_model(path, None, environ)
    whole = location.folder.parent
    folder = output or whole.with_name(f"{whole.name}-fp16")
    if folder.exists():
        raise ConfigError((f"{folder} is there already: name another with --output, or remove it",))
    partial = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(partial, ignore_errors=True)

    def left_out(at: str, names: list[str]) -> list[str]:
        if Path(at) == whole:  # a manifest lists the files that a build has made, and these are others
            return [
                name for name in names if name == "manifest.json" or name in set(location.versions) - {location.version}
            ]
        return [name for name in names if name == "tensorrt" or Path(name).suffix in {".onnx", ".data"}]

    shutil.copytree(whole, partial, ignore=left_out)
    try:
        target = partial / location.version / location.model_file.name
        convert_to_fp16(location.model_file, target, model=whole.name)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder
