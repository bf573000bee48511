"""The interface to models that are served in several versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from serve_app.domain.service import Answer, ModelInfo, RequestOptions
from serve_app.domain.versions import Asker
from serve_app.payloads import Payload
from serve_app.scheduling.view import SchedulerView
from serve_app.telemetry.metrics import RouterMetrics


class ModelVersions(Protocol):
    """The versions of one model."""

    @property
    def name(self) -> str:
        """Of the model."""

    @property
    def keys(self) -> Mapping[str, str]:
        """The key of each by version, the newest last."""

    @property
    def versions(self) -> tuple[str, ...]:
        """All versions, the newest last."""

    @property
    def stable(self) -> str:
        """Key of the version that stands for the model."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Names that versions have besides their numbers."""

    def key_of(self, named: str) -> str | None:
        """Key of the version of that number or alias."""

    def choose(self, asker: Asker) -> str:
        """Key of the version that answers a request without a version."""

    def answered(self, info: ModelInfo, payload: Payload, options: RequestOptions, answer: Answer) -> None:
        """Record an answer that a version has computed for a client."""


class VersionTables(Protocol):
    """The models of one router that have several versions."""

    @property
    def models(self) -> Mapping[str, ModelVersions]:
        """All of them, by name."""

    def add(self, model: str, version: str, key: str, configured: object) -> ModelVersions:
        """Add a version of a model, or the first; ``configured`` as of `RoutedModel.traffic`."""

    def remove(self, model: str, version: str, *, keep: bool = False) -> ModelVersions | None:
        """Remove a version; returns the rest of the model. ``keep`` its table, even if that was the last."""

    def restore(self) -> None:
        """Apply changes made at run time, once at the start, when all models are known. Blocks."""

    def start(self) -> None:
        """Start to look for changes by other routers."""

    def told(self, model: str, origin: str, table: bytes) -> None:
        """Apply a table that another router has sent."""


class VersionStore(Protocol):
    """Keeps tables for all routers of an application, beyond their lifetimes. Its methods may block.

    A table belongs to an origin: the configuration of the model. Tables of other origins are ignored.
    """

    def add(self, model: str, origin: str, revision: int, table: bytes) -> bool:
        """Store a table, unless one of this revision or a higher one exists. Returns whether it was stored."""

    def newest(self, model: str, origin: str) -> bytes | None:
        """The table of the highest revision."""

    def drop_others(self, model: str, origin: str) -> bool:
        """Delete tables of other origins. Returns whether there were any."""


Tell: TypeAlias = Callable[[str, str, bytes], Awaitable[None]]
"""Sends a table to all other routers: the model, its origin, and the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsContext:
    """Services of the router for versions of models.

    Attributes:
        store: Keeps tables; ``None``: they last as long as the router.
        tell: Sends a table to the other routers; ``None``: there are none.
        changed: Called when another version may be the stable one.
        info_of: Present description of the version of a key.
        execute: Runs a request for a key, past the cache; raises `ServeAppError`.
        scheduler: For whether there is room for a request.
        metrics: Per model.
    """

    store: VersionStore | None
    tell: Tell | None
    changed: Callable[[ModelVersions], None]
    info_of: Callable[[str], ModelInfo]
    execute: Callable[[str, Payload, RequestOptions], Awaitable[Answer]]
    scheduler: SchedulerView
    metrics: RouterMetrics


MakeVersions: TypeAlias = Callable[[VersionsContext], VersionTables]
"""Makes the tables in the event loop of the router."""
