"""What a scenario file holds. Times ending in ``_ms`` are milliseconds, in ``_s`` seconds; unknown keys are faults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, field_validator, model_validator

from serve_app.config.problems import Location, nearest, short_repr, validation_error
from serve_app.config.router import ClassesConfig
from serve_app.config.values import Delay, Positive, Seconds, Section, Size
from serve_app.domain.priority import Priority
from serve_app_simulator.scenario import WEIGHTS, Failure, Noise, Overheads
from serve_app_simulator.scenarios.models import DeviceConfig, ResourcesConfig, SimulatedModelConfig
from serve_app_simulator.scenarios.pools import SimulatedPoolConfig, pool_faults
from serve_app_simulator.scenarios.systems import OURS, AnySystem, system_config
from serve_app_simulator.scenarios.workload import AnyStream, Factor, Rate

Problem: TypeAlias = tuple[Location, str]
Millis = Annotated[float, Field(ge=0, le=60_000, allow_inf_nan=False)]


class OverheadsConfig(Section):
    """What a request pays besides executions. Systems that compose batches in the server's process pay no `send_ms`."""

    request_ms: Millis = 0.0
    """From the client to the system."""

    send_ms: Millis = 0.0
    """From a router to a replica; as much of `answer_ms` is the way back to the router."""

    answer_ms: Millis = 0.0
    """A batch's way back to the client."""

    between_ms: Millis = 0.0
    """From the end of an execution until its replica can begin the next."""

    scatter: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 0.0
    """All of these are medians of lognormal distributions with this sigma; 0 makes them constants."""

    router_ms: Millis = 0.0
    """Time of a router's processor for each request that it begins: all of it that the times below leave out."""

    router_read_ms: Millis = 0.0
    """For each request that arrives: reading its head."""

    router_refusal_ms: Millis = 0.0
    """For each request that it refuses before it is begun, since it would be late."""

    router_answer_ms: Millis = 0.0
    """For each answer on its way back: encoding and sending."""

    timer_ms: Millis = 0.0
    """By how much a replica's timer is late, which ends the wait for more rows."""

    def simulated(self) -> Overheads:
        """The values for the simulator."""
        return Overheads(
            self.request_ms / 1000,
            self.send_ms / 1000,
            self.answer_ms / 1000,
            self.between_ms / 1000,
            self.scatter,
            self.router_ms / 1000,
            self.router_read_ms / 1000,
            self.router_refusal_ms / 1000,
            self.router_answer_ms / 1000,
            self.timer_ms / 1000,
        )


class NoiseConfig(Section):
    """How true execution times scatter around what the models cost."""

    kind: Literal["none", "uniform", "lognormal", "measured"] = "none"
    """`uniform`: within `spread` of the mean; `lognormal`: with `spread` as sigma, the mean kept.

    `measured`: lognormal with the widest scatter that the models' profiles hold.
    """

    spread: float = Field(default=0.0, ge=0, le=3, allow_inf_nan=False)
    """0.2 is +-20% for `uniform`."""

    stall_every_s: Delay = 0.0
    """Mean time between stalls of a replica; 0 for none."""

    stall_s: Delay = 0.0
    """How long a stall holds up the execution it falls in."""

    router_stall_every_s: Delay = 0.0
    """Mean time between stalls of a router's processor, while other processes have its core; 0 for none."""

    router_stall_s: Delay = 0.0
    """How long such a stall holds up the router."""

    drift: Factor = 1.0
    """Executions that begin in an episode take this many times as long."""

    drift_every_s: Delay = 0.0
    """Mean time between episodes of a replica; 0 for none."""

    drift_s: Delay = 0.0
    """Mean length of an episode."""

    @model_validator(mode="after")
    def _check(self) -> NoiseConfig:
        if self.spread > 0 and self.kind in {"none", "measured"}:
            raise validation_error([(("spread",), f"does nothing with kind: {self.kind}; name uniform or lognormal")])
        if self.kind == "uniform" and self.spread >= 1:
            raise validation_error([(("spread",), f"must be less than 1 with kind: uniform, got {self.spread:g}")])
        if (self.stall_every_s > 0) != (self.stall_s > 0):
            raise validation_error([(("stall_s",), "stall_every_s and stall_s go together: set both or neither")])
        if (self.router_stall_every_s > 0) != (self.router_stall_s > 0):
            message = "router_stall_every_s and router_stall_s go together: set both or neither"
            raise validation_error([(("router_stall_s",), message)])
        if (self.drift_every_s > 0) != (self.drift_s > 0):
            raise validation_error([(("drift_s",), "drift_every_s and drift_s go together: set both or neither")])
        return self

    def simulated(self) -> Noise:
        """The values for the simulator."""
        kind = "lognormal" if self.kind == "measured" else self.kind
        return Noise(
            kind,
            self.spread,
            self.stall_every_s,
            self.stall_s,
            self.drift,
            self.drift_every_s,
            self.drift_s,
            self.router_stall_every_s,
            self.router_stall_s,
        )


