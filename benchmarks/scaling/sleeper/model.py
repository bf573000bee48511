"""A model that waits instead of computing, as one on a device of its own: replicas do not slow each other down."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

ALPHA_S, BETA_S = 0.05, 0.02
"""Time of a batch, and of each row on top."""


class Sleeper:
    """Returns its input after a while."""

    inputs = {"x": ("float32", [-1, 4])}  # noqa: RUF012 - read without running it
    outputs = {"y": ("float32", [-1, 4])}  # noqa: RUF012
    rows_independent = True

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Wait."""
        time.sleep(ALPHA_S + BETA_S * len(batch["x"]))
        return {"y": np.asarray(batch["x"])}
