"""Ends the processes of a run that is gone without cleanup, e.g. after SIGKILL.

Ray's own processes notice that and end; HAProxy, started by one of them, does not always, and would keep the ports.
`serve_app.cli.run` starts the watchdog with a pipe for standard input without writes: its end is the run's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from serve_app.cli.processes import end_marked

_PATIENCE_S = 2.0


def watch(variable: str, folder: str | None = None) -> subprocess.Popen[bytes]:
    """Start a watchdog for this process.

    Args:
        variable: The mark of processes to end, which it does not carry itself.
        folder: To remove then.
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
    """Wait for the end of the run, then end its remaining processes and remove its folder."""
    variable, value, *folders = sys.argv[1:]
    sys.stdin.read()
    end_marked(variable, value, _PATIENCE_S)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
