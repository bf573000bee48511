"""``serve-app convert``: another build of a model, for a `path` or a variant of the configuration."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from serve_app.config import resolve_model
from serve_app.errors import ConfigError
from serve_app.inference.half import convert_to_fp16
from serve_app.inference.int8.convert import convert_to_int8


def convert_model(
    path: str,
    output: Path | None,
    environ: Mapping[str, str],
    precision: Literal["fp16", "int8"] = "fp16",
    samples: Sequence[Path] = (),
) -> tuple[Path, list[str]]:
    """Write a model in another precision, with the files that lie beside it: labels, tokenizers, licences.

    Args:
        path: The model's folder, as in a configuration.
        output: The folder to write; by default the model's with the precision behind it.
        environ: Environment variables.
        precision: What to compute in.
        samples: NPZ files of inputs, for int8.

    Returns:
        The folder, and what the reader should know of the model in it.

    Raises:
        ConfigError: The model is not there or cannot be converted, or the folder is there already.
    """
    location = resolve_model(path, None, environ)
    whole = location.folder.parent
    folder = output or whole.with_name(f"{whole.name}-{precision}")
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
        if precision == "int8":
            lines = convert_to_int8(location.model_file, target, samples, model=whole.name).lines()
        else:
            convert_to_fp16(location.model_file, target, model=whole.name)
            lines = []
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder, lines
