"""Decodes an infer request from a file, for warm-up."""

from __future__ import annotations

from serve_app.api.open_inference.codec import ModelCodec
from serve_app.domain.service import ModelInfo
from serve_app.payloads import ModelSignature, Tensors

_MOST_ROWS = 2**31 - 1


def decode_sample(model: str, signature: ModelSignature, body: bytes) -> Tensors:
    """Decode the JSON body of an infer request.

    Raises:
        InvalidRequest: It is malformed or does not fit the signature; names the place.
        Unsupported: It uses an unsupported extension.
    """
    codec = ModelCodec(
        ModelInfo(
            name=model,
            version="",
            versions=(),
            task="tensors",
            signature=signature,
            max_rows=_MOST_ROWS,
            max_request_rows=_MOST_ROWS,
            default_timeout_s={},
            labels=(),
        )
    )
    return codec.decode(codec.parse(body, None))
