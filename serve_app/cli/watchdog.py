"""Ends what a run has started when the run itself is gone without having done so, e.g. after SIGKILL.

Ray's own processes notice that and end; HAProxy, which one of them has started, does not always, and would keep the
ports. Started by `serve_app.cli.run`, with a pipe for its standard input that nobody writes to: its end is the run's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from serve_app.cli.processes import end_marked

_PATIENCE_S = 2.0


def watch(variable: str, folder: str | None = None) -> subprocess.Popen[bytes]:
    """Start one for this process.

    Args:
        variable: The environment variable that marks what it is to end. It carries no such mark itself.
        folder: What it is to remove then.
    """
    environment = {name: value for name, value in os.environ.items() if name != variable}
    return subprocess.Popen(  # noqa: S603 - this module, with what the run has made up
        [sys.executable, "-m", "serve_app.cli.watchdog", variable, os.environ[variable], *([folder] if folder else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C is not meant for it
    )


def main() -> None:
    """Wait for the end of the run, and end what is left of it. Its folder goes too."""
    variable, value, *folders = sys.argv[1:]
    sys.stdin.read()
    end_marked(variable, value, _PATIENCE_S)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
