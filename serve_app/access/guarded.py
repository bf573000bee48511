"""The server as the key of the current request sees it.

A model that a key may not use does not exist for it: it is not listed, and a request for it is answered as for an
unknown name, so that the holder does not learn which models there are.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from serve_app.access.guard import Guard, allowed_class
from serve_app.domain.keys import Key
from serve_app.domain.priority import Priority
from serve_app.domain.service import (
    Administration,
    Answer,
    Inference,
    Loaded,
    ModelInfo,
    RequestOptions,
    unknown_model,
)
from serve_app.domain.versions import Asker, model_of
from serve_app.payloads import Payload


class GuardedInference:
    """Wraps an `Inference` that knows no keys.

    Args:
        inference: What it wraps.
        guard: Knows the current key. Methods raise `Unauthenticated` without one, and `ModelNotFound` for models that
            the key may not use.
    """

    def __init__(self, inference: Inference, guard: Guard) -> None:
        self._inner = inference
        self._guard = guard

    @property
    def models(self) -> Mapping[str, ModelInfo]:
        """The models that the key may use."""
        return self._seen_by(self._guard.current())

    @property
    def unloaded(self) -> Mapping[str, Sequence[ModelInfo]]:
        """The unloaded models that the key may use."""
        models, names = self._inner.unloaded, self._guard.current().models
        return models if names is None else {name: infos for name, infos in models.items() if name in names}

    def find(self, model: str, version: str | None = None) -> ModelInfo:
        """Find a model that the key may use."""
        self.check(model)
        return self._inner.find(model, version)

    def choose(self, model: str, asker: Asker) -> ModelInfo:
        """Choose a version; the key's name stands for the asker's tenant."""
        key = self.check(model)
        return self._inner.choose(model, asker._replace(tenant=key.name))

    def model_ready(self, model: str) -> bool:
        """Whether a model that the key may use is ready."""
        self.check(model_of(model))
        return self._inner.model_ready(model)

    def precheck(
        self,
        model: str,
        priority: Priority | None,
        nbytes: int,
        tenant: str = "",  # noqa: ARG002 - the key is the tenant
        weight: float = 1.0,  # noqa: ARG002
    ) -> None:
        """Precheck for the key's tenant. Raises `PermissionDenied` for a class that the key may not use."""
        key = self.check(model_of(model))
        self._inner.precheck(model, allowed_class(key, priority), nbytes, key.name, key.weight)

    def refused(self, model: str, code: str) -> None:
        """Count a refused request."""
        self._inner.refused(model, code)

    async def submit(self, model: str, payload: Payload, options: RequestOptions) -> Answer:
        """Submit in a class that the key may use, with the key's name and weight in the options."""
        return await self._inner.submit(model, payload, self._allowed(model, options))

    def stream(self, model: str, payload: Payload, options: RequestOptions) -> AsyncGenerator[Answer, None]:
        """Stream with the options of `submit`. Raises at once if the key may not."""
        return self._inner.stream(model, payload, self._allowed(model, options))

    def _allowed(self, model: str, options: RequestOptions) -> RequestOptions:
        key = self.check(model_of(model))
        attributes = replace(options.attributes, tenant=key.name, weight=key.weight)
        return replace(options, priority=allowed_class(key, options.priority), key=key.name, attributes=attributes)

    def check(self, model: str) -> Key:
        """The current key. Raises `ModelNotFound` for a model that it may not use."""
        key = self._guard.current()
        if key.models is not None and (model not in key.models or model not in self._inner.models):
            raise unknown_model(model, self._seen_by(key))
        return key

    def _seen_by(self, key: Key) -> Mapping[str, ModelInfo]:
        models, names = self._inner.models, key.models
        return models if names is None else {name: info for name, info in models.items() if name in names}


class GuardedAdministration:
    """Wraps an `Administration` that knows no keys.

    Whether a key may read or change the server is the policy of each route; here it is restricted to its models.

    Args:
        administration: What it wraps.
        inference: The models that the key may use.
        guard: Knows the current key. Methods but `live` and `ready` raise `Unauthenticated` without one, and
            `ModelNotFound` for models that the key may not use.
    """

    def __init__(self, administration: Administration, inference: GuardedInference, guard: Guard) -> None:
        self._inner = administration
        self._inference = inference
        self._guard = guard

    def live(self) -> bool:
        """Whether the process works; for all keys."""
        return self._inner.live()

    def ready(self) -> bool:
        """Whether the server is ready; for all keys."""
        return self._inner.ready()

    def status(self) -> Mapping[str, Any]:
        """The status, with that of the keys."""
        self._guard.current()
        return {**self._inner.status(), "api_keys": self._guard.status()}

    def statistics(self, model: str) -> Mapping[str, Any]:
        """Counters of a model that the key may use."""
        self._inference.check(model_of(model))
        return self._inner.statistics(model)

    async def total_statistics(self, models: Iterable[str]) -> Sequence[Mapping[str, Any]]:
        """Counters of models that the key may use."""
        names = list(models)
        for name in names:
            self._inference.check(model_of(name))
        return await self._inner.total_statistics(names)

    async def metrics(self) -> tuple[bytes, str]:
        """The metrics page."""
        self._guard.current()
        return await self._inner.metrics()

    async def load(self, model: str) -> Loaded:
        """Load a model that the key may use."""
        self._check_any(model)
        return await self._inner.load(model)

    async def unload(self, model: str) -> Loaded:
        """Unload a model that the key may use."""
        self._check_any(model)
        return await self._inner.unload(model)

    def _check_any(self, model: str) -> None:
        if model not in self._inference.unloaded:
            self._inference.check(model)
