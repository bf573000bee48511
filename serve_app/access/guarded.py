"""What the current request's key may use: the service as that key sees it.

A model that a key may not use does not exist for it: it is not listed, and asking for it is answered as for a name that
no model has, so that its holder does not learn which models there are.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from serve_app.access.guard import Guard, allowed_class
from serve_app.domain.keys import Key
from serve_app.domain.service import Answer, InferenceService, Loaded, ModelInfo, RequestOptions, unknown_model
from serve_app.domain.traffic import Asker, TableChange, model_of
from serve_app.payloads import Payload
from serve_app.scheduling.entry import Priority


class GuardedService:
    """Implements `serve_app.domain.service.InferenceService` over one that knows no keys.

    Args:
        service: The server, as those see it who may do everything.
        guard: Knows who asks. Every method raises `Unauthenticated` where it does not, but those that tell only
            whether the server as a whole works.
    """

    def __init__(self, service: InferenceService, guard: Guard) -> None:
        self._service = service
        self._guard = guard

    @property
    def models(self) -> Mapping[str, ModelInfo]:
        """The models that the key may use."""
        return self._seen_by(self._guard.current())

    def find(self, model: str, version: str | None = None) -> ModelInfo:
        """As the service's; `ModelNotFound` for models that the key may not use."""
        self._check(model)
        return self._service.find(model, version)

    def choose(self, model: str, asker: Asker) -> ModelInfo:
        """As the service's, for the key in place of the asker's tenant; `ModelNotFound` as for `find`."""
        key = self._check(model)
        return self._service.choose(model, asker._replace(tenant=key.name))

    def traffic(self, model: str) -> Mapping[str, Any]:
        """As the service's; `ModelNotFound` for models that the key may not use."""
        self._check(model)
        return self._service.traffic(model)

    async def change_traffic(self, model: str, change: TableChange) -> Mapping[str, Any]:
        """As the service's; `ModelNotFound` for models that the key may not use."""
        self._check(model)
        return await self._service.change_traffic(model, change)

    def precheck(
        self,
        model: str,
        priority: Priority | None,
        nbytes: int,
        tenant: str = "",  # noqa: ARG002 - the key is the tenant
        weight: float = 1.0,  # noqa: ARG002
    ) -> None:
        """As the service's for the key's tenant, and raises `PermissionDenied` for a class that the key may not use."""
        key = self._check(model_of(model))
        self._service.precheck(model, allowed_class(key, priority), nbytes, key.name, key.weight)

    def refused(self, model: str, code: str) -> None:
        """As the service's."""
        self._service.refused(model, code)

    async def submit(self, model: str, payload: Payload, options: RequestOptions) -> Answer:
        """As the service's, in a class that the key may use, with the key's name and weight among the options."""
        return await self._service.submit(model, payload, self._allowed(model, options))

    def stream(self, model: str, payload: Payload, options: RequestOptions) -> AsyncGenerator[Answer, None]:
        """As the service's, as `submit` asks it. Raises at once where the key may not."""
        return self._service.stream(model, payload, self._allowed(model, options))

    def _allowed(self, model: str, options: RequestOptions) -> RequestOptions:
        key = self._check(model_of(model))
        return replace(
            options, priority=allowed_class(key, options.priority), key=key.name, tenant=key.name, weight=key.weight
        )

    def live(self) -> bool:
        """As the service's, for all keys."""
        return self._service.live()

    def ready(self) -> bool:
        """As the service's, for all keys."""
        return self._service.ready()

    def model_ready(self, model: str) -> bool:
        """As the service's; `ModelNotFound` for models that the key may not use."""
        self._check(model_of(model))
        return self._service.model_ready(model)

    def status(self) -> Mapping[str, Any]:
        """As the service's, with what there is to say of the keys. Who may see it is a matter of its route's policy."""
        self._guard.current()
        return {**self._service.status(), "api_keys": self._guard.status()}

    def statistics(self, model: str) -> Mapping[str, Any]:
        """As the service's; `ModelNotFound` for models that the key may not use."""
        self._check(model_of(model))
        return self._service.statistics(model)

    async def total_statistics(self, models: Iterable[str]) -> Sequence[Mapping[str, Any]]:
        """As the service's; `ModelNotFound` for models that the key may not use."""
        names = list(models)
        for name in names:
            self._check(model_of(name))
        return await self._service.total_statistics(names)

    async def metrics(self) -> tuple[bytes, str]:
        """As the service's; as for `status`."""
        self._guard.current()
        return await self._service.metrics()

    @property
    def unloaded(self) -> Mapping[str, Sequence[ModelInfo]]:
        """As the service's, of the models that the key may use."""
        models, names = self._service.unloaded, self._guard.current().models
        return models if names is None else {name: infos for name, infos in models.items() if name in names}

    async def load(self, model: str) -> Loaded:
        """As the service's; `ModelNotFound` for models that the key may not use. That it may is its route's matter."""
        self._check_any(model)
        return await self._service.load(model)

    async def unload(self, model: str) -> Loaded:
        """As `load`."""
        self._check_any(model)
        return await self._service.unload(model)

    def _check_any(self, model: str) -> None:
        if model not in self.unloaded:
            self._check(model)

    def _check(self, model: str) -> Key:
        key = self._guard.current()
        if key.models is not None and (model not in key.models or model not in self._service.models):
            raise unknown_model(model, self._seen_by(key))
        return key

    def _seen_by(self, key: Key) -> Mapping[str, ModelInfo]:
        models, names = self._service.models, key.models
        return models if names is None else {name: info for name, info in models.items() if name in names}
