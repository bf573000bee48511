"""Settings of the router, in sections, and of the three classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ByteSize, Field, ValidationInfo, field_validator, model_validator

from serve_app.config.priorities import PriorityNumbers, priority_levels
from serve_app.config.problems import Location, validation_error
from serve_app.config.tls import TlsConfig
from serve_app.config.values import Cpus, Milliseconds, Positive, Seconds, Section, Share, Size
from serve_app.config.wing_sections import default, section
from serve_app.domain.priorities import PriorityLevels
from serve_app.domain.priority import Priority
from serve_app.scheduling.scaling import routers_on
from serve_app.scheduling.settings import ClassSettings

if TYPE_CHECKING:
    from serve_app.cache.config import CacheConfig
    from serve_app.jobs.config import JobsConfig
else:
    CacheConfig = section("cache", "CacheConfig")
    JobsConfig = section("jobs", "JobsConfig")

_AUTO_ROUTERS = 8


class HttpConfig(Section):
    """HTTP on the routers' own port, and its connections."""

    port: int | None = Field(default=None, ge=1, le=65535)
    """HTTP port that the routers open directly, bypassing Ray Serve's proxy. All routers of a node share it."""

    connections: Positive = 8192
    """Connections to this port at once, in each router process.

    Beyond the limit, idle connections are closed to admit new ones: first those that never sent a complete request.
    """

    connections_per_client: Positive | None = None
    """Connections to this port at once from one address. Not behind a proxy: it is one address for all clients."""


class GrpcConfig(Section):
    """gRPC: the routers' own port with its connections, and what holds on Serve's port as well."""

    port: int | None = Field(default=None, ge=1, le=65535)
    """gRPC port that the routers open directly, bypassing Ray Serve's proxy. All routers of a node share it."""

    connections: Positive = 2048
    """Connections to this port at once, in each router process; more are closed at once."""

    keepalive_s: Seconds = 60.0
    """A connection to this port on which nothing has come for this long is probed."""

    client_ping_s: Seconds = 10.0
    """How often a client of this port may probe; one that does it more often is disconnected."""

    streams: Positive = 1024
    """Streams (`ModelStreamInfer`, `Watch`, reflection) open at once in each router process; more are refused. Where
    there are API keys, those without one have room of their own."""

    stream_idle_s: Seconds = 3600.0
    """A stream of requests on which nothing comes and nothing is in flight for this long ends."""

    outputs: Literal["raw", "as_inputs"] = "raw"
    """How answers carry tensors where the request does not choose by `binary_data_output`.

    `raw`: in `raw_output_contents`, as Triton does. `as_inputs`: typed where the inputs were, if all outputs can be.
    """


class LimitsConfig(Section):
    """How much one request, and all requests of one router process together, may be."""

    max_body: Size = ByteSize(32 * 1024**2)
    """Largest request body, and largest gRPC message, that is read; a larger one is refused."""

    max_request_rows: Positive = 2048
    """Most rows in one request; a request with more is refused. Where rows are single values, 64 times as many."""

    max_ongoing_requests: Positive | None = None
    """Requests that are let into one router process at once. Queues, work in flight and headroom must fit.

    By default as many as they take, and at least 4096.
    """

    headroom: int = Field(default=256, ge=0)
    """Requests kept free beyond full queues and full work in flight, for answers that need no queue and for `high`."""

    max_bytes: Size = ByteSize(1024**3)
    """Most bytes of requests that one router process holds at once, queued and running."""

    high_headroom: Share = 0.1
    """Part of `max_bytes` that only the class `high` may use."""

    named_members: Positive = 100
    """Members of pools that have series of their own in `/metrics`, those that are asked first. The others are one
    series, of the model `/other`. Models outside pools always have their own."""
    stream_parts: Positive = 64
    """Most parts of a streamed answer that wait for the client to read them; the model then waits with the next one."""

    stream_bytes: Size = ByteSize(8 * 1024**2)
    """The same in bytes. A larger part waits alone."""

    slow_reader_s: Annotated[float, Field(gt=0, le=30)] = 5.0
    """For how long a model waits for a client that does not read; then the answer ends with the error `slow_reader`."""

    all_streams_bytes: Size = ByteSize(256 * 1024**2)
    """Most bytes that wait in the streamed answers of one router process; beyond, the answer with the most of them ends
    with the error `slow_reader`."""


