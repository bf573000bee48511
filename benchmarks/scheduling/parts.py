"""Every part of the scheduler taken away on its own, where it should matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.scheduling.ablations import ABLATIONS
from benchmarks.scheduling.conditions import L1_S, LIGHT, MODEL, TYPICAL, one_model, rate_at, scenario
from benchmarks.scheduling.contenders import OURS, Case, ours
from benchmarks.scheduling.drawing import bars
from benchmarks.scheduling.experiment import Experiment, Finding, Table, as_values, percent
from benchmarks.scheduling.laboratory import Laboratory
from benchmarks.scheduling.shared_device import SETTINGS, setting
from benchmarks.scheduling.shares import low_share
from serve_app.scheduling.entry import Priority
from serve_app.simulation.report import Estimate
from serve_app.simulation.results import Result
from serve_app.simulation.scenario import Affine, Noise, Overheads, Scenario, Stream

MIXED = {Priority.HIGH: 0.2, Priority.NORMAL: 0.5, Priority.LOW: 0.3}
MIXED_S = {Priority.HIGH: 0.3, Priority.NORMAL: 0.6, Priority.LOW: 1.25}
Value = Callable[[Result], float]


@dataclass(frozen=True, slots=True)
class Trial:
    """A part, and where it should matter.

    Attributes:
        part: Its name among the ablations.
        where: The workload, for readers.
        scenario: The same to run.
        metric: What should be better with it, for readers.
        value: The same to calculate; a part, 0 to 1.
        arguments: Of `ServeApp`, with and without the part.
    """

    part: str
    where: str
    scenario: Scenario
    metric: str
    value: Value
    arguments: tuple[tuple[str, float], ...] = ()


def attained(result: Result) -> float:
    """In time / offered."""
    return result.attainment


def weighted(result: Result) -> float:
    """Weighted goodput / weight offered."""
    return result.weighted_goodput / result.offered_weight


def of_class(label: str) -> Value:
    """Attainment of a class."""
    return lambda result: result.classes[label].attainment


def fresh(result: Result) -> float:
    """What is left of 100 ms when the median answer comes, as a part."""
    return 1.0 - (result.total.p50_s or 0.1) / 0.1


def useful(result: Result) -> float:
    """Server time that was not wasted."""
    return 1.0 - result.wasted


def trials(lab: Laboratory) -> list[Trial]:
    """All of them."""
    poisson_100 = _one(lab, "poisson", 1.0, 10.0)
    bursty = _one(lab, "gamma", 0.8, 4.0, cv=4.0)
    loose = _one(lab, "gamma", 0.8, 10.0, cv=4.0)
    tight = _one(lab, "gamma", 0.8, 2.5, cv=4.0)
    overload = _one(lab, "poisson", 2.0, 10.0)
    eight = _one(lab, "poisson", 0.9, 4.0, replicas=8)
    eight_loose = _one(lab, "poisson", 0.9, 10.0, replicas=8)
    crowd = _mixed(lab, 1.5)
    steady = _mixed(lab, 0.8)
    noisy = replace(_one(lab, "poisson", 0.8, 10.0, replicas=4), noise=Noise("lognormal", 0.2))
    blocked = _blocking(lab)
    saturated = _saturated(lab)
    distant = replace(_one(lab, "poisson", 0.9, 10.0), overheads=Overheads(0.0016, 0.015, 0.017))
    shared = setting(lab, 60.0)
    harsh = setting(lab, 40.0, SETTINGS[2])
    found = [
        Trial("early drop", "gamma CV 4, 4 x L(1), load 0.8", bursty, "in time", attained),
        Trial("early drop", "Poisson, 10 x L(1), load 2", overload, "in time", attained),
        Trial("early drop", "Poisson, 10 x L(1), load 2", overload, "server time not wasted", useful),
        Trial("just-in-time staging", "Poisson, 10 x L(1), load 1", poisson_100, "in time", attained),
        Trial("just-in-time staging", "gamma CV 4, 4 x L(1), load 0.8", bursty, "in time", attained),
        Trial("just-in-time staging", "mixed classes, load 1.5", crowd, "high in time", of_class("high")),
        Trial("staging", "Poisson, 10 x L(1), load 1", poisson_100, "in time", attained),
        Trial("staging", "Poisson, 10 x L(1), load 2", overload, "in time", attained),
        Trial("burst waiting", "gamma CV 4, 4 x L(1), load 0.8", bursty, "in time", attained),
        Trial("burst waiting", "gamma CV 4, 10 x L(1), load 0.8", loose, "in time", attained),
        Trial("burst waiting", "gamma CV 4, 2.5 x L(1), load 0.8", tight, "in time", attained),
        Trial("deferral", "8 replicas, Poisson, 4 x L(1), load 0.9", eight, "in time", attained),
        Trial("deferral", "8 replicas, Poisson, 10 x L(1), load 0.9", eight_loose, "in time", attained),
        Trial("waiting", "8 replicas, Poisson, 4 x L(1), load 0.9", eight, "in time", attained),
        Trial("waiting", "gamma CV 4, 2.5 x L(1), load 0.8", tight, "in time", attained),
        Trial("admission", "Poisson, 10 x L(1), load 2", overload, "in time", attained),
        Trial("admission", "mixed classes, load 1.5", crowd, "weighted goodput", weighted),
        Trial("fill", "mixed classes, load 0.8", steady, "weighted goodput", weighted),
        Trial("fill", "mixed classes, load 0.8", steady, "in time", attained),
        Trial("fill", "mixed classes, load 1.5", crowd, "in time", attained),
        Trial("cap on lower classes", "tight high beside a flood of low", blocked, "high in time", of_class("high")),
        Trial("cap on lower classes", "mixed classes, load 1.5", crowd, "high in time", of_class("high")),
        Trial("cap on lower classes", "mixed classes, load 1.5", crowd, "weighted goodput", weighted),
        Trial("cap on lower classes", "shared device, 60/s", shared, "high in time", of_class("high")),
        Trial("cap on lower classes", "shared device, heavy too long", harsh, "high in time", of_class("high")),
        Trial("holding back", "shared device, 60/s", shared, "high in time", of_class("high")),
        Trial("holding back", "shared device, heavy too long", harsh, "high in time", of_class("high")),
        Trial("holding back", "shared device, heavy too long", harsh, "low in time", of_class("low")),
        Trial("guaranteed share", "saturating high, load 2", saturated, "low's part of server time", low_share),
        Trial(
            "learned overhead",
            "15 ms each way, default allowance",
            distant,
            "in time",
            attained,
            (("network_s", 0.002),),
        ),
        Trial("learned earliness", "4 replicas, lognormal noise 20%, load 0.8", noisy, "in time", attained),
        Trial("device groups", "shared device, 60/s", shared, "high in time", of_class("high")),
        Trial("device groups", "shared device, 60/s", shared, "low in time", of_class("low")),
        Trial("fallbacks", "load 1.6, a variant at half the cost", _with_variant(lab), "in time", attained),
        Trial("newest frame wins", "24 streams, 100 ms", _video(lab, 24, 0.1), "in time", attained),
        Trial("newest frame wins", "24 streams, 100 ms", _video(lab, 24, 0.1), "freshness", fresh),
        Trial("newest frame wins", "16 streams, 33 ms", _video(lab, 16, 1 / 30), "in time", attained),
        Trial(
            "gate order",
            "four routers, mixed classes, load 1.5",
            replace(crowd, routers=4),
            "high in time",
            of_class("high"),
        ),
    ]
    missing = sorted(set(ABLATIONS) - {trial.part for trial in found})
    assert not missing, f"no trial for {missing}"
    return found


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    everything = trials(lab)
    cases = [
        Case(
            trial.scenario,
            {OURS: ours(**dict(trial.arguments)), "without": ours(trial.part, **dict(trial.arguments))},
            (),
        )
        for trial in everything
    ]
    measured = lab.run(cases)
    gains: list[Estimate] = [
        each.gain(OURS, "without", trial.value) for trial, each in zip(everything, measured, strict=True)
    ]
    pays = {
        part: any(gain.low > 0.001 for trial, gain in zip(everything, gains, strict=True) if trial.part == part)
        for part in dict.fromkeys(trial.part for trial in everything)
    }
    idle = [part for part, paid in pays.items() if not paid]
    return Experiment(
        "parts",
        "Every part with and without",
        "Each part is taken away on its own. The gain is what it adds under the same arrivals, in points.",
        [
            Finding(
                "every part with and without",
                "each part pays somewhere",
                "yes" if not idle else f"not shown for: {', '.join(idle)}",
                not idle,
            )
        ],
        [
            Table(
                ["part", "taken away means", "where", "measure", "with", "without", "gain"],
                [
                    [
                        trial.part,
                        ABLATIONS[trial.part].what,
                        trial.where,
                        trial.metric,
                        percent(each.over(OURS, trial.value), 2),
                        percent(each.over("without", trial.value), 2),
                        percent(gain, 2),
                    ]
                    for trial, each, gain in zip(everything, measured, gains, strict=True)
                ],
            )
        ],
        {
            "": bars(
                "What each part adds",
                "points",
                {
                    f"{trial.part}: {trial.where} ({trial.metric})": gain
                    for trial, gain in zip(everything, gains, strict=True)
                },
                scale=100.0,
                colour="#1f6f8b",
            )
        },
        {
            f"{trial.part}: {trial.where} ({trial.metric})": as_values(gain)
            for trial, gain in zip(everything, gains, strict=True)
        },
    )


def _one(lab: Laboratory, kind: str, load: float, scale: float, *, cv: float = 1.0, replicas: int = 1) -> Scenario:
    model = one_model(scale * L1_S, replicas=replicas)
    stream = Stream(kind, MODEL, rate=rate_at(load, model), cv=cv, timeout_s=scale * L1_S)  # type: ignore[arg-type]
    return scenario(f"{kind} load {load:g}", model, [stream], lab.seconds(45) / max(1, replicas / 2))


def _mixed(lab: Laboratory, load: float) -> Scenario:
    model = one_model(0.6)
    stream = Stream("poisson", MODEL, rate=rate_at(load, model), share=MIXED, timeouts_s=MIXED_S)
    return scenario("mixed classes", model, [stream], lab.seconds(30))


def _blocking(lab: Laboratory) -> Scenario:
    model = one_model(1.25)
    high = Stream("poisson", MODEL, Priority.HIGH, 10.0, timeout_s=0.15)
    low = Stream("poisson", MODEL, Priority.LOW, rate_at(1.2, model), timeout_s=1.25)
    return scenario("tight high", model, [high, low], lab.seconds(30))


def _saturated(lab: Laboratory) -> Scenario:
    model = one_model(0.3)
    high = Stream("poisson", MODEL, Priority.HIGH, rate_at(2.0, model), timeout_s=0.3)
    low = Stream("poisson", MODEL, Priority.LOW, rate_at(0.3, model), timeout_s=5.0)
    return scenario("saturating high", model, [high, low], lab.seconds(30))


def _with_variant(lab: Laboratory) -> Scenario:
    model = one_model(0.3)
    stream = Stream("poisson", MODEL, rate=rate_at(1.6, model), timeout_s=0.3)
    scheduling = replace(model.scheduling, fallbacks=("light",))
    halved = Affine(TYPICAL.alpha_s / 2, TYPICAL.beta_s / 2)
    return scenario(
        "fallbacks", replace(model, scheduling=scheduling, variants={"light": halved}), [stream], lab.seconds(30)
    )


def _video(lab: Laboratory, streams: int, timeout_s: float) -> Scenario:
    model = one_model(timeout_s, curve=LIGHT)
    stream = Stream("video", MODEL, streams=streams, timeout_s=timeout_s, jitter=0.2)
    return scenario("streams", model, [stream], lab.seconds(30))
