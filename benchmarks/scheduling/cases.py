"""The table of workloads on which systems are compared: each has a name like ``gamma/3x/0.9`` and makes a scenario."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean

from benchmarks.process import OUT
from benchmarks.scheduling.conditions import (
    L1_S,
    MAX_ROWS,
    MINILM,
    MODEL,
    NOISE,
    OVERHEADS,
    TYPICAL,
    WIDE,
    ByLength,
    classes,
    one_model,
    rate_at,
    scenario,
)
from serve_app.domain.priority import Priority
from serve_app.scheduling.settings import ModelScheduling
from serve_app_simulator.scenario import Affine, Curve, Noise, Overheads, Scenario, SimulatedModel, Stream
from serve_app_simulator.scenarios.costs import capacity
from serve_app_simulator.workloads import zipf

LOADS = (0.5, 0.7, 0.9, 1.0, 1.1, 1.3)
DEADLINES = (2.0, 3.0, 5.0, 10.0)
SHARE = {Priority.HIGH: 0.1, Priority.NORMAL: 0.6, Priority.LOW: 0.3}
DEADLINES_OF_CLASSES = {Priority.HIGH: 3.0, Priority.NORMAL: 8.0, Priority.LOW: 30.0}
_MOST_PER_S = 300.0
"""Workloads with more requests per second are shorter, so that they have as many."""
_LENGTH = ByLength(0.025, 0.005, 2048)
_BUCKETS = (256, 512, 1024, 2048, 4096, 8192)
_CV: Mapping[str, dict[str, float]] = {"poisson": {}, "gamma": {"cv": 6.0}}
_DRIFT = replace(NOISE, drift=1.5, drift_every_s=8.0, drift_s=3.0)
_SHORT_S = 0.003
_SETTLED_S = 0.1
_TIMERS = Overheads(timer_s=0.00015, scatter=0.5)
_STALLS = replace(NOISE, stall_every_s=10.0, stall_s=0.2)


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table.

    Attributes:
        name: Group and numbers.
        make: Makes the scenario of so many seconds.
        bound: Whether there is an exact bound.
        value: Of the number that is swept in its plot.
        everybody: Whether all baselines take part, not only the best.
    """

    name: str
    make: Callable[[float], Scenario]
    bound: bool = False
    value: float | None = None
    everybody: bool = False

    @property
    def group(self) -> str:
        """What comes before the first stroke."""
        return self.name.partition("/")[0]


GROUPS: Mapping[str, tuple[str, str]] = {
    "poisson": ("Poisson arrivals, one server", "Steady arrivals of many clients."),
    "gamma": ("Bursts: gamma arrivals with CV 6", "Gaps between requests have a coefficient of variation of 6."),
    "mmpp": ("Bursts: on and off", "The rate is 20 times as high for 1 s on average as for the 3 s between."),
    "azure": (
        "A recorded hour",
        (
            "Arrivals and lengths of a production service (Azure LLM inference trace 2023, code), its time scaled to "
            "the load; a batch is padded to its longest prompt. Load 1 are batches of eight in the order of arrival."
        ),
    ),
    "timers": (
        "Short deadlines and timers",
        (
            "A batch of b rows takes (16 + b) x 0.18 ms; no noise, no ways, and requests of one length. serve-app's "
            "timers are late by 0.15 ms, those of the others by nothing. `azure`: the recorded arrivals."
        ),
    ),
    "ratio": ("Fixed over per-row cost", "Gamma arrivals with CV 4, deadline 5 x L(1); L(1) is 30 ms in all."),
    "curves": (
        "Measured curves",
        (
            "Gamma arrivals with CV 4 at the costs of two models on one core: `wide` of up to 64 rows, and `minilm` "
            "for which batches gain next to nothing. Deadlines are short beside the ways, which are absolute."
        ),
    ),
    "classes": (
        "Three classes, routers and replicas",
        (
            "10% high with 3 x L(1), 60% normal with 8 x, 30% low with 30 x. Baselines have one process, so routers "
            "make no difference to them."
        ),
    ),
    "replicas": (
        "Several replicas, one class",
        "Poisson and gamma arrivals (CV 6), one and two routers. Baselines have one queue for all replicas.",
    ),
    "overload": ("Overload", "Poisson arrivals, deadline 10 x L(1), up to three times of what the server can do."),
    "noise": (
        "Execution times that scatter, drift and stall",
        (
            "Poisson arrivals, deadline 5 x L(1). Scatter is lognormal. Drift: for 3 s of every 11 s on average "
            "executions take 1.5 times as long. Stalls: 200 ms every 10 s."
        ),
    ),
    "models": (
        "Many models",
        (
            "Zipf's law with exponent 1 over models of three classes, deadline 10 x L(1); each with a replica and "
            "a device of its own. The first has a load of 0.8."
        ),
    ),
    "mixed": (
        "Lengths and rows",
        "60% of requests have one row of 512 tokens, 30% four of 2048 and 10% eight of 8192; padding counts.",
    ),
    "tenants": (
        "A flooding tenant",
        (
            "One tenant at a load of 0.4 beside one that floods with 1.6, in one class: with the same deadline (8 x "
            "L(1)), a tighter one (4 x), and one that is tighter than anything real (2 x)."
        ),
    ),
}
"""By group, its title and what is to be known."""


