"""The workload of a scenario: one section per kind of stream, each with the keys that its kind uses and no others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, WithJsonSchema, model_validator

from serve_app.config.problems import Location, nearest, short_repr, validation_error
from serve_app.config.values import Delay, Milliseconds, Positive, Seconds, Section
from serve_app.domain.priority import Priority
from serve_app_simulator.scenario import Stream

ClassName = Literal["high", "normal", "low"]
Rate = Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)]
Factor = Annotated[float, Field(gt=0, le=1e4, allow_inf_nan=False)]
Exponent = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
Part = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

PRIORITIES = {priority.label: priority for priority in Priority}


class StreamConfig(Section):
    """What every kind has."""

    kind: str
    """Which process the arrivals follow."""

    @property
    def model_name(self) -> str:
        """The model it asks, or empty where it asks all of them or a file says which."""
        return str(getattr(self, "model", ""))

    @abstractmethod
    def stream(self, folder: Path, default_timeouts: Mapping[Priority, float], unit_rate: float) -> Stream:
        """The value for the simulator.

        Args:
            folder: Paths are relative to it.
            default_timeouts: Deadline per class if the stream has none, seconds.
            unit_rate: Requests per second that are a load of 1.
        """


class _ClassifiedStream(StreamConfig):
    priority: ClassName = Field(default="normal", alias="class")
    """Class of its requests."""

    share: dict[ClassName, Part] | None = None
    """Parts of the classes instead of one class, in sum 1: `{high: 0.2, low: 0.8}`."""

    timeout_ms: Milliseconds | dict[ClassName, Milliseconds] | None = None
    """Deadline after arrival, for all or per class; by default the classes' `timeout_ms`."""

    rows: Positive = 1
    """Rows of each request."""

    bucket: int = Field(default=0, ge=0)
    """Cost bucket of each request; means something only to models with a profile that has buckets."""

    start_s: Delay = 0.0
    """When it begins."""

    end_s: Seconds | None = None
    """When it ends; by default with the scenario."""

    tenant: str = ""
    """Who sends it, for results."""

    @model_validator(mode="after")
    def _check_classes(self) -> _ClassifiedStream:
        _check_end(self.start_s, self.end_s)
        faults: list[tuple[Location, str]] = []
        if self.share is not None:
            total = sum(self.share.values())
            if not isclose(total, 1.0, abs_tol=1e-6):
                faults.append((("share",), f"must sum to 1, got {total:g}"))
            if "priority" in self.model_fields_set:
                faults.append((("class",), "cannot stand beside share; leave one of them out"))
        if isinstance(self.timeout_ms, dict):
            missing = [priority.label for priority in self.classes() if priority.label not in self.timeout_ms]
            if missing:
                faults.append((("timeout_ms",), f"names no deadline for {', '.join(missing)}"))
        if faults:
            raise validation_error(faults)
        return self

    def classes(self) -> dict[Priority, float]:
        """Parts of the classes, summing to 1."""
        if self.share is None:
            return {PRIORITIES[self.priority]: 1.0}
        return {PRIORITIES[name]: part for name, part in self.share.items() if part > 0}

    def timeouts(self, defaults: Mapping[Priority, float]) -> dict[Priority, float]:
        """Deadline of each of its classes, seconds after arrival; ``defaults`` are for a stream without."""
        if self.timeout_ms is None:
            return {priority: defaults[priority] for priority in self.classes()}
        if isinstance(self.timeout_ms, dict):
            return {priority: self.timeout_ms[_label(priority)] / 1000 for priority in self.classes()}
        return dict.fromkeys(self.classes(), self.timeout_ms / 1000)

    def stream(self, folder: Path, default_timeouts: Mapping[Priority, float], unit_rate: float) -> Stream:  # noqa: ARG002 - kinds differ
        """See `StreamConfig.stream`."""
        classes = self.classes()
        timeouts = self.timeouts(default_timeouts)
        first = min(classes)
        return Stream(
            kind=self.kind,  # type: ignore[arg-type]  # each kind's section allows one word only
            model=self.model_name,
            priority=first,
            timeout_s=timeouts[first],
            rows=self.rows,
            bucket=self.bucket,
            start_s=self.start_s,
            end_s=self.end_s,
            tenant=self.tenant,
            share=classes if len(classes) > 1 else {},
            timeouts_s=timeouts if len(classes) > 1 else {},
            **self._own(unit_rate),
        )

    @abstractmethod
    def _own(self, unit_rate: float) -> dict[str, Any]:
        """The fields of a `Stream` that only this kind has."""