class AccessConfig(Section):
    """Who may ask."""

    keys_file: str | None = Field(default=None, min_length=1)
    """File of API keys, as `serve-app key new` writes it. Without one, every client may use every model.

    Relative paths start from SERVE_APP_HOME. A changed file is loaded after two consecutive reads return the same
    content. An invalid file is ignored and the previous keys stay in use.
    """

    keys_check_s: Seconds = 2.0
    """Within this time a change of that file counts: the routers look at it twice as often."""

    open_without_key: Annotated[tuple[Literal["docs", "metrics", "status"], ...], Field(strict=False)] = ("docs",)
    """What takes no key where there are keys: `docs` (/docs, /openapi.json, gRPC reflection), `metrics`, `status`.

    Health checks never take one. Metrics and status, where they are not open, take one with `admin: true`.
    """

    open_administration: bool = False
    """Whether every client may change how much is logged, if there are no API keys."""


class FaultsConfig(Section):
    """What a router does about replicas that do not answer."""

    bundle_timeout_s: Seconds = 60.0
    """A replica that has not answered a bundle for this long gets no more work until it answers."""

    replica_silence_s: Seconds = 2.0
    """A replica on this node that has requests in flight and is unresponsive for so long gets no work until it answers.

    What it has is tried at another replica at once.
    """

    replica_kill_s: Seconds | None = 10.0
    """A replica on this node that has sent no data for this long is killed, so that Ray Serve replaces it at once.

    `null`: it is left to Ray Serve's health checks, which take `health.check_period_s` and three `check_timeout_s`.
    """

    @model_validator(mode="after")
    def _check(self) -> FaultsConfig:
        if self.replica_kill_s is not None and self.replica_kill_s < self.replica_silence_s:
            raise validation_error([(("replica_kill_s",), "must be at least replica_silence_s, or null")])
        return self


class TransportConfig(Section):
    """How large bodies are decoded, and how tensors travel to the replicas."""

    offload_above: Size = ByteSize(256 * 1024)
    """Bodies larger than this are decoded in a thread, so that they do not hold up other requests."""

    decode_threads: Positive = 2
    """Threads of a router process that decode large bodies."""

    shared_memory: Annotated[ByteSize, Field(ge=0)] = ByteSize(256 * 1024**2)
    """Memory in which one router process keeps large tensors where the replicas on its node can read them.

    It is taken up as it is needed. Tensors that find no room are copied instead. 0 for none.
    """

    by_reference_above: Size = ByteSize(1024**2)
    """Bundles larger than this travel to other nodes through the object store, smaller ones inside the call."""


class RouterConfig(Section):
    """The router: takes every request, queues it and sends it on in bundles."""

    replicas: Literal["auto"] | Positive = "auto"
    """Router processes. Each has its own queues, so the order between requests of different routers is approximate.

    `auto`: one, and another whenever all of them are busy and cores are idle, up to half of the cores of a node and 8;
    one with pools.
    """

    cpus: Cpus = 0.25
    """CPUs that Ray reserves for each router process. It reserves only: nothing enforces it."""

    drain_timeout_s: Seconds = 20.0
    """How long what a router has accepted may take to be answered when it stops."""

    network_ms: Milliseconds = 2.0
    """Time allowed for everything around an execution when predicting whether a deadline can be met."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address of this machine that the routers' own ports, `http.port` and `grpc.port`, are opened on."""

    tls: TlsConfig | None = None
    """TLS on the routers' own ports, `http.port` and `grpc.port`; plain without it. Ray Serve's own ports have none."""

    http: HttpConfig = HttpConfig()
    """HTTP on the routers' own port."""

    grpc: GrpcConfig = GrpcConfig()
    """gRPC: the routers' own port, and what holds on Serve's as well."""

    limits: LimitsConfig = LimitsConfig()
    """How large requests may be, and how many there may be at once."""

    access: AccessConfig = AccessConfig()
    """API keys, and what is open without one."""

    faults: FaultsConfig = FaultsConfig()
    """When a replica that does not answer is given up, and what is tried elsewhere."""

    transport: TransportConfig = TransportConfig()
    """Decoding of large bodies, and the memory and ways that tensors take to the replicas."""

    cache: CacheConfig = default("cache", "CacheConfig")
    """What the response caches of all models share. Which models have one is said there."""

    jobs: JobsConfig | None = None
    """Jobs, requests that are answered later; `{}` is enough. Without it there are none."""

    @model_validator(mode="after")
    def _check(self) -> RouterConfig:
        if self.grpc.port is not None and self.grpc.port == self.http.port:
            raise validation_error([(("grpc", "port"), "must be another port than router.http.port")])
        if self.tls is not None and self.http.port is None and self.grpc.port is None:
            fault = "needs router.http.port or router.grpc.port: it is for the routers' own ports"
            raise validation_error([(("tls",), fault)])
        if self.tls is not None and self.tls.minimum_version == "1.3" and self.grpc.port is not None:
            fault = "must be '1.2' with router.grpc.port: gRPC's library speaks 1.2 and 1.3, whatever is said here"
            raise validation_error([(("tls", "minimum_version"), fault)])
        return self

    @property
    def fewest(self) -> int:
        """Initial router processes."""
        return 1 if self.replicas == "auto" else self.replicas

    def most(self, cores: int | None = None) -> int:
        """Most router processes, on nodes with this many cores; ``None``: depends on the nodes."""
        if self.replicas != "auto":
            return self.replicas
        return _AUTO_ROUTERS if cores is None else routers_on(cores, _AUTO_ROUTERS)

    @property
    def own_ports(self) -> tuple[tuple[str, int], ...]:
        """The routers' own open ports: the setting's place below ``args``, and the number."""
        ports = {"router.http.port": self.http.port, "router.grpc.port": self.grpc.port}
        return tuple((setting, port) for setting, port in ports.items() if port is not None)


