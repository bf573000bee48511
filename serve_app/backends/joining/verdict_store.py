"""Stores verdicts, so that the experiment need not run again at the next start."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from serve_app import __version__
from serve_app.payloads import Joinable

_FORMAT = 3
"""Raised whenever the experiment changes: older records say nothing then."""

logger = logging.getLogger(__name__)


class VerdictStore:
    """A folder of verdicts by record key. A record that cannot be read or written is ignored.

    Args:
        folder: Created with the first record.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: str) -> Joinable | None:
        """The stored verdict, if any."""
        try:
            return msgspec.json.decode((self._folder / f"{key}.json").read_bytes(), type=Joinable)
        except (OSError, msgspec.MsgspecError):
            return None

    def keep(self, key: str, verdict: Joinable) -> None:
        """Write a verdict atomically."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as file:
                file.write(msgspec.json.encode(verdict))
            Path(file.name).replace(self._folder / f"{key}.json")
        except OSError as error:
            logger.info("The verdict on joining cannot be kept in %s: %s", self._folder, error.strerror)


def record_key(model_file: Path, *settings: Any) -> str:
    """The key of a verdict: a digest of the model's content, its run settings and the machine.

    Args:
        model_file: Files beside it that may hold its weights count with their sizes and times.
        settings: Plain data that decides how the model runs, e.g. versions of the runtime.
    """
    digest = _begun(settings)
    with model_file.open("rb") as opened:
        digest.update(hashlib.file_digest(opened, "sha256").digest())
    for name, size, changed in sorted(_beside(model_file)):
        digest.update(msgspec.json.encode((name, size, changed)))
    return digest.hexdigest()


def identity_key(identity: str, *settings: Any) -> str:
    """`record_key` for a build whose content has been read already.

    Args:
        identity: Unique for each build.
    """
    digest = _begun(settings)
    digest.update(identity.encode())
    return digest.hexdigest()


def _begun(settings: Sequence[Any]) -> hashlib._Hash:
    return hashlib.sha256(msgspec.json.encode((_FORMAT, __version__, _processor(), settings)))


def _beside(model_file: Path) -> Iterator[tuple[str, int, int]]:
    no_weights = {model_file.suffix, ".txt", ".json"}
    for item in os.scandir(model_file.parent):
        if item.is_file() and item.name != model_file.name and Path(item.name).suffix not in no_weights:
            facts = item.stat()
            yield item.name, facts.st_size, facts.st_mtime_ns


@cache
def _processor() -> str:
    """The kind of processor: kernels are chosen by its features."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