class _RatedStream(_ClassifiedStream):
    rate: Rate | None = None
    """Requests per second. Either this or `load`."""

    load: Factor | None = None
    """Rate as a part of what the model's replicas can answer within `batching.slo_ms`: 1 is all of it."""

    exponent: Exponent | None = None
    """Where `model` is a pool: Zipf's exponent of its members' popularity, which falls in their order; by default 1."""

    @model_validator(mode="after")
    def _check_rate(self) -> _RatedStream:
        if self.rate is None and self.load is None:
            raise validation_error([(("rate",), "required, or load")])
        if self.rate is not None and self.load is not None:
            raise validation_error([(("load",), "cannot stand beside rate; leave one of them out")])
        return self

    def _own(self, unit_rate: float) -> dict[str, Any]:
        spread = {} if self.exponent is None else {"exponent": self.exponent}
        if self.rate is not None:
            return {"rate": self.rate, **spread}
        assert self.load is not None
        return {"rate": self.load * unit_rate, **spread}


class PoissonStream(_RatedStream):
    """Independent clients: gaps are exponential."""

    kind: Literal["poisson"]
    """Which process the arrivals follow."""

    model: str = Field(min_length=1)
    """Name of the model."""


class GammaStream(_RatedStream):
    """Bursts: gaps follow a gamma distribution."""

    kind: Literal["gamma"]
    """Which process the arrivals follow."""

    model: str = Field(min_length=1)
    """Name of the model."""

    cv: float = Field(default=4.0, gt=0, le=100, allow_inf_nan=False)
    """Coefficient of variation of the gaps: 1 is Poisson, more is burstier."""

    def _own(self, unit_rate: float) -> dict[str, Any]:
        return super()._own(unit_rate) | {"cv": self.cv}


class MmppStream(_RatedStream):
    """Bursts: Poisson at a low rate and at a high one by turns; `rate` is the mean of both."""

    kind: Literal["mmpp"]
    """Which process the arrivals follow."""

    model: str = Field(min_length=1)
    """Name of the model."""

    surge: Factor = 20.0
    """How many times the low rate the high one is."""

    surge_s: Seconds = 1.0
    """How long the high rate lasts, on average."""

    quiet_s: Seconds = 3.0
    """How long the low rate lasts, on average."""

    def _own(self, unit_rate: float) -> dict[str, Any]:
        return super()._own(unit_rate) | {"surge": self.surge, "surge_s": self.surge_s, "quiet_s": self.quiet_s}


class PeriodicStream(_RatedStream):
    """Equal gaps."""

    kind: Literal["periodic"]
    """Which process the arrivals follow."""

    model: str = Field(min_length=1)
    """Name of the model."""


class FlashCrowdStream(_RatedStream):
    """Poisson at `rate`, and at `surge` times that for a while."""

    kind: Literal["flash_crowd"]
    """Which process the arrivals follow."""

    model: str = Field(min_length=1)
    """Name of the model."""

    surge: Factor = 3.0
    """By how much the rate is multiplied in the surge."""

    surge_at_s: Delay
    """When the surge begins."""

    surge_s: Seconds
    """How long it lasts."""

    @model_validator(mode="after")
    def _check_surge(self) -> FlashCrowdStream:
        if self.surge_at_s < self.start_s:
            message = f"must not be before start_s {self.start_s:g}, got {self.surge_at_s:g}"
            raise validation_error([(("surge_at_s",), message)])
        if self.end_s is not None and self.surge_at_s >= self.end_s:
            raise validation_error([(("surge_at_s",), f"must be before end_s {self.end_s:g}, got {self.surge_at_s:g}")])
        return self

    def _own(self, unit_rate: float) -> dict[str, Any]:
        own = {"surge": self.surge, "surge_at_s": self.surge_at_s, "surge_s": self.surge_s}
        return super()._own(unit_rate) | own


