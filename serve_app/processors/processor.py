"""The interface between media and tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from serve_app.errors import InvalidRequest
from serve_app.payloads import Media, ModelSignature, Tensors, Texts
from serve_app.processors.model_folder import ModelFolder


class Cost(NamedTuple):
    """The cost that a payload adds to a batch.

    Attributes:
        rows: Of its tensors.
        bucket: The cost bucket of its tensors, estimated without decoding; 0 without buckets.
    """

    rows: int
    bucket: int


class Processor(Protocol):
    """Turns a media payload into tensors, and the model's outputs into an answer.

    Custom classes override `preprocess`, `postprocess` and `example`. The defaults suit models with one input size,
    with one row per image or audio and one per text.

    Instances are immutable: several threads call them at once. Methods raise `serve_app.errors.InvalidRequest` (or a
    subclass) for errors of the client, with a message that names the field or the fault, and
    `serve_app.errors.InferenceFailed` for outputs without an answer (not a number); other exceptions are bugs. Methods
    must not change their arguments: arrays may be read-only and shared with other requests.

    Args:
        folder: Reads files beside the model.
    """

    def __init__(self, signature: ModelSignature, folder: ModelFolder) -> None:
        """Custom classes add options, as ``options`` or keyword arguments.

        Raises:
            serve_app.errors.ConfigError: Options, files and tensors do not match.
        """

    @property
    def labels(self) -> tuple[str, ...]:
        """The model's class names in output order, possibly empty."""
        return ()

    @property
    def buckets(self) -> tuple[int, ...]:
        """All possible results of `bucket`, ascending; ``(0,)`` for a single shape."""
        return (0,)

    @property
    def bucket_invariant(self) -> bool:
        """Whether padding to a larger bucket may leave the answer unchanged; tested before use.

        If false, entries are padded to their own bucket, and only entries of one bucket share a batch.
        """
        return True

    def estimate(self, payload: Media | Texts) -> Cost:
        """Estimate the cost without decoding. Runs in the router's event loop: microseconds only.

        Also refuses obvious errors: wrong media types and parameters.
        """
        rows = 1 if isinstance(payload, Media) else len(payload.texts)
        if not rows:
            raise InvalidRequest("inputs: at least one text is expected, and none came")
        return Cost(rows, self.buckets[0])

    @abstractmethod
    def preprocess(self, payload: Media | Texts) -> Tensors:
        """Decode and convert. Runs in a thread pool of the replica.

        Must bound its allocations itself: a header may claim anything.

        Returns:
            Every input of the model by name, in its type and shape. Axis 0 is rows, in the number of `estimate`.
        """

    def bucket(self, tensors: Tensors) -> int:  # noqa: ARG002 - of one size
        """The cost bucket of tensors, from `preprocess` or from a client that prepares tensors itself.

        For a client's tensors it runs in the router's event loop. Refuses larger tensors than `preprocess` makes: they
        would cost more than was measured.
        """
        return self.buckets[0]

    def pad(self, tensors: Tensors, bucket: int) -> Tensors:  # noqa: ARG002 - of one size
        """Pad variable axes up to ``bucket``, so that tensors of several entries can form a batch."""
        return tensors

    def lengths(self, tensors: Tensors) -> Sequence[int]:  # noqa: ARG002 - of one size
        """Each row's length, in units of buckets, so that `cut` can separate rows; empty: they stay together."""
        return ()

    def cut(self, tensors: Tensors, rows: Sequence[int], length: int) -> Tensors:  # noqa: ARG002 - of one size
        """Select rows, cut or padded to a length that holds the longest of them."""
        return {name: tensor[rows] for name, tensor in tensors.items()}

    @abstractmethod
    def example(self, rows: int, bucket: int) -> Tensors:
        """Valid tensors of this many rows, padded to ``bucket``, for warm-up and measurements."""

    @abstractmethod
    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors) -> Any:
        """Make the answer: JSON data, or `serve_app.payloads.Embeddings`. Runs where `preprocess` does.

        Args:
            outputs: Of this payload's rows; a variable axis may be longer than in ``inputs``, since runs are shared.
            inputs: From `preprocess`, before padding.
        """


def pads_to_buckets(processor: Processor) -> bool:
    """Whether all inputs are padded to a bucket in any case, since model or processor take no others."""
    return len(processor.buckets) < 2 or not processor.bucket_invariant


def without_padding(processor: Processor, tensors: Tensors) -> Tensors:
    """The model's inputs of the processor's tensors, without padding."""
    lengths = processor.lengths(tensors)
    return processor.cut(tensors, range(len(lengths)), max(lengths)) if lengths else tensors