class FailureConfig(Section):
    """Something that goes wrong with a replica."""

    kind: Literal["die", "hang", "fail"] = "die"
    """`die`: what runs and waits there fails. `hang`: its process stands still, until it goes on or is killed.

    `fail`: a part of its executions raise.
    """

    model: str
    """Name of the model."""

    replica: int = Field(default=0, ge=0)
    """Which of its replicas, from 0."""

    at_s: Delay
    """When it happens."""

    down_s: Seconds | None = None
    """From its death until its successor is there; required with `die` and `hang`, since routers kill what hangs."""

    lasts_s: Seconds | None = None
    """How long it hangs or fails; by default for good."""

    share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    """Of `fail`: part of the executions."""

    @model_validator(mode="after")
    def _check(self) -> FailureConfig:
        dies = self.kind != "fail"
        if dies and self.down_s is None:
            raise validation_error([(("down_s",), f"required with kind: {self.kind}")])
        if not dies and self.down_s is not None:
            raise validation_error([(("down_s",), "does nothing with kind: fail; leave it out")])
        if self.kind == "die" and self.lasts_s is not None:
            raise validation_error([(("lasts_s",), "does nothing with kind: die; name hang or fail")])
        if dies and "share" in self.model_fields_set:
            raise validation_error([(("share",), f"does nothing with kind: {self.kind}; name fail")])
        return self

    def simulated(self) -> Failure:
        """The values for the simulator."""
        return Failure(
            self.model,
            self.replica,
            self.at_s,
            self.down_s or 0.0,
            kind=self.kind,
            lasts_s=inf if self.lasts_s is None else self.lasts_s,
            share=self.share,
        )


class WeightsConfig(Section):
    """Worth of one request answered in time."""

    high: Factor = WEIGHTS[Priority.HIGH]
    """Of class `high`."""

    normal: Factor = WEIGHTS[Priority.NORMAL]
    """Of class `normal`."""

    low: Factor = WEIGHTS[Priority.LOW]
    """Of class `low`."""

    def by_priority(self) -> dict[Priority, float]:
        """The weights by priority."""
        return {Priority.HIGH: self.high, Priority.NORMAL: self.normal, Priority.LOW: self.low}


class SweepConfig(Section):
    """One number of the whole scenario that takes several values, one after another. Exactly one key."""

    load: Annotated[tuple[Factor, ...], Field(strict=False)] = ()
    """All rates are scaled alike, so that the most loaded model has this load (without surges)."""

    streams: Annotated[tuple[Positive, ...], Field(strict=False)] = ()
    """Cameras of every `video` stream."""

    slo_scale: Annotated[tuple[Factor, ...], Field(strict=False)] = ()
    """Every deadline and every `slo_ms` is this many times what a batch with one request takes."""

    noise: Annotated[tuple[Annotated[float, Field(ge=0, le=3)], ...], Field(strict=False)] = ()
    """`noise.spread`."""

    memory: Annotated[tuple[Size, ...], Field(strict=False)] = ()
    """`memory` of every pool."""

    rate: Annotated[tuple[Rate, ...], Field(strict=False)] = ()
    """All rates are scaled alike, so that this many requests arrive per second in all (without surges)."""

    @model_validator(mode="after")
    def _check(self) -> SweepConfig:
        given = [name for name in SweepConfig.model_fields if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"needs values for exactly one of {', '.join(SweepConfig.model_fields)}")
        values = self.values
        if any(after <= before for before, after in pairwise(values)):
            raise validation_error([((self.key,), "values must rise")])
        return self

    @property
    def key(self) -> str:
        """What is swept."""
        return next(name for name in SweepConfig.model_fields if getattr(self, name))

    @property
    def values(self) -> tuple[float, ...]:
        """The values, rising."""
        return tuple(float(value) for value in getattr(self, self.key))


