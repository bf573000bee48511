"""Builds folders of files when they are missing or stale, and swaps them in whole.

A built folder carries a manifest: the hashes of the sources that it was made from and of every file in it. It is up to
date when both still hold; checking that reads every file once and imports nothing heavy. A new build goes to a hidden
folder beside the old one and takes its place by renaming, so a reader never sees half a model, and a build that was
killed leaves the old one standing. Two builds of one parent folder wait for each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from training.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MANIFEST = "manifest.json"


class BuildError(Exception):
    """A folder cannot be built. The message says what is wrong and what to do."""


def build_if_stale(folder: Path, sources: Iterable[Path], build: Callable[[Path], None]) -> bool:
    """Make sure that ``folder`` holds what ``build`` makes of ``sources``.

    Args:
        folder: What to build.
        sources: Files whose content decides the result: scripts, lock files.
        build: Fills the empty folder that it is given. Must be deterministic.

    Returns:
        Whether it had to be built.

    Raises:
        BuildError: ``folder`` is not empty and has no manifest, so it is not ours to replace.
    """
    started = time.monotonic()
    wanted = {_label(path): sha256(path) for path in sources}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent):
        reason = _stale(folder, wanted)
        if reason is None:
            print(f"{folder.name}: up to date, verified in {time.monotonic() - started:.2f} s", flush=True)
            return False
        print(f"{folder.name}: building ({reason})", flush=True)
        for leftover in folder.parent.glob(f".{folder.name}.*"):
            shutil.rmtree(leftover)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            build(fresh)
            manifest = {"sources": wanted, "files": _hashes(fresh)}
            (fresh / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
            _share(fresh)
            _swap(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    print(f"{folder.name}: built in {time.monotonic() - started:.1f} s", flush=True)
    return True


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def _stale(folder: Path, wanted: dict[str, str]) -> str | None:
    """Why the folder must be built, or ``None``."""
    if not folder.exists() or not any(folder.iterdir()):
        return "not there yet"
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        built_from, files = dict(manifest["sources"]), dict(manifest["files"])
    except FileNotFoundError:
        raise BuildError(
            f"{folder} holds files but no {MANIFEST}, so this script did not make it; move it away and build again"
        ) from None
    except (ValueError, KeyError, TypeError):
        return f"its {MANIFEST} is damaged"
    if built_from != wanted:
        changed = sorted(name for name in built_from.keys() | wanted if built_from.get(name) != wanted.get(name))
        return f"changed: {', '.join(changed)}"
    for name, digest in files.items():
        if not (folder / name).is_file():
            return f"missing: {name}"
        if sha256(folder / name) != digest:
            return f"damaged: {name}"
    return None


def _hashes(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): sha256(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def _share(folder: Path) -> None:
    """Let everybody read what a private temporary folder held."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _swap(fresh: Path, folder: Path) -> None:
    """Put ``fresh`` in the place of ``folder``; both are on one file system."""
    if folder.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        folder.rename(old)  # an empty folder may be renamed over
        fresh.rename(folder)
        shutil.rmtree(old)
    else:
        fresh.rename(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's own lock, which the kernel drops with the process: nothing is left behind."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
