"""Workloads: the arrivals of a scenario, generated before anything runs, so that every system meets the same ones.

    poisson       exponential gaps at ``rate``
    gamma         gamma-distributed gaps at ``rate`` with coefficient of variation ``cv``; bursty above 1
    mmpp          poisson at a low rate and at one ``surge`` times as high, by turns of random length
    periodic      equal gaps at ``rate``, with a random phase
    flash_crowd   poisson at ``rate``, and at ``surge * rate`` for ``surge_s`` from ``surge_at_s``
    video         ``streams`` cameras at ``fps`` with random phases, each frame up to ``jitter`` of a gap late
    long_tail     poisson at ``rate``, over all models in their order by Zipf's law with ``exponent``
    trace         what a file says; see `serve_app_simulator.trace`

A stream for a pool is one for each of its members, at rates by Zipf's law with ``exponent`` in their order.
Every stream draws from a generator of its own, made of the seed and its place in the scenario: changing one stream
leaves the others as they are (common random numbers).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import numpy.typing as npt

from serve_app.domain.priority import Priority
from serve_app_simulator.scenario import Scenario, Stream
from serve_app_simulator.system import Request
from serve_app_simulator.trace import read_trace

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_CHUNK = 65_536
_SETTLING_GAPS = 30
"""A renewal process is watched from this many gaps (times cv^2) after its start, when its rate has settled."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests as columns of equal length, ascending in ``arrival``.

    Attributes:
        models: Names that ``model`` counts from 0.
        arrival: When the client sends it, seconds.
        deadline: When the answer becomes worthless, seconds.
        model: Place in ``models``.
        priority: The class's number.
        rows: Rows it adds to a batch.
        bucket: Its cost bucket.
        stream: Number of its video stream, or -1.
        tenant: Place in ``tenants``.
        tenants: Names that ``tenant`` counts from 0; the empty one is nobody in particular.
    """

    models: tuple[str, ...]
    arrival: Floats
    deadline: Floats
    model: Integers
    priority: Integers
    rows: Integers
    bucket: Integers
    stream: Integers
    tenant: Integers
    tenants: tuple[str, ...] = ("",)

    def __len__(self) -> int:
        return len(self.arrival)

    def requests(self) -> Iterator[Request]:
        """Make the requests one by one."""
        classes = {int(priority): priority for priority in Priority}
        for start in range(0, len(self), _CHUNK):
            part = slice(start, start + _CHUNK)
            columns = (
                self.model[part].tolist(),
                self.priority[part].tolist(),
                self.arrival[part].tolist(),
                self.deadline[part].tolist(),
                self.rows[part].tolist(),
                self.bucket[part].tolist(),
                self.stream[part].tolist(),
                self.tenant[part].tolist(),
            )
            for number, (model, priority, arrival, deadline, rows, bucket, stream, tenant) in enumerate(
                zip(*columns, strict=True), start
            ):
                yield Request(
                    number,
                    self.models[model],
                    classes[priority],
                    arrival,
                    deadline,
                    rows,
                    bucket,
                    stream,
                    self.tenants[tenant],
                )


def generate(scenario: Scenario, seed: int) -> Arrivals:
    """Generate the arrivals of all of a scenario's streams. Raises ConfigError if a trace cannot be read."""
    models = tuple(model.scheduling.name for model in scenario.models)
    tenants = tuple(dict.fromkeys(("", *(stream.tenant for stream in scenario.workload))))
    parts: list[Arrivals] = []
    first_stream = 0
    pools = {pool.scheduling.name: pool.scheduling.models for pool in scenario.pools}
    for place, stream in enumerate(scenario.workload):
        rng = np.random.default_rng([seed, place])
        end = scenario.duration_s if stream.end_s is None else min(stream.end_s, scenario.duration_s)
        if stream.kind == "trace":
            parts.append(_trace(stream, models, end))
        elif stream.model in pools:
            parts.append(_of_members(stream, models, pools[stream.model], end, (seed, place)))
        else:
            parts.append(_drawn(stream, models, end, rng, first_stream))
        parts[-1].tenant[:] = tenants.index(stream.tenant)
        first_stream += stream.streams if stream.kind == "video" else 0
    if not parts:
        parts = [_columns(models, np.empty(0))]
    arrival = np.concatenate([part.arrival for part in parts])
    order = np.argsort(arrival, kind="stable")

    def joined(column: str) -> npt.NDArray[np.int64]:
        values: npt.NDArray[np.int64] = np.concatenate([getattr(part, column) for part in parts])[order]
        return values

    return Arrivals(
        models,
        arrival[order],
        np.concatenate([part.deadline for part in parts])[order],
        joined("model"),
        joined("priority"),
        joined("rows"),
        joined("bucket"),
        joined("stream"),
        joined("tenant"),
        tenants,
    )