def settings(trace: Path | None) -> Iterator[Setting]:
    """The whole table.

    Args:
        trace: The recorded hour, a CSV file with the columns TIMESTAMP, ContextTokens and GeneratedTokens; without it
            its settings are left out.
    """
    for scale, load in product((10.0, 4.0), (0.2, 0.5, 0.7, 0.8, 0.9, 1.0)):
        make = partial(_one, "poisson", scale, load)
        yield Setting(f"poisson/{scale:g}x/{load:g}", make, bound=True, value=load)
    for scale, load in product(DEADLINES, LOADS):
        make = partial(_one, "gamma", scale, load, cv=6.0)
        everybody = scale in {3.0, 10.0} and load in {0.7, 1.0}
        yield Setting(f"gamma/{scale:g}x/{load:g}", make, bound=True, value=load, everybody=everybody)
    for scale, load in product((3.0, 10.0), (0.5, 0.9, 1.1)):
        make = partial(_one, "mmpp", scale, load, surge=20.0, surge_s=1.0, quiet_s=3.0)
        yield Setting(f"mmpp/{scale:g}x/{load:g}", make, bound=True, value=load)
    for load in (0.7, 1.1) if trace is not None else ():
        assert trace is not None
        yield Setting(f"azure/{load:g}", partial(_azure, trace, load), value=load)
    for kind, scale, load in product(("poisson", "gamma", "mmpp", "azure"), (2.0, 3.0, 5.0), (0.6, 0.8, 1.0, 1.3)):
        if kind != "azure" or trace is not None:
            make = partial(_timers, kind, scale, load, trace)
            yield Setting(f"timers/{kind}/{scale:g}x/{load:g}", make, bound=True, value=load)
    for ratio, load in product((1, 4, 16), (0.7, 0.9, 1.1)):
        curve = Affine(L1_S * ratio / (ratio + 1), L1_S / (ratio + 1))
        make = partial(_one, "gamma", 5.0, load, curve=curve, cv=4.0)
        yield Setting(f"ratio/{ratio}/{load:g}", make, bound=True, value=load)
    for (name, points, most, scales), load in product(
        (("wide", WIDE, 64, (10.0, 20.0)), ("minilm", MINILM, 32, (5.0, 10.0))), (0.7, 1.0)
    ):
        for scale in scales:
            make = partial(_one, "gamma", scale, load, curve=points, max_rows=most, cv=4.0)
            yield Setting(f"curves/{name}/{scale:g}x/{load:g}", make, bound=True, value=load)
    for routers, replicas, load in product((1, 2, 4), (1, 2), (0.3, 0.5, 0.8, 0.9, 1.5, 3.0)):
        make = partial(_classes, load, routers, replicas)
        yield Setting(f"classes/r{routers}/n{replicas}/{load:g}", make, value=load)
    for (kind, scale, load), (routers, replicas) in product(
        (("poisson", 4.0, 0.8), ("poisson", 10.0, 0.9), ("gamma", 5.0, 0.7)), ((1, 2), (2, 2), (2, 4))
    ):
        make = partial(_one, kind, scale, load, replicas=replicas, routers=routers, **_CV[kind])  # type: ignore[arg-type]
        yield Setting(f"replicas/{kind}/{scale:g}x/r{routers}/n{replicas}", make)
    for load in (1.0, 1.5, 2.0, 3.0):
        yield Setting(f"overload/{load:g}", partial(_one, "poisson", 10.0, load), bound=True, value=load)
    for (name, noise), load in product(
        (("0.08", NOISE), ("0.3", Noise("lognormal", 0.3)), ("drift", _DRIFT), ("stalls", _STALLS)), (0.8, 1.1)
    ):
        make = partial(_one, "poisson", 5.0, load, noise=noise)
        yield Setting(f"noise/{name}/{load:g}", make, value=load)
    for count in (20, 100, 500):
        yield Setting(f"models/{count}/own", partial(_models, count), value=float(count))
    for load in (0.5, 0.9, 1.3, 2.0):
        yield Setting(f"mixed/{load:g}", partial(mixed, load), value=load)
    for name, scale in (("same", 8.0), ("tighter", 4.0), ("false", 2.0)):
        yield Setting(f"tenants/{name}", partial(_tenants, scale))


