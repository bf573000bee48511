"""Reads samples of a model's inputs: NPZ files with an array per input, rows first."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from serve_app.backends.layout import ServedSignature
from serve_app.errors import ConfigError
from serve_app.payloads import DTYPES, Tensors, TensorSpec

_ROWS = 8
"""Rows that are run at once."""

_MAKE = "make it with numpy.savez, one array per input, rows first"


def read_samples(files: Sequence[Path], loaded: ServedSignature) -> list[Tensors]:
    """Read the files as batches of up to 8 rows, or of the model's fixed number.

    Raises:
        ConfigError: A file is missing, is no NPZ file, or does not fit the model. Names the first fault of each file.
    """
    batches: list[Tensors] = []
    problems: list[str] = []
    for file in files:
        try:
            batches.extend(_batches(_read(file), loaded))
        except ValueError as error:
            problems.append(f"samples {file}: {error}")
    if problems:
        raise ConfigError(tuple(problems))
    return batches


def _read(file: Path) -> Tensors:
    try:
        with file.open("rb") as opened:
            magic = opened.read(4)
        if magic[:2] != b"PK":  # NPZ is a ZIP; numpy also reads one array alone, which has no name
            raise ValueError(f"is not an NPZ file; {_MAKE}")
        with np.load(file, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from error
    except (EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"is a damaged NPZ file; {_MAKE}") from error


def _batches(arrays: Tensors, loaded: ServedSignature) -> list[Tensors]:
    wanted = {spec.name: spec for spec in loaded.signature.inputs}
    if arrays.keys() != wanted.keys():
        raise ValueError(f"holds {_names(arrays)}, and the model takes {_names(wanted)}; name the arrays so")
    for name, spec in wanted.items():
        _check(arrays[name], spec)
    rows = {len(array) for array in arrays.values()}
    if len(rows) > 1:
        raise ValueError(f"its arrays differ in their rows: {', '.join(map(str, sorted(rows)))}; give each the same")
    count = rows.pop()
    step = loaded.fixed_rows or _ROWS
    if not count or (loaded.fixed_rows and count % step):
        raise ValueError(
            f"has {count} rows, and needs {f'a multiple of {step}' if loaded.fixed_rows else 'one at least'}"
        )
    return [{name: array[at : at + step] for name, array in arrays.items()} for at in range(0, count, step)]


def _check(array: npt.NDArray[Any], spec: TensorSpec) -> None:
    dtype = DTYPES[spec.datatype]
    if array.dtype != dtype:
        raise ValueError(f"{spec.name!r} is {array.dtype}, and the model takes {dtype}; use .astype({str(dtype)!r})")
    shape = ", ".join("any" if size < 0 else str(size) for size in spec.shape[1:])
    fits = array.ndim == len(spec.shape) and all(
        wanted in {-1, size} for wanted, size in zip(spec.shape[1:], array.shape[1:], strict=True)
    )
    if not fits:
        expected = f"(rows, {shape})" if shape else "(rows,)"
        raise ValueError(f"{spec.name!r} has the shape {array.shape}, and the model takes {expected}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{spec.name!r} holds values that are no finite numbers")


def _names(found: Iterable[str]) -> str:
    return ", ".join(map(repr, found)) or "nothing"
