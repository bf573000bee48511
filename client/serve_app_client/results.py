"""Results of calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Timings(NamedTuple):
    """Durations of one request at the server, microseconds.

    Attributes:
        queue_us: In the router's queue.
        preprocess_us: Making tensors of media.
        infer_us: In the backend.
        postprocess_us: Making the answer.
        timeout_us: From queueing, after the request was read, until the deadline.
    """

    queue_us: int
    preprocess_us: int
    infer_us: int
    postprocess_us: int
    timeout_us: int


@dataclass(frozen=True, slots=True)
class Served:
    """How a request was served.

    Attributes:
        priority: The effective class: ``high``, ``normal`` or ``low``; empty if unknown.
        variant: The build that answered; empty for the exact model. For a pipeline, comma-separated ``step=build`` of
            steps that the exact model did not answer.
        request_id: Id in the server's log.
        cache: ``hit``, ``miss`` or ``shared`` for a model with a response cache; else empty.
        version: The version that answered, for a model with several; else empty.
    """

    priority: str = ""
    variant: str = ""
    request_id: str = ""
    cache: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class InferResult:
    """The outputs of a model.

    Attributes:
        outputs: By name. Arrays of numbers are read-only: copy one to change it.
        version: The version that answered.
        timings: Durations, if requested and available.
    """

    outputs: dict[str, npt.NDArray[Any]]
    model: str
    version: str
    served: Served
    timings: Timings | None = None

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.outputs[name]


@dataclass(frozen=True, slots=True)
class StreamPart:
    """One part of an answer.

    Attributes:
        outputs: By name: a value, or a flat list of values, from JSON.
        version: The version that answered.
        served: As known with the first part.
    """

    outputs: dict[str, Any]
    model: str
    version: str
    served: Served

    def __getitem__(self, name: str) -> Any:
        return self.outputs[name]


class Label(NamedTuple):
    """A class with its score.

    Attributes:
        score: From 0 to 1.
    """

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class PredictResult:
    """A model's answer to media.

    Attributes:
        value: JSON data in the task's format.
    """

    value: Any
    served: Served

    @property
    def labels(self) -> list[Label]:
        """The classes of one image, audio or text, the best first.

        Raises:
            TypeError: The answer has another form.
        """
        value = self.value
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
            value = value[0]  # one text
        return _labels(value)

    @property
    def label_lists(self) -> list[list[Label]]:
        """The classes of each of several texts, the best first.

        Raises:
            TypeError: The answer has another form.
        """
        if not isinstance(self.value, list):
            raise TypeError(f"the answer holds no lists of labels: {self.value!r:.80}")
        return [_labels(value) for value in self.value]

    @property
    def array(self) -> npt.NDArray[np.float32]:
        """An array: embeddings of shape (texts, dimensions), or similarities of shape (sentences,).

        Raises:
            TypeError: The answer has another form.
        """
        try:
            return np.asarray(self.value, np.float32)
        except (TypeError, ValueError):
            raise TypeError(f"the answer holds no numbers alone: {self.value!r:.80}") from None


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """The answer of a pipeline.

    Attributes:
        outputs: By name, as JSON data; tensors are nested lists.
    """

    outputs: dict[str, Any]
    served: Served

    def __getitem__(self, name: str) -> Any:
        return self.outputs[name]


class TensorMetadata(NamedTuple):
    """One input or output of a model.

    Attributes:
        datatype: The protocol's name, e.g. ``FP32``.
        shape: ``-1`` for a variable dimension. Dimension 0 is rows.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


class ModelMetadata(NamedTuple):
    """A model's inputs and outputs."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


class ModelSummary(NamedTuple):
    """An entry of the list of served models."""

    name: str
    version: str
    task: str
    ready: bool


def _labels(value: Any) -> list[Label]:
    try:
        return [Label(str(item["label"]), float(item["score"])) for item in value]
    except (TypeError, KeyError, ValueError, IndexError):
        raise TypeError(f"the answer holds no labels with scores: {value!r:.80}") from None
