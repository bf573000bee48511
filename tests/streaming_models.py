"""A model that counts, in parts, and notes when its generators are closed."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

COUNTING = """
    import os, time
    import numpy as np

    class Counting:
        inputs = {"n": ("int64", [1]), "fail_at": ("int64", [1])}
        outputs = {"i": ("int64", [1]), "blob": ("uint8", [-1])}

        def setup(self, context):
            self.folder = context.parameters.get("folder")
            self.nbytes = context.parameters.get("nbytes", 0)
            self.pause_s = context.parameters.get("pause_s", 0)

        def note(self, name):
            with open(os.path.join(self.folder, name), "a") as file:
                file.write("x")

        def predict(self, batch):
            n, fail_at = int(batch["n"][0]), int(batch["fail_at"][0])
            try:
                i = 0
                while i != n:
                    if i == fail_at:
                        raise ValueError("asked to")
                    time.sleep(self.pause_s)
                    yield {"i": np.array([i]), "blob": np.zeros(self.nbytes, np.uint8)}
                    i += 1
            finally:
                self.note("closed")
"""


OWN_PROCESS: Mapping[str, Any] = {"environment": {"python": sys.executable}}
"""Has it run in a process of its own."""


def write(folder: Path, name: str, options: Mapping[str, Any] = {}, **parameters: Any) -> dict[str, Any]:
    """A model that counts, and its configuration."""
    (folder / name).mkdir(parents=True)
    (folder / name / "model.py").write_text(textwrap.dedent(COUNTING))
    return {
        "name": name,
        "path": str(folder / name),
        "backend": "python",
        "backend_options": {**options, "parameters": {"folder": str(folder / name), **parameters}},
        "warm_up": {"inputs": {"n": {"values": [1]}, "fail_at": {"values": [-1]}}},
    }


def ask(n: int, fail_at: int = -1) -> dict[str, Any]:
    """A request for so many parts; without end for -1."""
    return {"n": np.array([n], np.int64), "fail_at": np.array([fail_at], np.int64)}
