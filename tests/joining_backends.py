"""Backends written for a test, whose answers depend on what a test chooses, and ways to make their inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from serve_app.backends.joining.drawing import Varied
from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.errors import InferenceFailed
from serve_app.payloads import ModelSignature, Tensors

Answer = Callable[[Tensors], Tensors]


class Made:
    """A backend that answers with a function of its inputs.

    Args:
        answer: Of all rows of a run.
        seconds: How long each run takes, on `now`.

    Attributes:
        runs: The rows of every run, in order.
        now: Its own clock, seconds.
    """

    device = "cpu"
    signature = ModelSignature((), ())

    def __init__(self, answer: Answer, seconds: float = 0.0) -> None:
        self._answer = answer
        self._seconds = seconds
        self.runs: list[int] = []
        self.now = 0.0

    def load(self) -> None:
        """Nothing to load."""

    def close(self) -> None:
        """Nothing to free."""

    def run(self, inputs: Tensors) -> Tensors:
        """Answer, and note the rows."""
        self.runs.append(len(next(iter(inputs.values()))))
        self.now += self._seconds
        return self._answer(inputs)

    run_whole = run

    def clock(self) -> float:
        """Seconds of runs so far."""
        return self.now


def shifted(dtype: type | np.dtype, by: float) -> Answer:
    """Ones, and in runs of more than five rows ones that are larger by this: no request has more by itself."""

    def answer(inputs: Tensors) -> Tensors:
        rows = len(inputs["x"])
        return {"y": np.full((rows, 2), 1.0 + (by if rows > 5 else 0.0)).astype(dtype)}

    return answer


def refusing(refused: Callable[[Tensors], bool]) -> Answer:
    """What it is asked, but for inputs that it fails on."""

    def answer(inputs: Tensors) -> Tensors:
        if refused(inputs):
            raise InferenceFailed("the model failed on this input: refused")
        return {"y": inputs["x"].copy()}

    return answer


def ones(width: int = 4) -> Varied:
    """Draws ``x``, FP32 of so many columns."""
    return Varied(lambda rows, _: {"x": np.ones((rows, width), np.float32)})


def loaded(model_file: Path) -> OnnxBackend:
    """A model on the CPU, ready to run."""
    backend = OnnxBackend(OnnxSettings(model_file.parent.name, model_file, device="cpu"))
    backend.load()
    return backend


class Paced(Made):
    """As `Made`, but each run has to be let go.

    Attributes:
        begun: Is released when a run begins.
        go: Lets one run go on.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def run(self, inputs: Tensors) -> Tensors:
        """Wait, and answer."""
        self.begun.release()
        assert self.go.acquire(timeout=30.0)
        return super().run(inputs)

    run_whole = run
