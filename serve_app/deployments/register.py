"""Where it is written down which revisions are served: in the cluster's own store, which outlives all replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ray import serve
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

from serve_app.config import deployment_name
from serve_app.domain.agreed import Agreed, decode_agreed, encode_agreed

_NAMESPACE = b"serve_app"


class ClusterRegister:
    """Implements `serve_app.domain.agreed.Register` for the application that this process belongs to.

    What was agreed on counts for as long as the model is deployed with the same files and settings.

    Args:
        bases: By model, the revision that it was deployed with.
    """

    def __init__(self, bases: Mapping[str, str]) -> None:
        self._application = serve.get_replica_context().app_name
        self._bases = bases

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
        return f"revision/{self._application}/{deployment_name(model)}/{self._bases[model]}".encode()
