"""A server with jobs in a process of its own, to be killed; it says where it listens."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from local_server import LocalServer, every_kind_of_model


def args_of(folder: Path) -> dict[str, object]:
    """A configuration whose jobs are in a folder."""
    jobs = {"path": str(folder / "jobs.sqlite"), "lease_s": 1, "batches": 1}
    return {**every_kind_of_model(folder / "models"), "router": {"jobs": jobs}}


if __name__ == "__main__":
    with LocalServer(args_of(Path(sys.argv[1]))) as server:
        print(server.url, flush=True)
        threading.Event().wait()
