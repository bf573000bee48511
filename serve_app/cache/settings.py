"""Settings of the response cache."""

from __future__ import annotations

from typing import NamedTuple


class CacheSettings(NamedTuple):
    """What the caches of one router process share.

    Attributes:
        max_followers: Most requests that wait for the same one in flight.
        follower_bytes: Most bytes that these hold, and likewise those that wait to be hashed.
        offload_above: Requests of more bytes are hashed in a thread.
        threads: Most that are at once.
    """

    max_followers: int = 256
    follower_bytes: int = 64 * 2**20
    offload_above: int = 256 * 2**10
    threads: int = 2
