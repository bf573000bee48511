"""Requests with a library's answers, beside the model that is to give them."""

from __future__ import annotations

import json
import signal
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = "cases.json"
FAILED = "failed"
_SECONDS = 60


@dataclass(slots=True)
class Cases:
    """What to ask one model, and what its library answers.

    Attributes:
        task: Under which it is served.
        library: That wrote the folder and the answers.
        kind: A column of the table, e.g. ``text classification``.
        requests: A body each, with the library's ``answer``.
        processor: Options, for settings of the library that no file holds.
        tolerance: The largest difference of a number.
        refused: Part of the message, where the folder is to be refused.
    """

    task: str
    library: str
    kind: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    processor: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-4
    refused: str = ""

    def ask(self, body: Mapping[str, Any], answer: Any) -> None:
        """Add a request."""
        self.requests.append({"body": dict(body), "answer": answer})

    def save(self, folder: Path) -> None:
        """Write them beside the model."""
        names = ("task", "library", "kind", "requests", "processor", "tolerance", "refused")
        (folder / FILE).write_text(json.dumps({name: getattr(self, name) for name in names}))


def write_all(target: Path, makers: Iterable[tuple[str, Callable[[Path], Cases]]]) -> None:
    """Write a folder for each maker that ``target`` does not have yet; a failure becomes a file. Prints a line each."""
    signal.signal(signal.SIGALRM, _too_long)
    for name, make in makers:
        folder = target / name
        if (folder / FILE).exists() or (folder / FAILED).exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        signal.alarm(_SECONDS)
        try:
            make(folder).save(folder)
            print("written", name, flush=True)
        except Exception as error:  # of any library
            while error.__cause__ is not None and isinstance(error.__cause__, Exception):
                error = error.__cause__
            lines = str(error).strip().splitlines() or [""]
            reason = f"{type(error).__name__}: {lines[0][:200]}"
            (folder / FAILED).write_text(reason)
            (folder / "trace").write_text("".join(traceback.format_exception(error)))
            print("FAILED", name, reason, flush=True)
        finally:
            signal.alarm(0)


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"not exported within {_SECONDS} s")