class ClassConfig(Section):
    """Limits of one class in each router process. What is not given keeps the default of that class."""

    queue: Positive = 1024
    """Most requests queued at once, over all models."""

    queue_bytes: Size = ByteSize(512 * 1024**2)
    """Most bytes queued at once, over all models."""

    timeout_ms: Milliseconds = 5000.0
    """Deadline of a request that names none."""

    overflow: Literal["reject", "demote"] = "reject"
    """What happens when the queue is full: refuse the request, or try the next lower class."""

    min_share: Share = 0.05
    """Part of each model's predicted server time that this class gets while it has work queued."""

    protect: float = Field(default=0.0, ge=0.0, le=0.999)
    """Part of the requests that is to be in time whatever that costs the other classes; of class `high` only.

    0: batches of other classes block one in twenty too long, which answers more requests in all.
    """

    def settings(self) -> ClassSettings:
        """The values for the scheduler."""
        return ClassSettings(
            queue_entries=self.queue,
            queue_bytes=int(self.queue_bytes),
            timeout_s=self.timeout_ms / 1000,
            overflow=self.overflow,
            min_share=self.min_share,
            protect=self.protect,
        )


class ClassesConfig(Section):
    """The three classes, the most urgent first."""

    high: ClassConfig = ClassConfig(queue=256, queue_bytes=ByteSize(256 * 1024**2), timeout_ms=1000.0, min_share=0.0)
    """Served before everything else; the shares of the lower classes are the only exception."""

    normal: ClassConfig = ClassConfig()
    """The class of a request that names none."""

    low: ClassConfig = ClassConfig(queue=1536, timeout_ms=30000.0)
    """Work that can wait."""

    priorities: PriorityNumbers = Field(default_factory=dict)
    """Classes by the number that V2, gRPC and `X-Priority` name them by, e.g. `{3: normal, 4: low}`.

    What is not named here stays: 1 is `high`, 2 is `normal`, 3 and all beyond are `low`; 0 is the default, `normal`. A
    larger number may not be more urgent.
    """

    @field_validator("high", "normal", "low", mode="before")
    @classmethod
    def _keep_defaults(cls, given: Any, info: ValidationInfo) -> Any:
        if not isinstance(given, Mapping) or info.field_name is None:
            return given
        default: ClassConfig = cls.model_fields[info.field_name].default
        return {name: getattr(default, name) for name in ClassConfig.model_fields} | dict(given)

    @model_validator(mode="after")
    def _check(self) -> ClassesConfig:
        faults: list[tuple[Location, str]] = []
        if self.low.overflow == "demote":
            faults.append((("low", "overflow"), "must be 'reject': there is no class below low"))
        for name, limits in (("normal", self.normal), ("low", self.low)):
            if limits.protect:
                faults.append(((name, "protect"), "must be 0: only class high can be protected"))
        shares = {priority: limits.min_share for priority, limits in self.by_priority().items()}
        if sum(shares.values()) >= 1:
            listed = " + ".join(f"{share:g} {priority.label}" for priority, share in shares.items())
            faults.append((("low", "min_share"), f"the classes' shares must sum to less than 1, got {listed}"))
        if faults:
            raise validation_error(faults)
        return self

    def levels(self) -> PriorityLevels:
        """The classes of priority numbers."""
        return priority_levels(self.priorities)

    def by_priority(self) -> dict[Priority, ClassConfig]:
        """The classes by priority, the most urgent first."""
        return {Priority.HIGH: self.high, Priority.NORMAL: self.normal, Priority.LOW: self.low}
