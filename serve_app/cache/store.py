"""The cache of one model in this process: the answers used last, as many as its bytes allow, each for a while."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from cachetools import TLRUCache

from serve_app.payloads import Embeddings, held_bytes

ENTRY_BYTES: Final = 512
"""What an entry takes besides its value: the key, and its places in the tables of the cache."""


class Stored(NamedTuple):
    """A value in the cache. Several requests are answered from it: nobody may change it.

    Attributes:
        value: As in `serve_app.payloads.Success`.
        nbytes: Memory that it takes, bytes.
        ttl_s: How long it may be used from when it is stored, seconds.
    """

    value: Any
    nbytes: int
    ttl_s: float


class CacheStore:
    """Values by key, bounded in bytes: the least recently used one goes first, and each when its time is over.

    Args:
        max_bytes: Most bytes, what entries take besides their values included.
        clock: Seconds.

    Attributes:
        evictions: Values that had to make room before their time was over.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float]) -> None:
        self._max_bytes = max_bytes
        self._values = _Values(max_bytes, clock)

    def __len__(self) -> int:
        self._values.expire()
        return len(self._values)

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        self._values.expire()
        return int(self._values.currsize)

    @property
    def evictions(self) -> int:
        """Values that had to make room before their time was over."""
        return self._values.evictions

    def get(self, key: bytes) -> Stored | None:
        """The value, which counts as used now, or ``None``."""
        return self._values.get(key)

    def put(self, key: bytes, value: Any, ttl_s: float) -> Any:
        """Keep a value, if there is ever room for it.

        Returns:
            What is kept: a copy whose arrays own their memory and cannot be written to. The value itself if it is not.
        """
        if held_bytes(value) + ENTRY_BYTES > self._max_bytes:
            return value
        kept = frozen(value)
        self._values[key] = Stored(kept, held_bytes(kept) + ENTRY_BYTES, ttl_s)
        return kept


class _Values(TLRUCache[bytes, Stored]):
    def __init__(self, max_bytes: int, clock: Callable[[], float]) -> None:
        super().__init__(max_bytes, _expires, clock, _nbytes)
        self.evictions = 0

    def popitem(self) -> tuple[bytes, Stored]:
        self.evictions += 1
        return super().popitem()


def _expires(_: bytes, stored: Stored, now: float) -> float:
    return now + stored.ttl_s


def _nbytes(stored: Stored) -> int:
    return stored.nbytes


def frozen(value: Any) -> Any:
    """A copy of an answer to keep: its arrays own their memory and are read-only.

    An answer's arrays are mostly views of a frame with the answers of a whole bundle, which they would keep alive.
    """
    if isinstance(value, np.ndarray):
        copy = value.copy()
        copy.flags.writeable = False
        return copy
    if isinstance(value, Embeddings):
        return Embeddings(frozen(value.vectors), value.tokens)
    if isinstance(value, Mapping):
        return {name: frozen(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [frozen(item) for item in value]
    return value
