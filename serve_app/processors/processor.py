"""The seam between media and tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from serve_app.errors import InvalidRequest
from serve_app.payloads import Media, ModelSignature, Tensors, Texts
from serve_app.processors.model_folder import ModelFolder


class Cost(NamedTuple):
    """What a payload will add to a batch.

    Attributes:
        rows: As many as its tensors will have.
        bucket: The cost bucket that its tensors will have, as nearly as that can be told without decoding; 0 where
            the model has none.
    """

    rows: int
    bucket: int


class Processor(Protocol):
    """Turns one payload of media into tensors, and the model's outputs for it into an answer.

    A class of your own derives from this and writes `preprocess`, `postprocess` and `example`; the rest is for models
    with one size of input, and for requests of one row for a picture or a sound and one for each text.

    Implementations are immutable after construction: several threads call them at once.
    Every method raises `serve_app.errors.InvalidRequest` (or a subclass) for what the client got wrong, with a
    message that names the field or the fault, and `serve_app.errors.InferenceFailed` for outputs that hold no answer
    (not a number); any other exception is a bug in the processor. What a method is given it leaves as it is: arrays
    may be read-only, and may belong to other requests as well.

    Args:
        signature: The model's tensors.
        folder: Reads files beside the model.
    """

    def __init__(self, signature: ModelSignature, folder: ModelFolder) -> None:
        """Of a class of your own: options follow, as its ``options`` or as keyword arguments.

        Raises:
            serve_app.errors.ConfigError: Options, files and tensors do not fit together.
        """

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the model's classes, in the order of its output; empty where it has none."""
        return ()

    @property
    def buckets(self) -> tuple[int, ...]:
        """Every cost bucket that `bucket` may return, ascending; ``(0,)`` where the model has one shape only."""
        return (0,)

    @property
    def bucket_invariant(self) -> bool:
        """Whether padding to a larger bucket may leave the answer as it was; tried before anything is padded.

        Where it is false, every entry is padded to its own bucket, and only entries of one bucket share a batch.
        """
        return True

    def estimate(self, payload: Media | Texts) -> Cost:
        """Estimate the cost without decoding. Runs in the router's event loop: microseconds only.

        Also refuses what can be seen at a glance: a wrong kind of media, wrong parameters.
        """
        rows = 1 if isinstance(payload, Media) else len(payload.texts)
        if not rows:
            raise InvalidRequest("inputs: at least one text is expected, and none came")
        return Cost(rows, self.buckets[0])

    @abstractmethod
    def preprocess(self, payload: Media | Texts) -> Tensors:
        """Decode and convert. Runs in a thread pool of the replica.

        It must bound what it allocates by itself: a header may announce anything.

        Returns:
            Every input of the model by name, in the model's type and shape. Axis 0 of every tensor is rows, as many as
            `estimate` said.
        """

    def bucket(self, tensors: Tensors) -> int:  # noqa: ARG002 - of one size
        """The cost bucket of tensors: `preprocess` made them, or a client that prepares its tensors itself.

        Runs in the router's event loop for the latter. Refuses tensors that are larger than any that `preprocess`
        makes: they would cost more than the model was measured for.
        """
        return self.buckets[0]

    def pad(self, tensors: Tensors, bucket: int) -> Tensors:  # noqa: ARG002 - of one size
        """Pad the variable axes up to ``bucket``, so that tensors of several entries can form one batch."""
        return tensors

    def lengths(self, tensors: Tensors) -> Sequence[int]:  # noqa: ARG002 - of one size
        """How long each row is, in units of buckets, so that rows are cut apart by `cut`; none: they stay together."""
        return ()

    def cut(self, tensors: Tensors, rows: Sequence[int], length: int) -> Tensors:  # noqa: ARG002 - of one size
        """Some rows, cut or padded to a length that is at least that of the longest of them."""
        return {name: tensor[rows] for name, tensor in tensors.items()}

    @abstractmethod
    def example(self, rows: int, bucket: int) -> Tensors:
        """Valid tensors of that many rows, padded to ``bucket``: for warming up and measuring a model."""

    @abstractmethod
    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors) -> Any:
        """Make the answer: JSON-able data, or `serve_app.payloads.Embeddings`. Runs where `preprocess` does.

        Args:
            payload: What the client sent.
            outputs: The model's outputs for this payload's rows; an axis that varies may be longer than ``inputs``,
                since others may have shared the run.
            inputs: What `preprocess` made of the payload, before padding.
        """


def pads_to_buckets(processor: Processor) -> bool:
    """Whether all inputs are padded to a bucket, whatever that does: the model, or its processor, takes no others."""
    return len(processor.buckets) < 2 or not processor.bucket_invariant


def without_padding(processor: Processor, tensors: Tensors) -> Tensors:
    """What the model takes of what the processor made, no longer than that."""
    lengths = processor.lengths(tensors)
    return processor.cut(tensors, range(len(lengths)), max(lengths)) if lengths else tensors