def poisson(rng: np.random.Generator, rate: float, start: float, end: float) -> Floats:
    """Times of a Poisson process, ascending."""
    if end <= start or rate <= 0.0:
        return np.empty(0)
    return np.sort(rng.uniform(start, end, rng.poisson(rate * (end - start))))


def gamma(rng: np.random.Generator, rate: float, cv: float, start: float, end: float) -> Floats:
    """Times of a renewal process with gamma-distributed gaps of mean ``1 / rate``, ascending."""
    if end <= start or rate <= 0.0:
        return np.empty(0)
    shape = 1.0 / (cv * cv)
    before_s = _SETTLING_GAPS * max(1.0, cv * cv) / rate
    times: list[Floats] = []
    at = start - before_s
    while at < end:
        gaps = rng.gamma(shape, 1.0 / (rate * shape), max(64, ceil((end - at) * rate * 1.1)))
        times.append(at + np.cumsum(gaps))
        at = float(times[-1][-1])
    all_times = np.concatenate(times)
    return all_times[(all_times >= start) & (all_times < end)]


def periodic(rng: np.random.Generator, rate: float, start: float, end: float) -> Floats:
    """Times with equal gaps of ``1 / rate`` after a random part of one, ascending."""
    if end <= start or rate <= 0.0:
        return np.empty(0)
    first = start + rng.uniform(0.0, 1.0 / rate)
    times = first + np.arange(ceil((end - start) * rate)) / rate
    return times[times < end]


def flash_crowd(rng: np.random.Generator, stream: Stream, start: float, end: float) -> Floats:
    """Times of a Poisson process whose rate is ``surge`` times as high for a while, ascending."""
    surge_from = min(max(stream.surge_at_s, start), end)
    surge_to = min(max(stream.surge_at_s + stream.surge_s, start), end)
    return np.concatenate(
        [
            poisson(rng, stream.rate, start, surge_from),
            poisson(rng, stream.rate * stream.surge, surge_from, surge_to),
            poisson(rng, stream.rate, surge_to, end),
        ]
    )


def mmpp(rng: np.random.Generator, stream: Stream, start: float, end: float) -> Floats:
    """Times of a Poisson process that switches between a low rate and one ``surge`` times as high, ascending.

    It begins in either state, by how long they last.
    """
    if end <= start or stream.rate <= 0.0:
        return np.empty(0)
    both_s = stream.surge_s + stream.quiet_s
    low = stream.rate * both_s / (stream.surge * stream.surge_s + stream.quiet_s)
    high = bool(rng.random() < stream.surge_s / both_s)
    at, times = start, []
    while at < end:
        until = min(end, at + rng.exponential(stream.surge_s if high else stream.quiet_s))
        times.append(poisson(rng, low * (stream.surge if high else 1.0), at, until))
        at, high = until, not high
    return np.concatenate(times)


def zipf(models: int, exponent: float) -> Floats:
    """Parts of the models by rank, summing to 1."""
    weights: Floats = np.arange(1, models + 1, dtype=np.float64) ** -exponent
    weights /= weights.sum()
    return weights


