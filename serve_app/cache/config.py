"""Settings of the response cache: of one model, and of the router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import ByteSize, Field

from serve_app.config.values import Seconds, Section, Size

if TYPE_CHECKING:
    from serve_app.config.args import AppArgs


class ModelCacheConfig(Section):
    """Answers of one model that are given again to the same request."""

    enabled: bool = True
    """Whether there is a cache."""

    ttl_s: Seconds = 300.0
    """How long an answer may be given again."""

    max_bytes: Size = ByteSize(64 * 1024**2)
    """Memory of each router process for the model's answers. Those used least recently make room."""


class CacheConfig(Section):
    """What the caches of all models share in a router process."""

    max_waiting: Annotated[int, Field(ge=0)] = 256
    """Most requests that wait for the answer to the same request in flight. More are queued by themselves."""

    waiting_bytes: Size = ByteSize(64 * 1024**2)
    """Most bytes of those requests, and apart from them of large ones that wait for their key to be computed."""


def in_flight(args: AppArgs) -> dict[str, int]:
    """Most requests that wait outside the queues, by what they wait for."""
    waiting = args.router.cache.max_waiting if any(model.caches for model in args.models) else 0
    return {"waiting for the same request": waiting} if waiting else {}
