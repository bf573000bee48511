"""Files of a configuration: the base of relative paths, and reading, local or by URI."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import fsspec

from serve_app.errors import ConfigError

HOME_VARIABLE = "SERVE_APP_HOME"
"""Environment variable: the folder that relative model paths start from. Default: the working directory."""

CACHE_VARIABLE = "SERVE_APP_CACHE"
"""Environment variable: where copies of remote models are kept, and what was found of models.

Default: ``~/.cache/serve-app``.
"""


def home(environ: Mapping[str, str]) -> Path:
    """The base folder of relative model paths."""
    return Path(environ.get(HOME_VARIABLE) or Path.cwd())


def is_remote(path: str) -> bool:
    """Whether a model's path is a URI, not a local folder."""
    return "://" in path or "::" in path or path.startswith("models:/")


def read_file(path: str, environ: Mapping[str, str] | None = None) -> bytes:
    """Read a file of the configuration.

    Args:
        path: Relative to ``SERVE_APP_HOME``, absolute, or an fsspec URI.
        environ: Default: this process's.

    Raises:
        ConfigError: It is unreadable; does not name the path.
    """
    local = home(os.environ if environ is None else environ) / path
    try:
        if is_remote(path):
            with fsspec.open(path, "rb") as file:
                return bytes(file.read())
        return local.read_bytes()
    except FileNotFoundError:
        looked = "" if is_remote(path) else f" (looked for {local})"
        raise ConfigError((f"no such file{looked}",)) from None
    except OSError as error:
        raise ConfigError((f"cannot be read: {error.strerror or error}",)) from None
    except Exception as error:  # every filesystem behind fsspec has errors of its own
        raise ConfigError((f"cannot be read: {type(error).__name__}: {error}",)) from error


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The folder for copies of remote models and stored facts of models."""
    environ = os.environ if environ is None else environ
    return Path(environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "serve-app")
