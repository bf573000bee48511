"""What is simulated, as frozen values. `serve_app_simulator.scenarios` reads them from a file; nothing here does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import exp, inf
from typing import Literal

from serve_app.domain.priority import Priority
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.settings import ClassSettings, ModelScheduling
from serve_app_simulator.scalers import DemandScaler, QueueScaler, Scaler

Curve = Callable[[int, int], float]
"""``curve(rows, bucket)``: the true mean execution time of a batch, seconds, before noise."""


@dataclass(frozen=True, slots=True)
class Affine:
    """``alpha_s + beta_s * rows``, whatever the bucket."""

    alpha_s: float
    beta_s: float

    def __call__(self, rows: int, bucket: int = 0) -> float:  # noqa: ARG002 - a `Curve`
        """Seconds."""
        return self.alpha_s + self.beta_s * rows


@dataclass(frozen=True, slots=True)
class SimulatedAutoscaling:
    """How many replicas a model has."""

    min_replicas: int
    max_replicas: int
    target_rows: float | None = None
    """Rows queued and running per replica; ``None``: replicas follow the demand."""
    upscale_delay_s: float = 2.0
    """For ``target_rows``."""
    downscale_delay_s: float | None = None
    """60 s for ``target_rows``, otherwise learned."""
    interval_s: float = 1.0
    """How often it is looked at."""
    make_scaler: Callable[[], Scaler] | None = None
    """Makes what decides instead."""

    def scaler(self) -> Scaler:
        """Make what decides for a model of one run."""
        if self.make_scaler is not None:
            return self.make_scaler()
        if self.target_rows is None:
            return DemandScaler(self.min_replicas, self.max_replicas, self.downscale_delay_s)
        fewer_s = 60.0 if self.downscale_delay_s is None else self.downscale_delay_s
        return QueueScaler(self.min_replicas, self.max_replicas, self.target_rows, self.upscale_delay_s, fewer_s)


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """One model and the replicas it starts with."""

    scheduling: ModelScheduling
    curve: Curve
    replicas: int = 1
    variants: Mapping[str, Curve] = field(default_factory=dict)
    """True cost of each variant, by name."""
    device: str | None = None
    """Replicas that name the same device share it: what runs there at the same time slows each other down."""
    startup_s: float = 0.0
    """From the request for a replica to its first execution."""
    needs: Mapping[str, float] = field(default_factory=dict)
    """Resources of one replica, by name, of the scenario's room."""
    autoscaling: SimulatedAutoscaling | None = None
    known: bool = True
    """Whether schedulers get the curve as their prior (a profile), or must learn it."""
    pads: bool = True
    """Whether a batch of several cost buckets is one run, padded to the largest. Otherwise, since padding would change
    answers, each bucket has a run of its own."""


@dataclass(frozen=True, slots=True)
class Device:
    """Something that replicas of several models compute on."""

    name: str
    concurrency: int = 1
    """Executions at once at full speed. With more running, each runs ``concurrency / running`` as fast."""
    interference: float = 0.0
    """Part of the speed that is lost in addition whenever more than one execution runs at once, 0 to 1."""


@dataclass(frozen=True, slots=True)
class SimulatedPool:
    """Models that share few processes. Its members are among the scenario's models, with no replicas of their own."""

    scheduling: Pool
    """Its members by name, and how routers deal with it. Each holds its model's ``resident_bytes``."""
    hosts: int = 1
    """Processes. At first, nothing is loaded."""
    load_s: float = 0.015
    """Mean time of a load, seconds."""
    load_spread: float = 0.0
    """Sigma of its lognormal distribution; 0: always the mean."""
    slowdown: float = 1.0
    """Executions at a host take this many times as long while it loads."""
    cores: int = 1
    """Executions at once at full speed at a host, if a system runs several."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How true execution times scatter around the curve."""

    kind: Literal["none", "uniform", "lognormal"] = "none"
    spread: float = 0.0
    """``uniform``: half width as a part of the mean (0.2 is +-20%). ``lognormal``: sigma; the mean is kept."""
    stall_every_s: float = 0.0
    """Mean time between stalls of a replica (exponential), seconds; 0: none."""
    stall_s: float = 0.0
    """How long a stall holds up the execution it falls in; one that would begin during a stall begins after it."""
    drift: float = 1.0
    """Executions that begin in an episode take this many times as long."""
    drift_every_s: float = 0.0
    """Mean time from the end of an episode to the next at a replica (exponential), seconds; 0: there are none."""
    drift_s: float = 0.0
    """Mean length of an episode (exponential), seconds."""
    router_stall_every_s: float = 0.0
    """Mean time from the end of a stall of a router's processor to the next (exponential), seconds; 0: there are none.
    The process has no core meanwhile, where several share few."""
    router_stall_s: float = 0.0
    """How long such a stall holds up what the processor does."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Something goes wrong with a replica.

    ``die``: what runs and waits there fails at once. ``hang``: its process stands still: nothing runs on, and messages
    lie unread; it goes on with all of it after ``lasts_s``, unless the system has it killed before: then it dies.
    ``fail``: for ``lasts_s`` a part of its executions raise at their end, so that nobody is answered by them.
    """

    model: str
    replica: int
    """Its place in the model's list of replicas at that time, from 0; nothing happens where there is none."""
    at_s: float
    down_s: float = 0.0
    """From its death until its successor is listed."""
    noticed_s: float = 1.0
    """From its death until it leaves the list."""
    kind: Literal["die", "hang", "fail"] = "die"
    lasts_s: float = inf
    """``hang``, ``fail``: until it is over."""
    share: float = 1.0
    """``fail``: part of the executions, over 0 to 1."""