def _one(
    kind: str,
    scale: float,
    load: float,
    seconds: float,
    *,
    curve: Curve | None = None,
    max_rows: int = MAX_ROWS,
    noise: Noise = NOISE,
    replicas: int = 1,
    routers: int = 1,
    **of_stream: float,
) -> Scenario:
    """One model, one class."""
    model = one_model(L1_S, curve=TYPICAL if curve is None else curve, max_rows=max_rows, replicas=replicas)
    slo_s = scale * model.curve(1, 0)
    model = replace(model, scheduling=replace(model.scheduling, slo_s=slo_s))
    rate = rate_at(load, model)
    stream = Stream(kind, MODEL, rate=rate, timeout_s=slo_s, **of_stream)  # type: ignore[arg-type]
    seconds *= min(1.0, _MOST_PER_S / rate)
    return scenario(f"{kind} {scale:g}x load {load:g}", model, [stream], seconds, noise=noise, routers=routers)


def _timers(kind: str, scale: float, load: float, trace: Path | None, seconds: float) -> Scenario:
    """Deadlines of so many L(1) of 3 ms, with the arrivals of a process or of the recorded hour."""
    model = one_model(scale * _SHORT_S, curve=Affine(16 * _SHORT_S / 17, _SHORT_S / 17))
    slo_s, rate = model.scheduling.slo_s, load * capacity(model)
    seconds *= _MOST_PER_S / rate
    if kind == "azure":
        assert trace is not None
        arrivals = [at for at, _ in read_recorded(trace)[: round(rate * (seconds + _SETTLED_S))]]
        stretch = len(arrivals) / rate / arrivals[-1]
        path = _write_trace(f"timers-{scale:g}-{load:g}", [(at * stretch, 0) for at in arrivals], slo_s)
        stream = Stream("trace", path=path)
    else:
        of_stream = {"gamma": {"cv": 6.0}, "mmpp": {"surge": 20.0, "surge_s": 0.1, "quiet_s": 0.3}}.get(kind, {})
        stream = Stream(kind, MODEL, rate=rate, timeout_s=slo_s, **of_stream)  # type: ignore[arg-type]
    name = f"{kind} {scale:g}x load {load:g}"
    made = scenario(name, model, [stream], seconds, noise=Noise(), warm_up_s=_SETTLED_S)
    return replace(made, overheads=_TIMERS)


def _classes(load: float, routers: int, replicas: int, seconds: float) -> Scenario:
    timeouts_s = {priority: scale * L1_S for priority, scale in DEADLINES_OF_CLASSES.items()}
    model = one_model(timeouts_s[Priority.NORMAL], replicas=replicas)
    rate = rate_at(load, model)
    stream = Stream(
        "poisson", MODEL, rate=rate, timeout_s=timeouts_s[Priority.NORMAL], share=SHARE, timeouts_s=timeouts_s
    )
    seconds *= min(1.0, _MOST_PER_S / rate)
    return scenario(f"classes load {load:g}", model, [stream], seconds, routers=routers)


