"""Settings of the request log."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import ByteSize, Field

from serve_app.config.files import home
from serve_app.config.values import Milliseconds, Section, Size
from serve_app.domain.settings import LogSettings


class LoggingConfig(Section):
    """The request log of each router: one line of JSON per request that was refused, failed or was slow."""

    requests: bool = True
    """Whether there is one."""

    sample: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Part of the other requests, the answered ones that were not slow, that get a line too."""

    slow_ms: Milliseconds = 1000.0
    """A request that took longer than this to answer is slow."""

    lines_per_s: Annotated[float, Field(ge=1, le=100_000)] = 50.0
    """Most lines per second of one router. What is beyond is counted, and the number stands in a line of its own."""

    folder: str | None = Field(default=None, min_length=1)
    """Folder of the files, `requests_<application>_router_<replica>.log`. By default Ray Serve's log folder.

    Relative paths start from SERVE_APP_HOME.
    """

    max_bytes: Size = ByteSize(32 * 1024**2)
    """How large a file grows before the next one is begun."""

    files: Annotated[int, Field(ge=1, le=1000)] = 4
    """How many files of one router are kept, the current one included."""

    def place(self, environ: Mapping[str, str] | None = None) -> Path | None:
        """The files' folder; ``None`` for Ray Serve's.

        Args:
            environ: Default: this process's.
        """
        return None if self.folder is None else home(os.environ if environ is None else environ) / self.folder

    def settings(self) -> LogSettings:
        """Which requests are logged."""
        return LogSettings(self.sample, self.slow_ms / 1000, self.lines_per_s)
