"""The interface between a router and its response cache."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from serve_app.domain.service import Answer, RequestOptions
from serve_app.payloads import Payload
from serve_app.router.dispatcher import Dispatcher
from serve_app.scheduling.entry import Entry
from serve_app.telemetry.metrics import RouterMetrics


class ModelCacheSettings(NamedTuple):
    """The cache of one model.

    Attributes:
        ttl_s: Lifetime of an answer.
        max_bytes: Memory of one router process for its answers.
        identities: Digests of the builds, by variant.
        revision: The state of the model that these are of; empty: unknown.
    """

    ttl_s: float
    max_bytes: int
    identities: Mapping[str, str]
    revision: str = ""


class Submit(Protocol):
    """Queues, runs and answers a request, and reports its entry."""

    def __call__(
        self, model: str, payload: Payload, options: RequestOptions, queued: Callable[[Entry], None] | None = None
    ) -> Awaitable[Answer]:
        """Raises `ServeAppError`; cancelling it cancels the work."""


class ModelCache(Protocol):
    """The cache of one model."""

    async def answer(self, timeout_s: float, payload: Payload, options: RequestOptions, submit: Submit) -> Answer:
        """Answer a request from the cache, by an equal one in flight, or by ``submit``, within ``timeout_s``."""

    def forget(self, variant: str) -> None:
        """Drop a variant's cached answers."""

    def status(self) -> dict[str, int]:
        """Its contents and hits, JSON-able."""


class AnswerCaches(Protocol):
    """The caches of all models of one router."""

    def add_model(self, model: str, settings: ModelCacheSettings) -> ModelCache:
        """Create an empty cache for a model."""

    def remove_model(self, model: str) -> None:
        """Drop a model's cached answers; requests that wait for its answers still get them."""

    def forget(self, model: str) -> None:
        """Drop a removed model's series."""

    def on_replicas(self, model: str, identities: Iterable[Mapping[str, Any]]) -> None:
        """Record the digests that the reachable replicas of a model report."""


MakeCaches: TypeAlias = Callable[[Dispatcher, RouterMetrics], AnswerCaches]
"""Makes the caches, given the executor of missed requests and the metrics."""
