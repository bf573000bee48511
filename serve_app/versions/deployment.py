"""Stores the split of requests over versions in Ray's key-value store, which lasts as long as the cluster.

It outlives routers and redeploys, and Serve keeps its own state there. Routers agree who was first by putting a key
only if it is missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_list,
    _internal_kv_put,
)

_NAMESPACE: Final = b"serve_app_traffic"
_KEPT: Final = 2
"""Number of stored revisions."""


def version_store(application: Callable[[], str]) -> KvTrafficStore:
    """Make the store of one application."""
    return KvTrafficStore(application)


class KvTrafficStore:
    """Implements `serve_app.router.versions.VersionStore`.

    Args:
        application: Tells the name of the Serve application whose routers share it.
    """

    def __init__(self, application: Callable[[], str]) -> None:
        self._application = application

    def add(self, model: str, origin: str, revision: int, table: bytes) -> bool:
        """Store a table, unless one of this revision or a higher one exists."""
        key = self._key(model, origin, revision)
        # A deleted revision could be put as if it had never been. Between this look and the put it
        # would take more changes than there are revisions kept for that to happen.
        if max(self._keys(model, origin), default=b"") >= key:
            return False
        existed = _internal_kv_put(key, table, overwrite=False, namespace=_NAMESPACE)
        if not existed:
            _internal_kv_del(self._key(model, origin, revision - _KEPT), namespace=_NAMESPACE)
        return not existed

    def newest(self, model: str, origin: str) -> bytes | None:
        """The table of the highest revision."""
        keys = self._keys(model, origin)
        if not keys:
            return None
        table: bytes | None = _internal_kv_get(max(keys), namespace=_NAMESPACE)
        return table

    def drop_others(self, model: str, origin: str) -> bool:
        """Delete tables of other origins. Returns whether there were any."""
        mine = self._prefix(model) + origin.encode() + b"/"
        others = [
            key for key in _internal_kv_list(self._prefix(model), namespace=_NAMESPACE) if not key.startswith(mine)
        ]
        for key in others:
            _internal_kv_del(key, namespace=_NAMESPACE)
        return bool(others)

    def _keys(self, model: str, origin: str) -> list[bytes]:
        """Keys of the stored revisions, in their order."""
        keys: list[bytes] = _internal_kv_list(self._prefix(model) + origin.encode() + b"/", namespace=_NAMESPACE)
        return keys

    def _prefix(self, model: str) -> bytes:
        return hashlib.sha256(f"{self._application()}\0{model}".encode()).hexdigest()[:32].encode() + b"/"

    def _key(self, model: str, origin: str, revision: int) -> bytes:
        return self._prefix(model) + f"{origin}/{revision:012d}".encode()
