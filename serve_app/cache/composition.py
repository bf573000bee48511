"""What a configuration makes of the response cache."""

from __future__ import annotations

from functools import partial

from serve_app.cache.response_cache import ResponseCache
from serve_app.cache.settings import CacheSettings
from serve_app.config.args import AppArgs
from serve_app.router.answer_cache import MakeCaches


def answer_caches(args: AppArgs) -> MakeCaches:
    """Make the caches of one router process, within the bounds that all models share."""
    return partial(ResponseCache, cache_settings(args))


def cache_settings(args: AppArgs) -> CacheSettings:
    """Bounds that the response caches of one router process share."""
    router = args.router
    return CacheSettings(
        max_followers=router.cache.max_waiting,
        follower_bytes=int(router.cache.waiting_bytes),
        offload_above=int(router.transport.offload_above),
        threads=router.transport.decode_threads,
    )
