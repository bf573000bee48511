"""What a router asks of a cache of answers."""

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
        ttl_s: How long an answer may be used, seconds.
        max_bytes: Memory of one router process for its answers.
        identities: Digests of what answers are made of, by variant.
        revision: The state of the model that these are of; empty: unknown.
    """

    ttl_s: float
    max_bytes: int
    identities: Mapping[str, str]
    revision: str = ""


class Submit(Protocol):
    """Queues, runs and answers a request, and says what entry it has become."""

    def __call__(
        self, model: str, payload: Payload, options: RequestOptions, queued: Callable[[Entry], None] | None = None
    ) -> Awaitable[Answer]:
        """Raises `ServeAppError`; cancelling it cancels the work."""


class ModelCache(Protocol):
    """The cache of one model."""

    async def answer(self, timeout_s: float, payload: Payload, options: RequestOptions, submit: Submit) -> Answer:
        """Answer one request from the cache, by the same one in flight, or by ``submit``, within so many seconds."""

    def forget(self, variant: str) -> None:
        """Use nothing again of what was kept of a variant."""

    def status(self) -> dict[str, int]:
        """What it holds and what it was good for, JSON-able."""


class AnswerCaches(Protocol):
    """The caches of all models of one router."""

    def add_model(self, model: str, settings: ModelCacheSettings) -> ModelCache:
        """Make the cache of one more model, empty."""

    def remove_model(self, model: str) -> None:
        """Drop what is kept of a model; who waits for its answers still gets them."""

    def forget(self, model: str) -> None:
        """Drop a removed model's series."""

    def on_replicas(self, model: str, identities: Iterable[Mapping[str, Any]]) -> None:
        """Take note of what the replicas of a model that are within reach say that they run."""


MakeCaches: TypeAlias = Callable[[Dispatcher, RouterMetrics], AnswerCaches]
"""Makes them over what runs requests that are not found, and what counts how they end."""
