"""A backend on a clock of its own, for what measures runs or warms a model up."""

from __future__ import annotations

from collections.abc import Callable

from serve_app.payloads import ModelSignature, Tensors, TensorSpec


class SimulatedBackend:
    """A run takes what ``cost`` says of (rows, bucket, time); the first of a shape takes several times as long.

    The bucket is the width of ``x``.

    Args:
        cost: Seconds of a run.
        first: How many times as long the first run of a shape takes.
        now: What the clock shows at the start, seconds.

    Attributes:
        runs: Rows and bucket of every run.
    """

    device = "cpu"
    signature = ModelSignature((TensorSpec("x", "FP32", (-1, -1)),), (TensorSpec("y", "FP32", (-1, -1)),))

    def __init__(self, cost: Callable[[int, int, float], float], first: float, now: float = 0.0) -> None:
        self._cost = cost
        self._first = first
        self.now = now
        self.runs: list[tuple[int, int]] = []

    def clock(self) -> float:
        """The simulated time, seconds."""
        return self.now

    def load(self) -> None:
        """Nothing to load."""

    def close(self) -> None:
        """Nothing to free."""

    def run(self, inputs: Tensors) -> Tensors:
        """Let the clock move on."""
        rows, bucket = inputs["x"].shape
        self.now += self._cost(rows, bucket, self.now) * (1 if (rows, bucket) in self.runs else self._first)
        self.runs.append((rows, bucket))
        return {"y": inputs["x"]}

    run_whole = run

    def turns(self) -> list[tuple[int, int]]:
        """The shapes in the order they took turns."""
        return [run for before, run in zip([None, *self.runs], self.runs, strict=False) if run != before]