class VideoStream(_ClassifiedStream):
    """Cameras: each sends frames at a steady pace, and a new frame replaces its waiting one."""

    kind: Literal["video"]
    """Which process the arrivals follow."""

    model: str = Field(min_length=1)
    """Name of the model."""

    streams: Positive
    """How many cameras."""

    fps: Rate = 30.0
    """Frames per second of each."""

    jitter: Part = 0.0
    """Each frame is late by a random part of this part of the gap between frames."""

    def _own(self, unit_rate: float) -> dict[str, Any]:  # noqa: ARG002 - it has no rate
        return {"streams": self.streams, "fps": self.fps, "jitter": self.jitter}


class LongTailStream(_RatedStream):
    """Poisson, split over all models by Zipf's law in the order they are listed.

    A `load` is that of the model with the highest.
    """

    kind: Literal["long_tail"]
    """Which process the arrivals follow."""

    exponent: Exponent = 1.0
    """Zipf's exponent: 0 spreads evenly, more favours the first models."""


class TraceStream(StreamConfig):
    """Arrivals from a CSV file with the columns arrival, model, class, rows, deadline."""

    kind: Literal["trace"]
    """Which process the arrivals follow."""

    path: str = Field(min_length=1)
    """The file, relative to this one."""

    start_s: Delay = 0.0
    """When the trace's second 0 is."""

    end_s: Seconds | None = None
    """When it is cut off; by default with the scenario."""

    @model_validator(mode="after")
    def _check(self) -> TraceStream:
        _check_end(self.start_s, self.end_s)
        return self

    def stream(self, folder: Path, default_timeouts: Mapping[Priority, float], unit_rate: float) -> Stream:  # noqa: ARG002 - the file says it all
        """See `StreamConfig.stream`."""
        return Stream(kind="trace", path=str(folder / self.path), start_s=self.start_s, end_s=self.end_s)


_KINDS: dict[str, type[StreamConfig]] = {
    "poisson": PoissonStream,
    "gamma": GammaStream,
    "mmpp": MmppStream,
    "periodic": PeriodicStream,
    "flash_crowd": FlashCrowdStream,
    "video": VideoStream,
    "long_tail": LongTailStream,
    "trace": TraceStream,
}


def _read(given: Any) -> StreamConfig:
    if isinstance(given, StreamConfig):
        return given
    if not isinstance(given, Mapping):
        raise ValueError(f"must be a mapping, got {short_repr(given)}")  # noqa: TRY004 - pydantic reports ValueErrors
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        if "kind" not in given:
            raise validation_error([(("kind",), f"required, one of {', '.join(_KINDS)}")])
        guess = nearest(str(kind), _KINDS)
        hint = f"did you mean {guess}?" if guess else f"known: {', '.join(_KINDS)}"
        raise validation_error([(("kind",), f"unknown kind {short_repr(kind)}; {hint}")])
    return _KINDS[kind].model_validate(given)


def _schema() -> dict[str, Any]:
    """One condition per kind, so that the keys known at a stream are those of its kind."""
    return {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": list(_KINDS)}},
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
                "then": section.model_json_schema(),
            }
            for kind, section in _KINDS.items()
        ],
    }


AnyStream = Annotated[SerializeAsAny[StreamConfig], BeforeValidator(_read), WithJsonSchema(_schema())]
"""A stream of any kind."""


def expected_requests(streams: Sequence[Stream], duration_s: float) -> float:
    """Mean number of requests that streams send until ``duration_s``; traces count nothing."""
    return sum(_expected(stream, duration_s) for stream in streams)


def _expected(stream: Stream, duration_s: float) -> float:
    end_s = duration_s if stream.end_s is None else min(stream.end_s, duration_s)
    active_s = max(0.0, end_s - stream.start_s)
    if stream.kind == "video":
        return stream.streams * stream.fps * active_s
    if stream.kind == "flash_crowd":
        surge_s = max(0.0, min(end_s, stream.surge_at_s + stream.surge_s) - stream.surge_at_s)
        return stream.rate * (active_s + (stream.surge - 1.0) * surge_s)
    return stream.rate * active_s


def _check_end(start_s: float, end_s: float | None) -> None:
    if end_s is not None and end_s <= start_s:
        raise validation_error([(("end_s",), f"must be after start_s {start_s:g}, got {end_s:g}")])


def _label(priority: Priority) -> ClassName:
    return priority.label  # type: ignore[return-value]  # the labels are these words
