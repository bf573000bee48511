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
    message that names the field or the fault, and `serve_app.errors.InferenceFailed` for outputs that hold no answer
    (not a number); any other exception is a bug in the processor.
    """

    @property
    def task(self) -> str:
        """The Hugging Face task name, e.g. ``image-classification``."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the model's classes, in the order of its output; empty where it has none."""

    @property
    def buckets(self) -> tuple[int, ...]:
        """Every cost bucket that `bucket` may return, ascending; ``(0,)`` where the model has one shape only."""

    @property
    def bucket_invariant(self) -> bool:
        """Whether padding to a larger bucket leaves the answer as it was (the model takes a mask or a length).

        Where it is false, entries of different buckets should not share a batch: their answers would depend on
        their neighbours.
        """

    def estimate(self, payload: Media | Texts) -> Cost:
        """Estimate the cost without decoding. Runs in the router's event loop: microseconds only.

        Also refuses what can be seen at a glance: a wrong kind of media, wrong parameters.
        """

    def preprocess(self, payload: Media | Texts) -> Tensors:
        """Decode and convert. Runs in a thread pool of the replica. Axis 0 of every tensor is rows."""

    def bucket(self, tensors: Tensors) -> int:
        """The cost bucket of tensors: `preprocess` made them, or a client that prepares its tensors itself.

        Runs in the router's event loop for the latter. Refuses tensors that are larger than any that `preprocess`
        makes: they would cost more than the model was measured for.
        """

    def pad(self, tensors: Tensors, bucket: int) -> Tensors:
        """Pad the variable axes up to ``bucket``, so that tensors of several entries can form one batch."""

    def example(self, rows: int, bucket: int) -> Tensors:
        """Valid tensors of that many rows, padded to ``bucket``: for warming up and measuring a model."""

    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors | None = None) -> Any:
        """Make the answer: JSON-able data, or `serve_app.payloads.Embeddings`.

        Args:
            payload: What the client sent.
            outputs: The model's outputs for this payload's rows.
            inputs: What `preprocess` made of the payload, before padding. Without it, it is made again where needed.
        """
