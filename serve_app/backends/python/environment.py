"""Provides the interpreter of a model in a process of its own: an existing one, or a virtual environment's.

The first replica that needs an environment makes it, once per content, in the cache folder:

    environments/DIGEST        the virtual environment; it is whole when the file `made` is in it
    environments/DIGEST.log    what pip or uv said
    environments/DIGEST.lock   held while it is made

It is made in place, since installed scripts contain their interpreter's path.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from serve_app.backends.python.options import EnvironmentOptions
from serve_app.config.files import cache_folder, home
from serve_app.errors import ConfigError

logger = logging.getLogger(__name__)

_MADE: Final = "made"
_SAID: Final = 400
_BEGINS: Final = re.compile(r"╰─▶|Caused by:|error:|ERROR:")
_ABOUT: Final = (
    "import platform, sys; print(sys.implementation.cache_tag, platform.python_version(), platform.platform())"
)
_INCLUDED: Final = re.compile(r"\s*(?:-r|-c|--requirement|--constraint)[\s=]*(\S+)")


def interpreter_of(options: EnvironmentOptions, folder: Path, model: str) -> Path:
    """The interpreter for a model. Makes its environment if missing, which can take minutes.

    Args:
        folder: Of the model's file.

    Raises:
        ConfigError: The interpreter does not exist, or its environment cannot be made; names the log.
    """
    base = _base(options.python, model)
    if options.requirements is None:
        return base
    requirements = folder / options.requirements
    wheels = None if options.wheels is None else folder / options.wheels
    if wheels is not None and not wheels.is_dir():
        raise ConfigError((f"model {model!r}: backend_options.environment.wheels: no such folder ({wheels})",))
    content = dict(_contents(requirements, model))
    facts = [str(base.resolve()), _about(base, model), sorted(content.values())]
    if wheels is not None:
        facts.append(sorted(item.name for item in wheels.iterdir()))
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    place = cache_folder() / "environments" / digest
    python = place / "bin" / "python"
    if (place / _MADE).is_file():
        return python
    place.parent.mkdir(parents=True, exist_ok=True)
    with _locked(place.with_suffix(".lock"), model):
        if not (place / _MADE).is_file():  # another replica may have been faster
            hashes = any("--hash=" in text for text in content.values())
            _make(place, base, requirements, wheels, hashes=hashes, model=model)
    return python


def _base(python: str | None, model: str) -> Path:
    if python is None:
        return Path(sys.executable)
    found = shutil.which(python) if os.sep not in python else shutil.which(home(os.environ) / python)
    if found is None:
        raise ConfigError(
            (f"model {model!r}: backend_options.environment.python: {python} is no program that can be run",)
        )
    return Path(found).absolute()


def _about(python: Path, model: str) -> str:
    try:
        ended = subprocess.run(  # noqa: S603 - the operator names the interpreter
            [python, "-I", "-c", _ABOUT], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.CalledProcessError) as error:
        said = _last_line(error.stderr) if isinstance(error, subprocess.CalledProcessError) else error.strerror
        raise ConfigError(
            (f"model {model!r}: backend_options.environment.python: {python} does not run: {said}",)
        ) from None
    return ended.stdout.strip()


def _contents(requirements: Path, model: str, known: tuple[Path, ...] = ()) -> Iterator[tuple[Path, str]]:
    """Yield a requirements file and those that it includes, with their texts."""
    try:
        text = requirements.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            (f"model {model!r}: backend_options.environment.requirements: {requirements} cannot be read: {said}",)
        ) from None
    yield requirements, text
    for line in text.splitlines():
        included = _INCLUDED.match(line)
        if included is not None and "://" not in included[1]:
            further = requirements.parent / included[1]
            if further not in known:
                yield from _contents(further, model, (*known, requirements))


@contextmanager
def _locked(file: Path, model: str) -> Iterator[None]:
    """Hold the lock of an environment among all processes of this machine."""
    with file.open("w") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("model %r: waiting for another process, which makes its environment", model)
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def _make(place: Path, base: Path, requirements: Path, wheels: Path | None, *, hashes: bool, model: str) -> None:
    log = place.with_suffix(".log")
    shutil.rmtree(place, ignore_errors=True)  # what a process left that was ended
    logger.info("model %r: making the environment of %s; this happens once, and %s tells", model, requirements, log)
    began = time.monotonic()
    with log.open("w") as output:
        for command in _commands(place, base, requirements, wheels, hashes=hashes):
            output.write(f"$ {' '.join(command)}\n")
            output.flush()
            ended = subprocess.run(  # noqa: S603 - of our own
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=clean_environ(),
                check=False,
            )
            if ended.returncode:
                output.flush()
                said = _last_line(log.read_text("utf-8", errors="replace"))
                problem = f"model {model!r}: the environment of {requirements} cannot be made: {said}; {log} tells all"
                raise ConfigError((problem,))
    made = place / f".{_MADE}"
    made.write_text(f"{requirements}\n")
    made.rename(place / _MADE)
    logger.info("model %r: made its environment in %.0f s", model, time.monotonic() - began)


def _commands(place: Path, base: Path, requirements: Path, wheels: Path | None, *, hashes: bool) -> Iterator[list[str]]:
    source = ["--no-index", "--find-links", str(wheels)] if wheels is not None else []
    what = [*(["--require-hashes"] if hashes else []), *source, "--requirement", str(requirements)]
    if (uv := shutil.which("uv")) is not None:
        yield [uv, "venv", "--python", str(base), str(place)]
        yield [uv, "pip", "install", "--compile-bytecode", "--python", str(place / "bin/python"), *what]
        return
    yield [str(base), "-I", "-m", "venv", str(place)]
    yield [str(place / "bin/python"), "-I", "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *what]


def clean_environ() -> dict[str, str]:
    """The environment variables without those that would lead another interpreter to this one's packages."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON") and name != "VIRTUAL_ENV"
    }


def _last_line(text: str) -> str:
    """The last message of a program, from its beginning: uv wraps messages."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = next((at for at in reversed(range(len(lines))) if _BEGINS.match(lines[at])), len(lines) - 1)
    said = " ".join(lines[max(last, 0) :])
    begins = _BEGINS.match(said)
    return said[begins.end() if begins else 0 :].strip()[:_SAID] or "it said nothing"
