"""Models that are slow and use no core: they sleep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLUMNS = 4
SLEEPING = """
import time

class Sleeping:
    inputs = {{"x": ("float32", [-1, {columns}])}}
    outputs = {{"y": ("float32", [-1, 1])}}
    rows_independent = True

    def predict(self, batch):
        time.sleep({seconds})
        return {{"y": batch["x"].mean(axis=1, keepdims=True) + {more}}}
"""


def write(folder: Path, name: str, seconds: float, more: float = 0.0) -> dict[str, Any]:
    """A model that answers the mean of a row, plus a number, after a while, and its configuration."""
    (folder / name).mkdir(parents=True)
    (folder / name / "model.py").write_text(SLEEPING.format(columns=COLUMNS, seconds=seconds, more=more))
    return {"name": name, "path": str(folder / name), "backend": "python"}
