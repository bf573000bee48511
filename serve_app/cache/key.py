"""What makes two requests the same: a key over all that changes the answer, and nothing else.

A key is SHA-256 over a canonical form: clients choose what is hashed, and must not be able to make two requests share
an answer. Every part of that form is preceded by its length or delimits itself, so that different requests have
different forms. Who asks, how urgently and under which name is not in it, nor which outputs are to be sent.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from serve_app.payloads import DTYPES, Media, Payload, Tensors

_FORM: Final = 1
"""Of what is hashed and of what is stored. Raise it when either changes: nothing stored before is found then."""
_LENGTHS: Final = struct.Struct("<QQ")
_DATATYPES: Final = {dtype: datatype for datatype, dtype in DTYPES.items()}
# Maps in the order of their keys: the same parameters in another order are the same parameters.
_PACKED: Final = msgspec.msgpack.Encoder(order="sorted")


class CacheKeys:
    """Makes the keys of one model's requests.

    Args:
        identities: By variant, the exact model as ``""``: what tells one state of its files and settings from another.
    """

    def __init__(self, model: str, identities: Mapping[str, str]) -> None:
        self._begun = {
            variant: hashlib.sha256(_PACKED.encode((_FORM, model, variant, identity)))
            for variant, identity in identities.items()
        }

    def key(self, payload: Payload, variant: str) -> bytes | None:
        """The key of a request, 32 bytes.

        Args:
            variant: The variant asked for; empty for the exact model.

        Returns:
            ``None`` where there is none: the payload holds values that no protocol can carry.
        """
        digest = self._begun[variant].copy()
        try:
            if isinstance(payload, dict):
                _add_tensors(digest, payload)
            elif isinstance(payload, Media):
                head = _PACKED.encode(("media", payload.content_type, payload.parameters))
                digest.update(_LENGTHS.pack(len(head), len(payload.content)))
                digest.update(head)
                digest.update(payload.content)
            else:
                digest.update(_PACKED.encode(("texts", payload.texts, payload.parameters)))
        except (TypeError, KeyError, OverflowError, UnicodeEncodeError):  # from an application in the same cluster
            return None
        return digest.digest()


def _add_tensors(digest: Any, tensors: Tensors) -> None:
    digest.update(_PACKED.encode(("tensors", len(tensors))))
    for name in sorted(tensors):
        array = tensors[name]
        datatype = _DATATYPES[array.dtype]
        flat = array.reshape(-1)  # a copy only where the array is not contiguous
        # Elements of BYTES tell their own lengths, and bytes from texts.
        data = _PACKED.encode(flat.tolist()) if array.dtype.hasobject else flat.view(np.uint8)
        head = _PACKED.encode((name, datatype, array.shape))
        digest.update(_LENGTHS.pack(len(head), len(data)))
        digest.update(head)
        digest.update(data)
