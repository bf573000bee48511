"""Where it is written down which revisions are served: in the cluster's own store, which outlives all replicas."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping

from ray import serve
from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_initialized,
    _internal_kv_list,
    _internal_kv_put,
)

from serve_app.config.names import deployment_name
from serve_app.domain.agreed import Agreed, decode_agreed, encode_agreed

_NAMESPACE = b"serve_app"
_REVISION, _ROUTED, _SIZINGS = b"revision/", b"routed/", b"sizings/"


def forget(bases: Mapping[str, str]) -> None:
    """Deploy models anew: what was agreed on before counts no more. Without a cluster there is nothing to forget.

    Args:
        bases: By model, the revision that it is deployed with.
    """
    if _internal_kv_initialized():
        forgotten = (_routed(bases), *(_prefix(model, base) for model, base in bases.items()))
        for kind in (_ROUTED, _REVISION):
            for key in _internal_kv_list(kind, namespace=_NAMESPACE):  # few, however many models there are
                if key.startswith(forgotten):
                    _internal_kv_del(key, namespace=_NAMESPACE)


def write_sizings(application: str, sizings: str) -> None:
    """Publish why the models of an application have as many replicas as they have, for routers to show."""
    _internal_kv_put(_SIZINGS + application.encode(), sizings.encode(), overwrite=True, namespace=_NAMESPACE)


def read_sizings() -> str:
    """What was published for the application of this process; empty if nothing was."""
    found = _internal_kv_get(_SIZINGS + _application(), namespace=_NAMESPACE)
    return "" if found is None else found.decode()


class ClusterRegister:
    """Implements `serve_app.domain.agreed.Register` for the application that this process belongs to.

    What was agreed on counts until the application is deployed again.

    Args:
        bases: By model, the revision that it was deployed with.
    """

    def __init__(self, bases: Mapping[str, str]) -> None:
        self._bases = bases

    def was_routed(self) -> bool:
        """Whether a router has started since the application was deployed."""
        return _internal_kv_get(self._routed_key(), namespace=_NAMESPACE) is not None

    def note_routed(self) -> None:
        """A router has started."""
        _internal_kv_put(self._routed_key(), b"", overwrite=True, namespace=_NAMESPACE)

    def read_now(self, model: str) -> Agreed | None:
        """As `read`, without giving others their turn."""
        content = _internal_kv_get(self._key(model), namespace=_NAMESPACE)
        return None if content is None else decode_agreed(content)

    async def read(self, model: str) -> Agreed | None:
        """See `Register.read`."""
        return await asyncio.to_thread(self.read_now, model)

    async def write(self, model: str, agreed: Agreed) -> None:
        """See `Register.write`."""
        await asyncio.to_thread(
            _internal_kv_put, self._key(model), encode_agreed(agreed), overwrite=True, namespace=_NAMESPACE
        )

    def _key(self, model: str) -> bytes:
        return _prefix(model, self._bases[model]) + _application()

    def _routed_key(self) -> bytes:
        return _routed(self._bases) + _application()


def _application() -> bytes:
    application: str = serve.get_replica_context().app_name
    return application.encode()


def _routed(bases: Mapping[str, str]) -> bytes:
    digest = hashlib.sha256(json.dumps(sorted(bases.items())).encode()).hexdigest()
    return _ROUTED + f"{digest}/".encode()


def _prefix(model: str, base: str) -> bytes:
    return _REVISION + f"{deployment_name(model)}/{base}/".encode()
