"""Administration of a router: readiness, status, statistics, loads and unloads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from time import monotonic
from types import MappingProxyType
from typing import Any, Protocol

from serve_app.domain.service import Inference, Loaded, unknown_model
from serve_app.domain.versions import newest_last
from serve_app.errors import Unsupported
from serve_app.router.dispatcher import Dispatcher
from serve_app.router.models import Models
from serve_app.telemetry.metrics import CONTENT_TYPE, RouterMetrics
from serve_app.telemetry.statistics import Statistics, describe, total


class Loading(Protocol):
    """Loads and unloads models, in all routers and replicas (`Administration`)."""

    async def load(self, model: str) -> Loaded:
        """Load a model, by its key."""

    async def unload(self, model: str) -> Loaded:
        """Unload a model, by its key."""


class RouterAdministration:
    """Implements `serve_app.domain.service.Administration` for one router.

    Args:
        inference: The outermost one, which knows pipelines too.
        dispatcher: Source of health and the scheduler's status.
        metrics: Counted by the dispatcher's observer.
        metrics_page: Renders the metrics of all routers.
        peer_statistics: Fetches the other routers' statistics of their models, by name; ``None``: there are none.
        repository: Loads and unloads models; ``None``: they stay as they are.
        load_faults: By member of a pool, why its last load failed.
    """

    def __init__(
        self,
        models: Models,
        inference: Inference,
        dispatcher: Dispatcher,
        metrics: RouterMetrics,
        metrics_page: Callable[[], Awaitable[str]],
        peer_statistics: Callable[[], Awaitable[Sequence[Mapping[str, Statistics]]]] | None = None,
        repository: Loading | None = None,
        load_faults: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._models = models
        self._inference = inference
        self._dispatcher = dispatcher
        self._scheduler = dispatcher.scheduler
        self._metrics = metrics
        self._metrics_page = metrics_page
        self._peer_statistics = peer_statistics or _no_peers
        self._repository = repository
        self._load_faults = load_faults
        self._more_status: dict[str, Callable[[], Any]] = {}
        self._more_statistics: dict[str, Callable[[], Statistics]] = {}

    def add_status(self, name: str, read: Callable[[], Any]) -> None:
        """Add a part to `status`, under a name of its own."""
        self._more_status[name] = read

    def add_statistics(self, model: str, read: Callable[[], Statistics]) -> None:
        """Add the statistics of a pipeline, under a name of its own."""
        self._more_statistics[model] = read

    # ---------------------------------------------------------------- readiness

    def live(self) -> bool:
        """Whether this process works: an answer proves that its event loop does."""
        return not self._dispatcher.broken

    def ready(self) -> bool:
        """Whether every model that should be running can take work, and this router accepts requests."""
        return all(self._keeps_ready(model) for model in self._models.by_name)

    def _keeps_ready(self, model: str) -> bool:
        """Whether this model does not affect readiness.

        That holds for a pool's members, whose hosts count, and for models that cannot be served.
        """
        served = self._models.served.get(model)
        hosted = served is not None and served.pool and self._scheduler.devices[served.pool].places
        if self._models.by_name[model].fault or hosted:
            return not self._models.ending and not self._dispatcher.broken
        return self._inference.model_ready(model)

    # ---------------------------------------------------------------- loads

    async def load(self, model: str) -> Loaded:
        """Load a model from its present files; as `Administration.load`."""
        keys, repository = self._changeable(model)
        return await _changed(model, keys, repository.load)

    async def unload(self, model: str) -> Loaded:
        """Unload a model; as `Administration.unload`."""
        keys, repository = self._changeable(model)
        return await _changed(model, keys, repository.unload)

    def _changeable(self, model: str) -> tuple[Sequence[str], Loading]:
        """The keys of a model's replicas, served or not, the newest version last; and its loader."""
        known = self._inference.models
        if (info := known.get(model)) is not None and info.pipeline is not None:
            names = ", ".join(dict.fromkeys(step.model for step in info.pipeline.models()))
            raise Unsupported(f"{model!r} is a pipeline: redeploy, or load and unload its models: {names}")
        infos = [*(served.info for served in self._models.served.values()), *self._models.unloaded.get(model, ())]
        keys = {info.version: info.key or info.name for info in infos if info.name == model}
        if not keys:
            raise unknown_model(model, known)
        pools = {served.pool for key in keys.values() if (served := self._models.served.get(key)) is not None}
        if (pool := next(filter(None, pools), None)) is not None:
            raise Unsupported(f"model {model!r} is a member of pool {pool!r}, which loads it when requests come for it")
        if self._repository is None:
            raise Unsupported("this server loads models when it starts, and keeps them")
        return [keys[version] for version in newest_last(tuple(keys))], self._repository

    # ---------------------------------------------------------------- status and statistics

    def status(self) -> Mapping[str, Any]:
        """A snapshot of the models, versions by key, JSON-able; docs/internals.md describes it."""
        snapshot, now = self._scheduler.snapshot(), monotonic()
        faults = {**self._load_faults, **self._models.faults}
        return {
            "ready": self.ready(),
            **{name: shown for name, read in self._more_status.items() if (shown := read()) is not None},
            "models": {
                name: {
                    "task": served.info.task,
                    "version": served.info.version,
                    **({"revision": served.info.revision} if served.info.revision else {}),
                    "ready": self._inference.model_ready(name),
                    **served.scheduling,
                    **({"understood": [fact._asdict() for fact in served.info.facts]} if served.info.facts else {}),
                    "joinable": {variant: verdict._asdict() for variant, verdict in served.info.joinable.items()},
                    **snapshot[name],
                    **served.warm_up,
                    **({"load_fault": faults[name]} if name in faults else {}),
                    "breaker": self._scheduler.breaker_snapshot(name, now),
                    **({} if served.cache is None else {"cache": served.cache.status()}),
                }
                for name, served in self._models.served.items()
            },
        }

    def statistics(self, model: str) -> Mapping[str, Any]:
        """Cumulative counters of one model in this router, in the V2 statistics extension's terms.

        Args:
            model: Its name, or the key of one of several versions.

        Raises:
            ModelNotFound: No such model.
        """
        if (read := self._more_statistics.get(model)) is not None:
            return read()
        served = self._models.served.get(model)
        if served is None:
            raise self._models.unknown(model)
        return describe(served.info, self._metrics.statistics(model), monotonic())

    async def total_statistics(self, models: Iterable[str]) -> Sequence[Mapping[str, Any]]:
        """Statistics of several models over all routers, and over all versions of each.

        Raises:
            ModelNotFound: No such model.
        """
        names = [key for model in models for key in self._keys_of(model)]
        routers = [{name: self.statistics(name) for name in names}, *await self._peer_statistics()]
        return [total([router[name] for router in routers if name in router]) for name in names]

    def all_statistics(self) -> dict[str, Statistics]:
        """The statistics of all models, versions by key, and pipelines of this router."""
        return {key: self.statistics(key) for key in (*self._models.keys, *self._more_statistics)}

    def _keys_of(self, model: str) -> tuple[str, ...]:
        return (model,) if model in self._more_statistics else self._models.keys_of(model)

    async def metrics(self) -> tuple[bytes, str]:
        """The metrics page of all routers in Prometheus' text format, and its content type."""
        page = await self._metrics_page()
        return page.encode(), CONTENT_TYPE


async def _changed(model: str, keys: Sequence[str], change: Callable[[str], Awaitable[Loaded]]) -> Loaded:
    """Load or unload all versions of a model, one after the other, also if the caller is cancelled."""

    async def in_turn() -> Sequence[Loaded]:
        return [await change(key) for key in keys]

    loaded = await asyncio.shield(asyncio.ensure_future(in_turn()))
    return Loaded(
        model,
        loaded[0].state,
        ",".join(each.version for each in loaded if each.version),
        ",".join(each.before for each in loaded if each.before),
        ",".join(each.after for each in loaded if each.after),
        sum(each.replicas for each in loaded),
    )


async def _no_peers() -> Sequence[Mapping[str, Statistics]]:
    return ()
