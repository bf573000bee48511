"""What is set of jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from serve_app.domain.settings import RedisSettings


@dataclass(frozen=True, slots=True)
class CallbackSettings:
    """Where the ends of jobs may be told, and how.

    Attributes:
        hosts: Names that a callback's URL may have, in lower case, each with a port behind a colon; or without, for
            ``https`` at port 443 and ``http`` at port 80.
        networks: Addresses that they may lead to although these are not of the public Internet.
        secret: What callbacks are signed with; empty: they are not.
        timeout_s: How long one attempt may take, seconds.
        attempts: How often one is tried.
        retry_s: Pause after the first attempt, seconds; it grows fourfold with every other one.
    """

    hosts: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    secret: bytes = field(default=b"", repr=False)
    timeout_s: float = 10.0
    attempts: int = 8
    retry_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """How jobs are kept and run.

    Attributes:
        path: File of the store, where ``redis`` is ``None``.
        redis: Server of the store.
        batches: Full batches of a model's rows that may be in flight for jobs in one router, for each of its most
            replicas.
        max_bytes_in_flight: Bytes of requests of one model that are in flight for jobs in one router, about; of
            all models, twice that at most.
        lease_s: A router that was not heard of for so long has lost its items.
        timeout_s: How long a job may take that does not say, seconds.
        max_timeout_s: And at most.
        keep_s: How long it is kept after its end, seconds.
        max_items: Items of one job.
        max_jobs: Jobs of one API key that have not ended.
        max_bytes: Bytes of the store above which it takes no more; above 5/4 of that no items are run.
        max_result: Bytes of one answer that are kept.
        max_file: Bytes of an uploaded file.
        max_files: Files of one API key.
        callbacks: Who may be told of ends.
    """

    path: Path | None = None
    redis: RedisSettings | None = None
    batches: int = 4
    max_bytes_in_flight: int = 64 * 2**20
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
