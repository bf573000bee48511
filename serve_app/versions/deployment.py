"""Where routers keep how requests are spread over versions: Ray's key-value store, which lasts as long as the cluster.

It outlives routers and redeploys, and Serve keeps its own state there. To put a key only if it is missing is all that
routers need to agree who was first.
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
"""Revisions that are kept, the newest among them."""


def version_store(application: Callable[[], str]) -> KvTrafficStore:
    """Make the store of one application; see `KvTrafficStore`."""
    return KvTrafficStore(application)


class KvTrafficStore:
    """Implements `serve_app.router.versions.VersionStore`.

    Args:
        application: Tells the name of the Serve application whose routers share it.
    """

    def __init__(self, application: Callable[[], str]) -> None:
        self._application = application

    def add(self, model: str, origin: str, revision: int, table: bytes) -> bool:
        """See the class."""
        key = self._key(model, origin, revision)
        # A revision that is not kept any more could be put as if it had never been. Between this look and the put it
        # would take more changes than there are revisions kept for that to happen.
        if max(self._keys(model, origin), default=b"") >= key:
            return False
        existed = _internal_kv_put(key, table, overwrite=False, namespace=_NAMESPACE)
        if not existed:
            _internal_kv_del(self._key(model, origin, revision - _KEPT), namespace=_NAMESPACE)
        return not existed

    def newest(self, model: str, origin: str) -> bytes | None:
        """See the class."""
        keys = self._keys(model, origin)
        if not keys:
            return None
        table: bytes | None = _internal_kv_get(max(keys), namespace=_NAMESPACE)
        return table

    def drop_others(self, model: str, origin: str) -> bool:
        """See the class."""
        mine = self._prefix(model) + origin.encode() + b"/"
        others = [
            key for key in _internal_kv_list(self._prefix(model), namespace=_NAMESPACE) if not key.startswith(mine)
        ]
        for key in others:
            _internal_kv_del(key, namespace=_NAMESPACE)
        return bool(others)

    def _keys(self, model: str, origin: str) -> list[bytes]:
        """Of the revisions that are kept; they sort as these do."""
        keys: list[bytes] = _internal_kv_list(self._prefix(model) + origin.encode() + b"/", namespace=_NAMESPACE)
        return keys

    def _prefix(self, model: str) -> bytes:
        return hashlib.sha256(f"{self._application()}\0{model}".encode()).hexdigest()[:32].encode() + b"/"

    def _key(self, model: str, origin: str, revision: int) -> bytes:
        return self._prefix(model) + f"{origin}/{revision:012d}".encode()