def _models(count: int, seconds: float) -> Scenario:
    slo_s = 10.0 * L1_S
    models = tuple(
        SimulatedModel(ModelScheduling(f"model-{place}", MAX_ROWS, slo_s), Affine(0.025, 0.005))
        for place in range(count)
    )
    rate = rate_at(0.8, models[0]) / float(zipf(count, 1.0)[0])
    share = {Priority.HIGH: 0.2, Priority.NORMAL: 0.5, Priority.LOW: 0.3}
    return Scenario(
        f"{count} models",
        models,
        (Stream("long_tail", rate=rate, timeout_s=slo_s, share=share),),
        0.5 * seconds * min(1.0, _MOST_PER_S / rate) + 1.0,
        classes(),
        overheads=OVERHEADS,
        noise=NOISE,
        warm_up_s=1.0,
    )


def mixed(load: float, seconds: float) -> Scenario:
    """Single rows, and requests of several longer ones."""
    parts = ((0.6, 1, 512), (0.3, 4, 2048), (0.1, 8, 8192))
    slo_s = 15.0 * L1_S
    model = one_model(slo_s, curve=_LENGTH)
    each_s = sum(part * _LENGTH(MAX_ROWS, bucket) * rows / MAX_ROWS for part, rows, bucket in parts)
    streams = [
        Stream("poisson", MODEL, rate=load * part / each_s, rows=rows, bucket=bucket, timeout_s=slo_s)
        for part, rows, bucket in parts
    ]
    return scenario(f"mixed load {load:g}", model, streams, seconds)


def _tenants(scale: float, seconds: float) -> Scenario:
    model = one_model(8.0 * L1_S)
    streams = [
        Stream("poisson", MODEL, rate=rate_at(0.4, model), timeout_s=8.0 * L1_S, tenant="calm"),
        Stream("poisson", MODEL, rate=rate_at(1.6, model), timeout_s=scale * L1_S, tenant="flood"),
    ]
    return scenario(f"flood {scale:g}x", model, streams, seconds)


def _azure(trace: Path, load: float, seconds: float) -> Scenario:
    slo_s = 10.0 * L1_S
    recorded = read_recorded(trace)
    # At a load of 1 the server is busy with batches of eight in the order of arrival, padded to their longest.
    batches = [[bucket for _, bucket in recorded[first : first + 8]] for first in range(0, len(recorded), 8)]
    mean_s = fmean(_LENGTH(8, max(batch)) + OVERHEADS.between_s for batch in batches) / 8
    # What is played is an excerpt, so its own mean rate counts.
    recorded = recorded[: max(2, round((seconds + 1.0) * load / mean_s))]
    stretch = mean_s / load / (recorded[-1][0] / len(recorded))
    path = _write_trace(f"{load:g}", [(at * stretch, bucket) for at, bucket in recorded], slo_s)
    model = one_model(slo_s, curve=_LENGTH)
    return scenario(f"recorded load {load:g}", model, [Stream("trace", path=path)], seconds)


def _write_trace(name: str, arrivals: Sequence[tuple[float, int]], timeout_s: float) -> str:
    """Write a trace of rows with their cost buckets. Returns its path."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"recorded-{name}-{len(arrivals)}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["arrival", "model", "class", "rows", "deadline", "bucket"])
        writer.writerows([f"{at:.6f}", MODEL, "normal", 1, timeout_s, bucket] for at, bucket in arrivals)
    return str(path)


def read_recorded(path: Path) -> list[tuple[float, int]]:
    """Arrivals in seconds from the first, ascending, and cost buckets by tokens in both directions."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = [
            (
                datetime.fromisoformat(line["TIMESTAMP"][:26]),
                int(line["ContextTokens"]) + int(line["GeneratedTokens"]),
            )
            for line in csv.DictReader(file)
        ]
    first = min(at for at, _ in lines)
    found = [((at - first).total_seconds(), _bucket(tokens)) for at, tokens in lines]
    return sorted(found)


def _bucket(tokens: int) -> int:
    return next((bucket for bucket in _BUCKETS if tokens <= bucket), _BUCKETS[-1])
