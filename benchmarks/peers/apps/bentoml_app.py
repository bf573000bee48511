"""BentoML: one service with adaptive batching, its own form of requests, access log, metrics and traces off.

Run as a program, it becomes ``bentoml serve`` of itself. Its documentation ("Adaptive batching") gives a batch
a latency to stay below, and lets it learn the rest.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import bentoml
import numpy as np
import numpy.typing as npt

from benchmarks.peers.apps.settings import Session, Settings

_SETTINGS = "BENCHMARK_SETTINGS"
_MAX_LATENCY_MS = 60_000

# What is decorated has to be made while this module is imported, by BentoML's own processes.
told = Settings.from_text(os.environ.get(_SETTINGS) or sys.argv[1])


@bentoml.service(
    workers=1,
    traffic={"timeout": 60},
    logging={"access": {"enabled": False}},
    metrics={"enabled": False},
)
class Model:
    """One model."""

    def __init__(self) -> None:
        self._session = Session(told)

    @bentoml.api(  # type: ignore[untyped-decorator]  # not in this environment
        route=told.path, batchable=True, batch_dim=0, max_batch_size=told.max_rows, max_latency_ms=_MAX_LATENCY_MS
    )
    def infer(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Run a batch."""
        return self._session.run({"x": np.asarray(x, np.float32)})


def main() -> None:
    """Become ``bentoml serve``."""
    command: list[Any] = [
        *(sys.executable, "-m", "bentoml", "serve", "benchmarks.peers.apps.bentoml_app:Model"),
        *("--host", "127.0.0.1", "--port", str(told.port)),
    ]
    os.execve(sys.executable, command, {**os.environ, _SETTINGS: sys.argv[1], "BENTOML_DO_NOT_TRACK": "True"})


if __name__ == "__main__":
    main()