def _drawn(stream: Stream, models: tuple[str, ...], end: float, rng: np.random.Generator, first: int) -> Arrivals:
    start = stream.start_s
    numbers: Integers | None = None
    if stream.kind in {"poisson", "long_tail"}:
        times = poisson(rng, stream.rate, start, end)
    elif stream.kind == "gamma":
        times = gamma(rng, stream.rate, stream.cv, start, end)
    elif stream.kind == "mmpp":
        times = mmpp(rng, stream, start, end)
    elif stream.kind == "periodic":
        times = periodic(rng, stream.rate, start, end)
    elif stream.kind == "flash_crowd":
        times = flash_crowd(rng, stream, start, end)
    else:
        times, numbers = _video(rng, stream, start, end, first)
    model = models.index(stream.model) if stream.kind != "long_tail" else 0
    columns = _columns(models, times, model, numbers, stream)
    if stream.kind == "long_tail":
        columns.model[:] = rng.choice(len(models), len(times), p=zipf(len(models), stream.exponent))
    timeouts = np.full(max(Priority) + 1, stream.timeout_s, dtype=np.float64)
    if stream.share:
        classes = np.array([int(priority) for priority in stream.share])
        parts = np.array(list(stream.share.values()), dtype=np.float64)
        columns.priority[:] = rng.choice(classes, len(times), p=parts / parts.sum())
        for priority, timeout_s in stream.timeouts_s.items():
            timeouts[priority] = timeout_s
    columns.deadline[:] = times + timeouts[columns.priority]
    return columns


def _of_members(
    stream: Stream, models: tuple[str, ...], members: tuple[str, ...], end: float, seed: tuple[int, int]
) -> Arrivals:
    """Generate a stream for each member of a pool, with rates that fall in their order by Zipf's law."""
    parts = []
    for number, (name, part) in enumerate(zip(members, zipf(len(members), stream.exponent).tolist(), strict=True)):
        rng = np.random.default_rng([*seed, number])
        parts.append(_drawn(replace(stream, model=name, rate=stream.rate * part), models, end, rng, 0))

    def joined(column: str) -> Integers:
        values: Integers = np.concatenate([getattr(part, column) for part in parts])
        return values

    return Arrivals(
        models,
        np.concatenate([part.arrival for part in parts]),
        np.concatenate([part.deadline for part in parts]),
        joined("model"),
        joined("priority"),
        joined("rows"),
        joined("bucket"),
        joined("stream"),
        joined("tenant"),
    )


def _video(rng: np.random.Generator, stream: Stream, start: float, end: float, first: int) -> tuple[Floats, Integers]:
    """Times of all frames, and the number of each one's stream."""
    if stream.streams < 1 or end <= start:
        return np.empty(0), np.empty(0, dtype=np.int64)
    gap = 1.0 / stream.fps
    phases = rng.uniform(0.0, gap, stream.streams)
    frames = ceil((end - start) * stream.fps)
    times = start + phases[:, None] + gap * np.arange(frames)[None, :]
    if stream.jitter > 0.0:
        times = times + rng.uniform(0.0, gap * stream.jitter, times.shape)
    numbers = np.broadcast_to(first + np.arange(stream.streams)[:, None], times.shape)
    counted = times < end
    flat, owners = times[counted], numbers[counted]
    order = np.argsort(flat, kind="stable")
    return flat[order], owners[order].astype(np.int64)


def _trace(stream: Stream, models: tuple[str, ...], end: float) -> Arrivals:
    """Read a trace, shifted by ``start_s`` and cut off at 0 and at ``end``."""
    trace = read_trace(stream.path, models)
    times = trace.arrival + stream.start_s
    kept = (times >= 0.0) & (times < end)
    columns = _columns(models, times[kept])
    columns.deadline[:] = times[kept] + trace.timeout_s[kept]
    columns.model[:] = trace.model[kept]
    columns.priority[:] = trace.priority[kept]
    columns.rows[:] = trace.rows[kept]
    columns.bucket[:] = trace.bucket[kept]
    return columns


def _columns(
    models: tuple[str, ...],
    times: Floats,
    model: int = 0,
    numbers: Integers | None = None,
    stream: Stream | None = None,
) -> Arrivals:
    count = len(times)

    def filled(value: int) -> Integers:
        return np.full(count, value, dtype=np.int64)

    return Arrivals(
        models,
        times,
        np.zeros(count),
        filled(model),
        filled(stream.priority if stream is not None else Priority.NORMAL),
        filled(stream.rows if stream is not None else 1),
        filled(stream.bucket if stream is not None else 0),
        filled(-1) if numbers is None else numbers,
        filled(0),
    )
