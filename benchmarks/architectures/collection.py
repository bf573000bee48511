"""The folder of exported models: what it has, what is added, what failed."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

PAD = 1
"""Padding's token id, of all text models."""


@dataclass(frozen=True, slots=True)
class Export:
    """One model and one exporter.

    `write` gets the folder, and writes `model.onnx` into it.
    """

    library: str
    name: str
    task: str
    exporter: str
    write: Callable[[Path], None]


def export_all(target: Path, exports: Iterable[Export]) -> None:
    """Export what `target` does not have yet.

    A failure becomes a file `failed` with the first line of the error that caused it; it is not tried again. Prints a
    line per model.
    """
    for export in exports:
        name = f"{export.library}/{export.name}/{export.task}/{export.exporter}"
        folder = target / name
        if (folder / "model.onnx").exists() or (folder / "failed").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # some exporters print whole graphs
                export.write(folder)
            print("exported", name, flush=True)
        except Exception as error:
            reason = _reason(error)
            (folder / "model.onnx").unlink(missing_ok=True)
            (folder / "failed").write_text(reason)
            print("FAILED", name, reason, flush=True)


def _reason(error: BaseException) -> str:
    """The first line of the error that an exporter's error was raised from."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
