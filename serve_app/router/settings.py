"""Settings of a router. `serve_app.composition` makes them from a configuration, in the router's process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from serve_app.access.key_file_watcher import KeyFileWatcher
from serve_app.api.grpc_listener import GrpcLimits
from serve_app.api.http_app import HttpSettings
from serve_app.domain.priority import Priority
from serve_app.domain.service import ModelInfo
from serve_app.domain.settings import LogSettings, TlsFiles
from serve_app.http.http1 import Limits
from serve_app.payloads import Compute, Execution, Joinable
from serve_app.processors.processor import Processor
from serve_app.router.answer_cache import MakeCaches, ModelCacheSettings
from serve_app.router.part import MakePart
from serve_app.router.versions import MakeVersions
from serve_app.scheduling.placement.devices import Device
from serve_app.scheduling.settings import ClassSettings, ModelScheduling, ProcessLimits
from serve_app.telemetry.metrics import NAMED_MEMBERS


@dataclass(frozen=True, slots=True)
class HttpPort:
    """A port for HTTP.

    Attributes:
        host: Address to listen at.
        port: 0 for a free one.
        limits: Of its connections.
        setting: Its place in the configuration, for error messages, e.g. ``args.router.http.port``.
    """

    host: str
    port: int
    limits: Limits = field(default_factory=Limits)
    setting: str = "http_port"


@dataclass(frozen=True, slots=True)
class GrpcPort:
    """A port for gRPC; attributes as of `HttpPort`."""

    host: str
    port: int
    limits: GrpcLimits = field(default_factory=GrpcLimits)
    setting: str = "grpc_port"


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """Limits of gRPC calls, as of `serve_app.api.grpc_app.GrpcApp`."""

    open_administration: bool = False
    typed_answers: bool = False
    streams: int = 1024
    stream_idle_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class LogFile:
    """The file of the request log.

    Attributes:
        max_bytes: Size at which the next file begins.
        backups: Number of earlier files kept.
    """

    path: Path
    max_bytes: int
    backups: int


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Bounds of waiting parts of answers.

    Attributes:
        parts: Most parts of one answer.
        nbytes: Most bytes of one answer.
        all_bytes: Most bytes of all answers of the router.
        reader_s: Longest wait of a model for a reader with a full queue.
    """

    parts: int = 64
    nbytes: int = 8 * 1024**2
    all_bytes: int = 256 * 1024**2
    reader_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedModel:
    """A model as a router serves it.

    Attributes:
        info: Its description for clients.
        scheduling: Under the same name.
        processor: Prices its requests if it takes media.
        pool: The pool that it is a member of: it has no replicas then.
        prior: Batch costs, until a replica has measured them.
        on_demand: Whether it may have no replica while idle.
        cache: Of answers; ``None`` for none.
        traffic: Of one of several versions, the split of requests over these, in the wing's form; the same for all of
            them.
        base: Name of the revision that it was deployed with; empty if unknown. Bundles name a revision to replicas that
            were deployed with the same.
    """

    info: ModelInfo
    scheduling: ModelScheduling
    processor: Processor | None = None
    pool: str | None = None
    prior: Sequence[Execution] = ()
    on_demand: bool = False
    cache: ModelCacheSettings | None = None
    traffic: object = None
    base: str = ""

    @property
    def name(self) -> str:
        """Its name, or the key of one of several versions."""
        return self.info.key or self.info.name


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """What a router serves, and within which limits.

    Attributes:
        models: What it serves at first; more can come, and all of them go.
        classes: Limits of every class.
        limits: Limits of the process.
        parts: Make the parts of wings, the innermost first.
        devices: Make what models share in the scheduler; each has a part that has its processes.
        named_members: How many members of pools have series of their own in the metrics.
        bundle_timeout_s: A replica that has not answered for so long is not asked any more, seconds.
        replica_silence_s: After so long without a response what a linked replica has is tried elsewhere, seconds.
        replica_kill_s: After so long without a response such a replica is killed, seconds; ``None``: never.
        shared_memory: Bytes of memory that large bodies share with replicas on this node; 0: none.
        streams: How much of answers in parts may wait for their readers.
        make_caches: Makes the caches of models that have one; ``None``: none has.
        make_versions: Makes the tables of models that have several versions; ``None``: none has.
        http: Limits and manners of HTTP on every port.
        grpc: The same of gRPC.
        http_port: Its own port for HTTP; ``None`` for none.
        grpc_port: Its own port for gRPC; ``None`` for none.
        tls: Certificate and key of its own ports; ``None``: without TLS.
        keys: API keys; ``None``: everybody is let in. The router starts and ends it.
        log: Which requests get a line in the log.
        log_file: Where these go; ``None``: there is no log.
    """

    classes: Mapping[Priority, ClassSettings]
    limits: ProcessLimits
    models: Sequence[RoutedModel] = ()
    parts: Sequence[MakePart] = ()
    devices: Sequence[Callable[[], Device]] = ()
    named_members: int = NAMED_MEMBERS
    bundle_timeout_s: float = 60.0
    replica_silence_s: float = 2.0
    replica_kill_s: float | None = 10.0
    shared_memory: int = 0
    streams: StreamSettings = StreamSettings()
    make_caches: MakeCaches | None = None
    make_versions: MakeVersions | None = None
    http: HttpSettings = field(default_factory=HttpSettings)
    grpc: GrpcSettings = field(default_factory=GrpcSettings)
    http_port: HttpPort | None = None
    grpc_port: GrpcPort | None = None
    tls: TlsFiles | None = None
    keys: KeyFileWatcher | None = None
    log: LogSettings = field(default_factory=LogSettings)
    log_file: LogFile | None = None


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """The report of a replica that can take work.

    Attributes:
        executions: Measured in its warm-up.
        joinable: Which requests may share a run, by variant.
        not_warmed: Why it has not warmed up; ``None`` if it has.
        identities: Digests of its builds by variant, the keys of cached answers.
        address: Of its link server, for a replica on this node; ``None``: bundles go by the caller's way.
        base: Name of the revision that it was deployed with, as of `RoutedModel`.
        revision: The revision that ``executions``, ``joinable``, ``not_warmed`` and ``compute`` are of.
        compute: Its threads and instances; ``None``: not reported.
    """

    executions: Sequence[Execution] = ()
    joinable: Mapping[str, Joinable] = field(default_factory=dict)
    not_warmed: str | None = None
    identities: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None
    base: str = ""
    revision: str = ""
    compute: Compute | None = None
