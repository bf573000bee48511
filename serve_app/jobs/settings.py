"""Settings of jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from serve_app.domain.settings import RedisSettings


@dataclass(frozen=True, slots=True)
class CallbackSettings:
    """Settings of callbacks.

    Attributes:
        hosts: Allowed hosts of callback URLs, lower case, each with a port after a colon, or without for ``https`` at
            port 443 and ``http`` at port 80.
        networks: Allowed addresses that are not public.
        secret: Key of signatures; empty: unsigned.
        timeout_s: Of one attempt, seconds.
        attempts: Most attempts for a callback.
        retry_s: Pause after the first attempt, seconds; later ones are four times the previous.
    """

    hosts: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    secret: bytes = field(default=b"", repr=False)
    timeout_s: float = 10.0
    attempts: int = 8
    retry_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """How jobs are stored and run.

    Attributes:
        path: File of the store, unless ``redis`` is set.
        redis: Server of the store.
        batches: Full batches of a model's rows in flight for jobs in one router, for each potential replica.
        max_bytes_in_flight: Approximate bytes of one model's requests in flight for jobs in one router; at most twice
            that for all models.
        ask_for_replicas: Whether jobs count as demand that replicas follow.
        lease_s: Silence after which a router loses its items, seconds.
        timeout_s: Default deadline of a job, seconds.
        max_timeout_s: Longest deadline, seconds.
        keep_s: How long a job is kept after its end, seconds.
        max_items: Most items of one job.
        max_jobs: Most active jobs of one API key.
        max_bytes: Size of the store above which it accepts no more; above 5/4 of it no items run.
        max_result: Most bytes of one answer to keep.
        max_file: Most bytes of an uploaded file.
        max_files: Most files of one API key.
    """

    path: Path | None = None
    redis: RedisSettings | None = None
    batches: int = 4
    max_bytes_in_flight: int = 64 * 2**20
    ask_for_replicas: bool = False
    lease_s: float = 15.0
    timeout_s: float = 24 * 3600.0
    max_timeout_s: float = 7 * 24 * 3600.0
    keep_s: float = 7 * 24 * 3600.0
    max_items: int = 50_000
    max_jobs: int = 1000
    max_bytes: int = 16 * 2**30
    max_result: int = 8 * 2**20
    max_file: int = 32 * 2**20
    max_files: int = 1000
    callbacks: CallbackSettings = field(default_factory=CallbackSettings)
