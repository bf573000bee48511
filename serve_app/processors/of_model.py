"""The processor of a model that converts requests and answers itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from serve_app.domain.tasks import JSON_TYPE, kind_of
from serve_app.errors import InvalidRequest, PayloadTooLarge, UnsupportedMedia
from serve_app.payloads import DTYPES, Media, ModelSignature, Tensors, Texts
from serve_app.processors.media_type import expect_media
from serve_app.processors.processor import Cost, Processor
from serve_app.processors.tokenization import expect_texts

MOST_JSON_BYTES: Final = 8 * 2**20
"""A decoder makes objects of 8 MiB of brackets within some tenths of a second, in which nothing else runs."""


class Methods(Protocol):
    """The model's methods, as in `serve_app.backends.backend.Processing`."""

    def preprocess(self, content: Sequence[bytes], about: Mapping[str, Any]) -> Tensors:
        """The inputs for one request."""

    def postprocess(self, content: Sequence[bytes], about: Mapping[str, Any], outputs: Tensors) -> Any:
        """The answer to one request."""


class ModelProcessor(Processor):
    """Delegates to the model, whose backend checks the results.

    Args:
        task: Its name implies the requests' content.
        methods: The loaded model; ``None`` for pricing only.
    """

    buckets: tuple[int, ...] = (0,)
    bucket_invariant = True

    def __init__(self, task: str, signature: ModelSignature, methods: Methods | None = None) -> None:
        self._kind = kind_of(task)
        self._signature = signature
        self._methods = methods

    def __repr__(self) -> str:
        return f"<ModelProcessor {self._kind}>"

    def estimate(self, payload: Media | Texts) -> Cost:
        """One row for each text, else one: the actual number is the model's decision.

        Raises:
            InvalidRequest: It is of another kind than the model takes, empty, or too large.
        """
        return Cost(len(self._content(payload)), 0)

    def preprocess(self, payload: Media | Texts) -> Tensors:
        """The model's tensors."""
        return self._loaded().preprocess(self._content(payload), self._about(payload))

    def example(self, rows: int, bucket: int) -> Tensors:  # noqa: ARG002 - of one size
        """Zeros and empty texts; variable dimensions have size 1."""
        return {
            spec.name: np.full(
                (rows, *(abs(size) for size in spec.shape[1:])), _ZEROS.get(spec.datatype, 0), DTYPES[spec.datatype]
            )
            for spec in self._signature.inputs
        }

    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors) -> Any:  # noqa: ARG002
        """The model's answer."""
        return self._loaded().postprocess(self._content(payload), self._about(payload), outputs)

    def _loaded(self) -> Methods:
        if self._methods is None:
            raise RuntimeError("the model is not loaded here")
        return self._methods

    def _about(self, payload: Media | Texts) -> dict[str, Any]:
        content_type = payload.content_type if isinstance(payload, Media) else ""
        return {"kind": self._kind, "content_type": content_type, "parameters": payload.parameters}

    def _content(self, payload: Media | Texts) -> list[bytes]:
        if self._kind == "json":
            if not isinstance(payload, Media) or payload.content_type != JSON_TYPE:
                raise UnsupportedMedia('this model takes JSON: send {"inputs": ...}')
            if len(payload.content) > MOST_JSON_BYTES:
                raise PayloadTooLarge(f"inputs: {len(payload.content)} bytes of JSON; the most is {MOST_JSON_BYTES}")
            return [payload.content]
        if self._kind != "text":
            return [expect_media(payload, self._kind).content]
        texts = expect_texts(payload).texts
        if not texts:
            raise InvalidRequest("inputs: at least one text is expected, and none came")
        try:
            return [_encoded(text) for text in texts]
        except UnicodeEncodeError:
            raise InvalidRequest("inputs: text is not valid Unicode: half of a surrogate pair") from None


_ZEROS: Final[Mapping[str, Any]] = {"BYTES": b""}


def _encoded(text: object) -> bytes:
    if isinstance(text, str):
        return text.encode()
    raise InvalidRequest("inputs: this model takes texts, and no token ids")
