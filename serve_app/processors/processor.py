"""The seam between media and tensors."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from serve_app.payloads import Media, Tensors, Texts


class Cost(NamedTuple):
    """What a payload will add to a batch: rows, and the cost bucket (0 where the model has none)."""

    rows: int
    bucket: int


class Processor(Protocol):
    """Turns one payload of media into tensors, and the model's outputs for it into an answer.

    Implementations are immutable after construction and safe to call from several threads.
    Every method raises `serve_app.errors.InvalidRequest` (or a subclass) for what the client got wrong, with a
    message that names the field or the fault; any other exception is a bug in the processor.
    """

    task: str
    """The Hugging Face task name, e.g. ``image-classification``."""

    def estimate(self, payload: Media | Texts) -> Cost:
        """Estimate the cost without decoding. Runs in the router's event loop: microseconds only."""

    def preprocess(self, payload: Media | Texts) -> Tensors:
        """Decode and convert. Runs in a thread pool of the replica. Axis 0 of every tensor is rows."""

    def bucket(self, tensors: Tensors) -> int:
        """The cost bucket of preprocessed tensors."""

    def pad(self, tensors: Tensors, bucket: int) -> Tensors:
        """Pad the variable axes up to ``bucket``, so that tensors of several entries can form one batch."""

    def postprocess(self, payload: Media | Texts, outputs: Tensors) -> Any:
        """Make the answer: JSON-able data, or a float32 array (rows, dimensions) for embeddings."""
