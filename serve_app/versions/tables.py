"""The models of one router that are served in several versions, with the table of each.

Routers agree by tables with revisions: a router stores a change first, under the next revision, which only one of them
can take; then it notifies the others. A router that was not notified, or has just started, finds it in the store.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from serve_app.domain.service import Answer, ModelInfo, RequestOptions
from serve_app.domain.versions import Asker, newest_last
from serve_app.errors import ModelUnavailable
from serve_app.payloads import Payload
from serve_app.router.versions import Tell, VersionStore
from serve_app.versions.policy import (
    STABLE,
    Shadow,
    Shares,
    Table,
    TableChange,
    Traffic,
    origin_of,
    pick,
    shares_of,
    stable_of,
    version_of,
)
from serve_app.versions.shadow import Shadows

logger = logging.getLogger(__name__)

REFRESH_S: Final = 5.0
"""Interval between reads of the store, seconds."""

_TABLE: Final = msgspec.json.Decoder(Table)


class Versions:
    """The versions of one model.

    Args:
        configured: Counts until it is changed.
        shadows: Runs copies of requests; ``None``: nothing does.

    Attributes:
        keys: By version, the newest last.
        table: The present table.
        shares: The split of requests without a version.
        shadow: The shadow with its version; ``None``: none.
    """

    __slots__ = ("_configured", "_shadows", "keys", "name", "shadow", "shares", "table")

    def __init__(self, name: str, configured: Traffic, shadows: Shadows | None = None) -> None:
        self.name = name
        self._shadows = shadows
        self.keys: Mapping[str, str] = {}
        self.table = Table(configured)
        self.shares: Shares = ()
        self.shadow: tuple[Shadow, str] | None = None
        self._configured = configured

    @property
    def versions(self) -> tuple[str, ...]:
        """Served versions, the newest last."""
        return tuple(self.keys)

    @property
    def stable(self) -> str:
        """Key of the stable version."""
        return self.keys[stable_of(self.table.traffic, self.versions)]

    @property
    def aliases(self) -> tuple[str, ...]:
        """Names that versions have besides their numbers."""
        return tuple(dict.fromkeys((STABLE, *self.table.traffic.aliases)))

    @property
    def origin(self) -> str:
        """The origin of its tables."""
        return origin_of(self._configured, self.versions)

    def add(self, version: str, key: str) -> None:
        """Add a version."""
        keys = {**self.keys, version: key}
        self.keys = {each: keys[each] for each in newest_last(tuple(keys))}
        self._settle()

    def remove(self, version: str) -> None:
        """Remove a version."""
        self.keys = {each: key for each, key in self.keys.items() if each != version}
        if self.keys:
            self._settle()
        else:
            self.shadow = None

    def key_of(self, named: str) -> str | None:
        """Key of the version of that number or alias."""
        version = version_of(self.table.traffic, self.versions, named)
        return None if version is None else self.keys[version]

    def choose(self, asker: Asker) -> str:
        """Key of the version for a request without one."""
        sticky = self.table.traffic.sticky
        who = "" if sticky == "none" else (sticky == "key" and asker.tenant) or asker.request_id
        return self.keys[pick(self.shares, self.name, who or str(random.random()))]  # noqa: S311 - no secret

    def answered(self, info: ModelInfo, payload: Payload, options: RequestOptions, answer: Answer) -> None:
        """Run a copy of a request on the shadow version, if it is to be compared."""
        if self.shadow is None or self._shadows is None:
            return
        settings, version = self.shadow
        if version == info.version or random.random() * 100.0 >= settings.share:  # noqa: S311 - no secret
            return
        self._shadows.answered(self.keys[version], info, payload, options, answer, settings.tolerance)

    def take(self, table: Table) -> bool:
        """Use a table unless it is stale. Returns whether it is used."""
        if table.revision <= self.table.revision:
            return False
        self.table = table
        if not self.keys:  # unloaded meanwhile
            return False
        self._settle()
        logger.info("Traffic of %s, revision %d: %s", self.name, table.revision, dict(self.shares))
        return True

    def _settle(self) -> None:
        traffic, versions = self.table.traffic, self.versions
        self.shares = shares_of(traffic, versions)
        shadow = traffic.shadow
        version = None if shadow is None else version_of(traffic, versions, shadow.to)
        self.shadow = None if shadow is None or version is None else (shadow, version)


class TrafficTables:
    """The models that have several versions, by name.

    Args:
        store: Keeps tables; ``None``: they last as long as this router.
        tell: Notifies the other routers; ``None``: there are none.
        changed: Called with a model whose table has changed.
        shadows: Runs copies of requests; ``None``: nothing does.
    """

    def __init__(
        self,
        store: VersionStore | None,
        tell: Tell | None,
        changed: Callable[[Versions], None],
        shadows: Shadows | None = None,
    ) -> None:
        self._store = store
        self._tell = tell
        self._changed = changed
        self._shadows = shadows
        self._models: dict[str, Versions] = {}
        self._unloaded: dict[str, Versions] = {}
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def models(self) -> Mapping[str, Versions]:
        """All of them."""
        return self._models

    def add(self, model: str, version: str, key: str, configured: object) -> Versions:
        """Add a version of a model, or the first. A model with a kept table continues with it."""
        versions = self._models.get(model)
        if versions is None:
            kept = self._unloaded.pop(model, None)
            if kept is None:
                assert isinstance(configured, Traffic)
                kept = Versions(model, configured, self._shadows)
            versions = self._models[model] = kept
        versions.add(version, key)
        return versions

    def remove(self, model: str, version: str, *, keep: bool = False) -> Versions | None:
        """Remove a version; returns the rest of the model. ``keep`` its table, even if that was the last."""
        versions = self._models[model]
        versions.remove(version)
        if versions.keys:
            return versions
        del self._models[model]
        if keep:
            self._unloaded[model] = versions
        return None

    def restore(self) -> None:
        """Use the stored tables, once at the start, when all models are known. Blocks.

        Tables stored for another configuration of a model are deleted: the new configuration counts.
        """
        if self._store is None:
            return
        for model, versions in self._models.items():
            if self._store.drop_others(model, versions.origin):
                logger.warning(
                    "Traffic of %s: the configuration has changed and counts, not the table before it", model
                )
            stored = self._store.newest(model, versions.origin)
            if stored is not None and self._take(versions, stored):
                logger.info("Traffic of %s: as it was set at run time, not as it is configured", model)

    def start(self) -> None:
        """Start to poll the store, if models have tables."""
        if self._store is not None and self._models and self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh(self._store))

    def close(self) -> None:
        """Stop polling."""
        if self._refreshing is not None:
            self._refreshing.cancel()

    async def end(self) -> None:
        """Stop polling, and cancel all copies of requests."""
        self.close()
        if self._shadows is not None:
            await self._shadows.close()

    async def change(self, versions: Versions, change: TableChange) -> None:
        """Change a table at all routers.

        Raises:
            InvalidRequest: From ``change``.
            ModelUnavailable: It cannot be stored.
        """
        while True:
            table = change(versions.table, versions.versions)
            if self._store is None:
                break
            origin, content = versions.origin, msgspec.json.encode(table)
            try:
                if await asyncio.to_thread(self._store.add, versions.name, origin, table.revision, content):
                    break
                stored = await asyncio.to_thread(self._store.newest, versions.name, origin)
            except Exception as error:  # whatever the store's fault, the previous table counts
                logger.exception("Traffic of %s cannot be stored", versions.name)
                raise ModelUnavailable("the change could not be stored, and does not count; retry", 1.0) from error
            if stored is not None:  # another router was first
                self._take(versions, stored)
        if versions.take(table):
            self._changed(versions)
        if self._tell is not None:
            await self._tell(versions.name, versions.origin, msgspec.json.encode(table))

    def told(self, model: str, origin: str, table: bytes) -> None:
        """Use another router's table. One of another configuration is ignored."""
        versions = self._models.get(model)
        if versions is not None and versions.origin == origin:
            self._take(versions, table)

    def _take(self, versions: Versions, content: bytes) -> bool:
        taken = versions.take(_TABLE.decode(content))
        if taken:
            self._changed(versions)
        return taken

    async def _refresh(self, store: VersionStore) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                for versions in list(self._models.values()):
                    stored = await asyncio.to_thread(store.newest, versions.name, versions.origin)
                    if stored is not None:
                        self._take(versions, stored)
            except Exception:  # the store may be away for a while; the present tables count
                logger.warning("The traffic tables cannot be read", exc_info=True)
