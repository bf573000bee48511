"""Asks a server whatever its own description allows, and what it does not: ``python tests/fuzz_http.py --help``."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from local_server import LocalServer, every_kind_of_model

_CONFIG = Path(__file__).with_name("schemathesis.toml")


def fuzz(url: str, *args: str, show: bool = False) -> subprocess.CompletedProcess[str]:
    """Run schemathesis on a server's /openapi.json, as ``schemathesis.toml`` says.

    Args:
        url: Of the server.
        args: Further arguments of ``schemathesis run``.
        show: Whether it writes its progress to this process's output instead of into the result.
    """
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(_CONFIG), "run", *args]
    with tempfile.TemporaryDirectory() as folder:  # where it keeps what failed, to begin with that the next time
        return subprocess.run(
            [*command, f"{url}/openapi.json"],
            text=True,
            stdout=None if show else subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            cwd=folder,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz a server that runs, or one that is started here with a small model of every task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of a server that runs; by default one is started here")
    parser.add_argument("--seconds", type=int, default=600, help="how long (600)")
    parser.add_argument("--seed", type=int, help="of what is generated; another one per run by default")
    options = parser.parse_args(arguments)
    args = ["--max-time", str(options.seconds), *(["--seed", str(options.seed)] if options.seed is not None else [])]
    if options.url:
        done = fuzz(options.url, *args, show=True)
    else:
        with tempfile.TemporaryDirectory() as folder:
            router = {"jobs": {"path": str(Path(folder) / "jobs.sqlite")}}
            with LocalServer({**every_kind_of_model(Path(folder)), "router": router}) as server:
                done = fuzz(server.url, *args, show=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