@dataclass(frozen=True, slots=True)
class Overheads:
    """What a request pays besides executions, seconds.

    A system whose batches are composed in the replica's own process pays no way from a router to a replica and back.
    """

    request_s: float = 0.0
    """From the client to the system."""
    send_s: float = 0.0
    """From a router to a replica."""
    answer_s: float = 0.0
    """A batch's way back to the client by its router. The part to the router is as long as `send_s`."""
    between_s: float = 0.0
    """From the end of an execution until its replica can begin the next: results are taken apart, the next batch woken.
    No execution time tells of it."""
    scatter: float = 0.0
    """All of these are medians of lognormal distributions with this sigma, drawn for each message. 0: constants."""
    router_s: float = 0.0
    """Time of a router's processor for each request that it begins: decoding and dispatch, and all that the times below
    leave out."""
    router_read_s: float = 0.0
    """For each request that arrives: reading its head."""
    router_refusal_s: float = 0.0
    """For each request that it refuses before it is begun, since it would be late."""
    router_answer_s: float = 0.0
    """For each answer on its way back: encoding and sending. It goes before requests that have not been begun."""

    timer_s: float = 0.0
    """By how much a replica's timer is late."""

    @property
    def router_takes_time(self) -> bool:
        """Whether anything takes time of a router's processor."""
        return max(self.router_s, self.router_read_s, self.router_refusal_s, self.router_answer_s) > 0.0

    @property
    def direct_s(self) -> float:
        """The way back to the client where there is no router."""
        return max(0.0, self.answer_s - self.send_s)

    @property
    def mean_factor(self) -> float:
        """A mean as a multiple of its median."""
        return exp(self.scatter * self.scatter / 2.0)


@dataclass(frozen=True, slots=True)
class Stream:
    """A part of the workload; several may overlap. Rates are requests per second.

    ``kind`` chooses the process and which of the further fields count; see `serve_app_simulator.workloads`.
    """

    kind: Literal["poisson", "gamma", "mmpp", "periodic", "flash_crowd", "video", "long_tail", "trace"]
    model: str = ""
    priority: Priority = Priority.NORMAL
    rate: float = 0.0
    timeout_s: float = 1.0
    rows: int = 1
    bucket: int = 0
    start_s: float = 0.0
    end_s: float | None = None
    cv: float = 1.0
    """``gamma``: coefficient of variation of the gaps."""
    surge: float = 3.0
    surge_at_s: float = 0.0
    surge_s: float = 60.0
    """``flash_crowd``: Poisson at ``rate``, and at ``surge * rate`` for ``surge_s`` from ``surge_at_s``."""
    quiet_s: float = 60.0
    """``mmpp``: the rate is ``surge`` times as high for ``surge_s`` on average as for the ``quiet_s`` between; both are
    exponential, and ``rate`` is the mean of all."""
    streams: int = 0
    fps: float = 30.0
    """``video``: that many streams at ``fps`` with random phases; a stream's newest frame replaces its waiting one."""
    exponent: float = 1.0
    """``long_tail``: ``rate`` is split over all models of the scenario by Zipf's law with this exponent.

    Where ``model`` names a pool, every kind of stream is so split over its members, and each has its own process.
    """
    path: str = ""
    """``trace``: a CSV file; see `serve_app_simulator.trace`."""
    share: Mapping[Priority, float] = field(default_factory=dict)
    """Parts of the classes in this stream, in sum 1; empty: all in ``priority``."""
    timeouts_s: Mapping[Priority, float] = field(default_factory=dict)
    """Deadline per class where ``share`` is given and they differ; otherwise ``timeout_s``."""
    jitter: float = 0.0
    """``video``: each frame is late by a random part of this part of a frame's gap, 0 to 1."""
    tenant: str = ""
    """Who sends it, for results; several streams may have one."""


WEIGHTS = {Priority.HIGH: 100.0, Priority.NORMAL: 10.0, Priority.LOW: 1.0}


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything but the system under test and the seed."""

    name: str
    models: tuple[SimulatedModel, ...]
    workload: tuple[Stream, ...]
    duration_s: float
    classes: Mapping[Priority, ClassSettings]
    devices: tuple[Device, ...] = ()
    pools: tuple[SimulatedPool, ...] = ()
    room: Mapping[str, float] = field(default_factory=dict)
    """Resources for all replicas, by name; autoscaling shares them. One that is not named has no limit."""
    routers: int = 1
    overheads: Overheads = Overheads()
    noise: Noise = Noise()
    failures: tuple[Failure, ...] = ()
    warm_up_s: float = 0.0
    """Requests that arrive before this are served and not counted."""
    weights: Mapping[Priority, float] = field(default_factory=lambda: dict(WEIGHTS))
    """Worth of one request answered in time, per class."""
