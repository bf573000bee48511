"""An environment for every other server, made from its lock and made again only when that changes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.failure import BenchmarkError
from benchmarks.process import ROOT

LOCKS = ROOT / "requirements" / "peers"
ENVIRONMENTS = ROOT / ".venv-peers"

_UV = ROOT / ".venv-uv" / "bin" / "uv"
_PYTHON = (3, 11)
"""What every lock is made for: Triton's wheel has its interpreter built in."""
_STAMP = ".lock"
_MADE_WITHIN_S = 900.0


def environment(name: str, locks: Path = LOCKS, folder: Path = ENVIRONMENTS) -> Path:
    """The Python of an environment, which is made first if it has to be.

    Args:
        name: Of the lock, without its suffix.
        locks: Where locks are.
        folder: Where environments are.

    Raises:
        BenchmarkError: There is no such lock, or the environment cannot be made; says why.
    """
    lock, target = locks / f"{name}.txt", folder / name
    python = target / "bin" / "python"
    if not is_stale(lock, target):
        return python
    shutil.rmtree(target, ignore_errors=True)
    _uv("venv", "--quiet", "--python", _interpreter(), str(target))
    _uv("pip", "sync", "--quiet", "--require-hashes", "--python", str(python), str(lock))
    (target / _STAMP).write_text(_fingerprint(lock), encoding="ascii")
    return python


def is_stale(lock: Path, target: Path) -> bool:
    """Whether an environment is missing, unfinished, or made from another lock.

    Raises:
        BenchmarkError: There is no such lock.
    """
    if not lock.exists():
        raise BenchmarkError(f"there is no lock {lock.name}; `make lock` makes it")
    stamp = target / _STAMP
    return not stamp.exists() or stamp.read_text(encoding="ascii") != _fingerprint(lock)


def _fingerprint(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest()


def _interpreter() -> str:
    """This Python if it is one of the right version, or whichever uv finds."""
    return sys.executable if sys.version_info[:2] == _PYTHON else ".".join(map(str, _PYTHON))


def _uv(*arguments: str) -> None:
    if not _UV.exists():
        raise BenchmarkError("uv is not there; `make bench` makes it first")
    command = [str(_UV), *arguments]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_MADE_WITHIN_S)
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"`uv {arguments[0]}` took longer than {_MADE_WITHIN_S:.0f} s") from None
    if finished.returncode != 0:
        raise BenchmarkError(f"`uv {arguments[0]}` failed: {finished.stderr.strip()[-500:]}")