def _models_or_pools(schema: dict[str, Any]) -> None:
    schema["required"].remove("models")
    schema["anyOf"] = [{"required": ["models"]}, {"required": ["pools"]}]


class ScenarioFile(Section):
    """A scenario and the systems that are compared in it."""

    model_config = ConfigDict(json_schema_extra=_models_or_pools)

    name: str = Field(min_length=1)
    """Title of the report."""

    description: str = ""
    """What it shows, for the report."""

    duration_s: Seconds | None = None
    """How long requests arrive. Either this or `requests`."""

    requests: Positive | None = None
    """Mean number of requests that arrive; the duration follows from the rates."""

    warm_up_s: Delay = 0.0
    """Requests before this are served and not counted."""

    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)] = (1, 2, 3, 4, 5)
    """One run per seed; bands and intervals are over them."""

    routers: Annotated[int, Field(ge=1, le=1000)] = 1
    """Router processes, each with a scheduler of its own."""

    classes: ClassesConfig = ClassesConfig()
    """Queues and deadlines per class, as in the server's configuration."""

    models: Annotated[tuple[SimulatedModelConfig, ...], Field(strict=False)]
    """The models, but for those of pools."""

    pools: Annotated[tuple[SimulatedPoolConfig, ...], Field(strict=False)] = ()
    """Models that share few processes, which have memory for some of them at a time."""

    devices: Annotated[tuple[DeviceConfig, ...], Field(strict=False)] = ()
    """Devices that models share."""

    room: ResourcesConfig = ResourcesConfig()
    """Resources of all replicas together, which autoscaling shares; one that is not given has no limit."""

    overheads: OverheadsConfig = OverheadsConfig()
    """What requests pay besides executions."""

    noise: NoiseConfig = NoiseConfig()
    """How execution times scatter."""

    failures: Annotated[tuple[FailureConfig, ...], Field(strict=False)] = ()
    """What goes wrong with replicas."""

    weights: WeightsConfig = WeightsConfig()
    """Worth of the classes."""

    workload: Annotated[tuple[AnyStream, ...], Field(strict=False)]
    """What arrives; streams may overlap."""

    systems: Annotated[tuple[AnySystem, ...], Field(strict=False)] = (system_config(OURS),)
    """What is compared: serve-app by its name, or mappings with its options."""

    sweep: SweepConfig | None = None
    """A number that takes several values."""

    @model_validator(mode="before")
    @classmethod
    def _without_bound(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and "bound" in given:
            raise validation_error([(("bound",), "bounds are calculated in benchmarks/scheduling now; leave it out")])
        if isinstance(given, Mapping) and given.get("pools") and "models" not in given:
            return {**given, "models": ()}
        return given

    @field_validator("workload", "systems", "seeds")
    @classmethod
    def _check_not_empty(cls, given: tuple[Any, ...]) -> tuple[Any, ...]:
        if not given:  # not min_length: pydantic would not count items that have faults
            raise ValueError("needs at least one")
        return given

    @model_validator(mode="after")
    def _check(self) -> ScenarioFile:
        faults = [
            *([] if self.models or self.pools else [(("models",), "needs at least one")]),
            *_repeated("models", [model.name for model in self.models]),
            *pool_faults(self.pools, tuple(model.name for model in self.models), self.routers),
            *_repeated("devices", [device.name for device in self.devices]),
            *_repeated("systems", [system.title for system in self.systems], name=None),
            *_repeated("seeds", list(self.seeds), name=None),
            *self._time_faults(),
            *self._reference_faults(),
            *self._sweep_faults(),
        ]
        if faults:
            raise validation_error(faults)
        return self

    def _time_faults(self) -> Iterator[Problem]:
        if self.duration_s is None and self.requests is None:
            yield ("duration_s",), "required, or requests"
        if self.duration_s is not None and self.requests is not None:
            yield ("requests",), "cannot stand beside duration_s; leave one of them out"
        end_s = self.duration_s
        if end_s is None:
            return
        if self.warm_up_s >= end_s:
            yield ("warm_up_s",), f"must be less than duration_s {end_s:g}, got {self.warm_up_s:g}"
        for number, stream in enumerate(self.workload):
            if getattr(stream, "start_s", 0.0) >= end_s:
                yield ("workload", number, "start_s"), f"must be less than duration_s {end_s:g}"
            if getattr(stream, "surge_at_s", 0.0) >= end_s:
                yield ("workload", number, "surge_at_s"), f"must be less than duration_s {end_s:g}"
        for number, failure in enumerate(self.failures):
            if failure.at_s >= end_s:
                yield ("failures", number, "at_s"), f"must be less than duration_s {end_s:g}, got {failure.at_s:g}"

    def _reference_faults(self) -> Iterator[Problem]:
        models = {model.name: model for model in self.models}
        devices = [device.name for device in self.devices]
        for number, model in enumerate(self.models):
            if model.device is not None and model.device not in devices:
                yield ("models", number, "device"), _unknown("device", model.device, devices)
        pools = [pool.name for pool in self.pools]
        members = {name for pool in self.pools for name in pool.names()}
        for number, stream in enumerate(self.workload):
            name, where = stream.model_name, ("workload", number)
            if name and name not in models and name not in members and name not in pools:
                yield (*where, "model"), _unknown("model", name, [*models, *pools])
            if name in pools and stream.kind == "video":
                yield (*where, "model"), f"frames are of one model, and {short_repr(name)} is a pool"
            if name and name not in pools and "exponent" in stream.model_fields_set:
                yield (*where, "exponent"), "does nothing for a single model; name a pool"
            if self.pools and name not in models and getattr(stream, "load", None) is not None:
                yield (*where, "load"), "of a pool is not known before, since its members wait for loads; say rate"
        for number, failure in enumerate(self.failures):
            if failure.model not in models:
                yield ("failures", number, "model"), _unknown("model", failure.model, models)
            elif failure.replica >= models[failure.model].replicas:
                have = models[failure.model].replicas
                yield ("failures", number, "replica"), f"must be less than the model's replicas {have}"

    def _sweep_faults(self) -> Iterator[Problem]:
        if self.sweep is None:
            return
        key = self.sweep.key
        kinds = [stream.kind for stream in self.workload]
        if key == "streams" and "video" not in kinds:
            yield ("sweep", "streams"), "there is no stream of kind video"
        if key == "noise" and self.noise.kind in {"none", "measured"}:
            yield ("sweep", "noise"), f"does nothing with noise.kind: {self.noise.kind}; name uniform or lognormal"
        if key == "noise" and self.noise.kind == "uniform" and max(self.sweep.values) >= 1:
            yield ("sweep", "noise"), "must be less than 1 with noise.kind: uniform"
        if key == "load" and self.pools:
            yield ("sweep", "load"), "of a pool is not known before, since its members wait for loads; sweep memory"
        if key == "memory" and not self.pools:
            yield ("sweep", "memory"), "there is no pool"
        for number, pool in enumerate(self.pools if key == "memory" else ()):
            for where, fault in pool.memory_faults(int(min(self.sweep.values))):
                yield ("pools", number, *where), f"{fault} in the sweep"
        fixed = {"load": ("video", "trace"), "rate": ("video", "trace"), "slo_scale": ("trace",)}.get(key, ())
        for kind in fixed:
            if kind in kinds:
                yield ("sweep", key), f"cannot change workload[{kinds.index(kind)}], which is of kind {kind}"


def _repeated(section: str, values: Sequence[object], name: str | None = "name") -> Iterator[Problem]:
    for number, value in enumerate(values):
        first = values.index(value)
        if first < number:
            place: Location = (section, number) if name is None else (section, number, name)
            yield place, f"{short_repr(value)} stands at {section}[{first}] too"


def _unknown(what: str, word: str, known: Iterable[str]) -> str:
    names = list(known)
    guess = nearest(word, names)
    hint = f"did you mean {guess}?" if guess else f"there are: {', '.join(names)}" if names else "there are none"
    return f"unknown {what} {short_repr(word)}; {hint}"
