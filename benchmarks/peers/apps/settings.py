"""What every server is told, and the session that each of them makes of it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

_DTYPES: dict[str, Any] = {"tensor(float)": np.float32, "tensor(int64)": np.int64}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a server is told.

    Attributes:
        model: Its name; requests come to ``/v2/models/<model>/infer``.
        model_file: The ``.onnx`` file.
        port: Of 127.0.0.1.
        more_ports: Free ones, for a server that insists on more.
        threads: Threads of the session.
        max_rows: Rows per batch at most.
        max_wait_ms: How long a batch waits for more rows.
        wire: Name of the form of requests and answers; see `benchmarks.wires`.
        folder: For files that the server wants.
    """

    model: str
    model_file: str
    port: int
    more_ports: tuple[int, ...]
    threads: int
    max_rows: int
    max_wait_ms: float
    wire: str
    folder: str

    @property
    def path(self) -> str:
        """Where requests are posted."""
        return f"/v2/models/{self.model}/infer"

    @classmethod
    def from_text(cls, text: str) -> Settings:
        """From JSON."""
        values = json.loads(text)
        return cls(**{**values, "more_ports": tuple(values["more_ports"])})

    @classmethod
    def from_command_line(cls) -> Settings:
        """From the only argument."""
        return cls.from_text(sys.argv[1])


class Session:
    """An ONNX Runtime session and what its inputs are.

    Args:
        settings: What the server is told.
        threads: Of the session; 0 is ONNX Runtime's own choice.
    """

    def __init__(self, settings: Settings, threads: int | None = None) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = settings.threads if threads is None else threads
        self._session = onnxruntime.InferenceSession(settings.model_file, options, providers=["CPUExecutionProvider"])
        self.inputs = {each.name: _DTYPES[each.type] for each in self._session.get_inputs()}
        self.shapes = {each.name: tuple(each.shape[1:]) for each in self._session.get_inputs()}
        (output,) = self._session.get_outputs()
        self.output = output.name
        self.output_shape = tuple(output.shape[1:])

    def run(self, inputs: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        """The output, (rows, ...)."""
        found: npt.NDArray[np.float32] = self._session.run([self.output], inputs)[0]
        return found

    def from_json(self, tensors: list[dict[str, Any]]) -> dict[str, npt.NDArray[Any]]:
        """The ``inputs`` of a V2 request."""
        return {
            each["name"]: np.asarray(each["data"], self.inputs[each["name"]]).reshape(each["shape"]) for each in tensors
        }

    def from_bytes(self, content: bytes) -> dict[str, npt.NDArray[Any]]:
        """The bytes of the first input, one row; every further input is ones of its length."""
        name, *others = self.inputs
        shape = [size if isinstance(size, int) else -1 for size in self.shapes[name]]
        first = np.frombuffer(content, self.inputs[name]).reshape(1, *shape)
        return {name: first, **{other: np.ones(first.shape, self.inputs[other]) for other in others}}

    def to_json(self, model: str, y: npt.NDArray[np.float32]) -> dict[str, Any]:
        """A V2 answer."""
        output = {"name": self.output, "datatype": "FP32", "shape": list(y.shape), "data": y.ravel().tolist()}
        return {"model_name": model, "model_version": "1", "outputs": [output]}
