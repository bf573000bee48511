"""Settings of jobs: storage, limits and callbacks."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated

from pydantic import ByteSize, Field, field_validator, model_validator

from serve_app.config.problems import Location, short_repr, validation_error
from serve_app.config.values import Positive, Seconds, Section, Size
from serve_app.jobs.redis_config import RedisConfig

_HOST = re.compile(r"(?=.{1,253}(:|$))[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[1-9][0-9]{0,4})?")
LongSeconds = Annotated[float, Field(gt=0, le=366 * 86_400, allow_inf_nan=False)]


class CallbacksConfig(Section):
    """Callbacks: requests that tell a client's server that its job has ended."""

    hosts: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Hosts that may be told, none by default: `name` is port 443, and 80 for http; `name:port` another one.

    No redirects are followed.
    """

    networks: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Networks such as `10.0.0.0/8` that these hosts may have addresses of. Others have to be public."""

    secret_variable: str | None = Field(default=None, min_length=1)
    """Environment variable of the routers with the secret that callbacks are signed with (HMAC-SHA256)."""

    secret_file: str | None = Field(default=None, min_length=1)
    """File with that secret, readable by the routers. Relative paths start from SERVE_APP_HOME."""

    timeout_s: Seconds = 10.0
    """How long one attempt may take."""

    attempts: Positive = 8
    """How often it is tried."""

    retry_s: Seconds = 5.0
    """Pause after the first attempt; it grows fourfold with every other one, up to an hour."""

    @field_validator("hosts")
    @classmethod
    def _check_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise ValueError(f"must be names of hosts in lower case, or name:port, got {short_repr(host)}")
        return hosts

    @field_validator("networks")
    @classmethod
    def _check_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            try:
                ip_network(network)
            except ValueError:
                raise ValueError(f"must be networks such as 10.0.0.0/8, got {short_repr(network)}") from None
        return networks

    @model_validator(mode="after")
    def _check(self) -> CallbacksConfig:
        faults: list[tuple[Location, str]] = []
        if self.secret_variable is not None and self.secret_file is not None:
            faults.append((("secret_file",), "give this or secret_variable, not both"))
        if faults:
            raise validation_error(faults)
        return self

    def parsed_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """The networks."""
        return tuple(ip_network(network) for network in self.networks)


class JobsConfig(Section):
    """Jobs: requests that are kept, run as class `low` beside live traffic, and answered later (`/v1/jobs`)."""

    path: str = Field(default="jobs.sqlite", min_length=1)
    """File that jobs are kept in, on a local disk; the routers of one machine share it.

    Relative paths start from SERVE_APP_HOME. It counts for nothing with `redis`.
    """

    redis: RedisConfig | None = None
    """A Redis server that keeps jobs instead, for routers on several machines. It must write to disk (`appendonly`)."""

    batches: Positive = 4
    """Items in flight for jobs in each router, as full batches of a model, for each replica that it may have."""

    max_bytes_in_flight: Size = ByteSize(64 * 1024**2)
    """Bytes of items in flight for jobs in each router, of one model; of all models, about twice that at most."""

    ask_for_replicas: bool = False
    """Whether models get more replicas for jobs, as for other requests.

    Otherwise jobs run on the replicas that there are, and start one if there is none.
    """

    lease_s: Annotated[float, Field(ge=1, le=3600)] = 15.0
    """A router that the store has not heard of for this long has stopped: others run its items."""

    timeout_s: LongSeconds = 86_400.0
    """How long a job may take that does not say so itself; what is not done by then is given up."""

    max_timeout_s: LongSeconds = 7 * 86_400.0
    """And how long one may say."""

    keep_s: LongSeconds = 7 * 86_400.0
    """How long a job is kept after its end, and an uploaded file from its arrival."""

    max_items: Positive = 50_000
    """Items of one job."""

    max_jobs: Positive = 1000
    """Jobs of one API key, or of all clients without keys, that have not ended."""

    max_bytes: Size = ByteSize(16 * 1024**3)
    """Bytes of the store above which it takes no more jobs and files; above 5/4 of that no items are run."""

    max_result: Size = ByteSize(8 * 1024**2)
    """Bytes of one answer; an item with a larger one fails."""

    max_file: Size = ByteSize(32 * 1024**2)
    """Bytes of one uploaded file; `router.limits.max_body` counts, too."""

    max_files: Positive = 1000
    """Uploaded files of one API key, or of all clients without keys."""

    callbacks: CallbacksConfig = CallbacksConfig()
    """Who may be told that a job has ended."""

    @model_validator(mode="after")
    def _check(self) -> JobsConfig:
        if self.max_timeout_s < self.timeout_s:
            raise validation_error([(("max_timeout_s",), "must be at least timeout_s")])
        return self
