"""Opens PyTorch's files, which are zip archives, without PyTorch and without running anything."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serve_app.errors import ConfigError


@contextmanager
def opened(model_file: Path, *, model: str) -> Iterator[zipfile.ZipFile]:
    """Open a model's file.

    Raises:
        ConfigError: It cannot be read, or is no archive.
    """
    try:
        with zipfile.ZipFile(model_file) as archive:
            yield archive
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError((f"model {model!r}: cannot read {model_file}: {reason}",)) from error
    except zipfile.BadZipFile as error:
        raise ConfigError((f"model {model!r}: {model_file} is no file of PyTorch: {error}",)) from error
