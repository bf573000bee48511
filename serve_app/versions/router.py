"""Models in several versions as a part of a router."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any, ClassVar

from prometheus_client.registry import Collector

from serve_app.api.gateway import Gateway
from serve_app.api.routes import ApiRoutes, Find
from serve_app.domain.priority import Priority
from serve_app.router.part import PartContext, RouterPart
from serve_app.router.versions import VersionsContext
from serve_app.telemetry.readings import Readings
from serve_app.versions.metrics import TRAFFIC, TrafficReading, shadow_counter
from serve_app.versions.policy import described
from serve_app.versions.routes import routes
from serve_app.versions.shadow import SHADOW_TENANT, SHADOW_WEIGHT, Shadows
from serve_app.versions.tables import TrafficTables


class VersionsPart(RouterPart):
    """Shows and changes the split of requests over versions."""

    name: ClassVar = "traffic"

    def __init__(self, context: PartContext) -> None:
        assert isinstance(context.versions, TrafficTables)
        self._tables = context.versions

    def routes(self, gateway: Gateway, find: Find) -> ApiRoutes:  # noqa: ARG002 - of all parts
        """``/v2/models/{model}/traffic``."""
        return ApiRoutes(routes(gateway, self._tables))

    def collectors(self) -> Iterable[Collector]:
        """Shares and revisions of the tables."""
        return (Readings(TRAFFIC, self._readings),)

    def status(self) -> Mapping[str, Any] | None:
        """The table of each model with several versions, from `described`."""
        models = self._tables.models
        return {name: described(name, each.table, each.versions) for name, each in models.items()} or None

    async def close(self) -> None:
        """Stop polling for changes, and cancel all copies."""
        await self._tables.end()

    def _readings(self) -> Mapping[str, TrafficReading]:
        readings = {}
        for model, versions in self._tables.models.items():
            shares = dict(versions.shares)
            readings[model] = TrafficReading(
                versions.table.revision, {key: shares.get(version, 0.0) for version, key in versions.keys.items()}
            )
        return readings


def make_tables(context: VersionsContext) -> TrafficTables:
    """The tables of a router, whose shadow requests it runs."""

    def has_room(key: str, nbytes: int) -> bool:
        precheck = context.scheduler.precheck
        return precheck(key, Priority.LOW, nbytes, monotonic(), SHADOW_TENANT, SHADOW_WEIGHT) is None

    shadows = Shadows(context.info_of, has_room, context.execute, shadow_counter(context.metrics))
    return TrafficTables(context.store, context.tell, context.changed, shadows)
