"""Every part of the scheduler taken away on its own, where it should matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.scheduling.ablations import ABLATIONS
from benchmarks.scheduling.cases import settings
from benchmarks.scheduling.conditions import (
    L1_S,
    LIGHT,
    MODEL,
    NOISE,
    OVERHEADS,
    TYPICAL,
    classes,
    one_model,
    rate_at,
    scenario,
)
from benchmarks.scheduling.contenders import OURS, Case, ours
from benchmarks.scheduling.drawing import bars
from benchmarks.scheduling.experiment import Experiment, Finding, Table, as_values, percent
from benchmarks.scheduling.fairness import of_size, of_tenant
from benchmarks.scheduling.laboratory import Laboratory
from benchmarks.scheduling.shares import low_share
from serve_app.domain.priority import Priority
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.settings import ModelScheduling
from serve_app_simulator.report import Estimate
from serve_app_simulator.results import Result
from serve_app_simulator.scenario import Affine, Overheads, Scenario, SimulatedModel, SimulatedPool, Stream

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


def trials(lab: Laboratory) -> list[Trial]:
    """All of them. What has a name with strokes is a line of the table of `cases`."""
    table = {line.name: line for line in settings(None)}

    def of_table(part: str, name: str, metric: str = "in time", value: Value = attained) -> Trial:
        return Trial(part, name, table[name].make(lab.seconds(30)), metric, value)

    high = ("high in time", of_class("high"))
    weight = ("weighted goodput", weighted)
    host = _host(lab, 60.0, Affine(0.02, 0.02), 16, 16.0)
    harsh = _host(lab, 40.0, Affine(0.125, 0.075), 8, 3.0)
    found = [
        *(of_table("best run", name) for name in ("poisson/4x/0.8", "gamma/3x/0.9", "gamma/10x/1.1", "mmpp/3x/0.9")),
        *(of_table("waiting", name) for name in ("gamma/3x/0.5", "gamma/3x/0.9", "gamma/10x/0.5", "ratio/1/0.9")),
        of_table("waiting", "classes/r1/n1/0.5"),
        *(of_table("second batch ahead", name) for name in ("gamma/3x/0.9", "gamma/10x/1.1", "ratio/16/0.9")),
        of_table("second batch ahead", "classes/r1/n1/0.8", *weight),
        *(of_table("coalescing", name) for name in ("gamma/3x/0.9", "gamma/10x/1.1", "classes/r1/n1/0.5")),
        *(of_table("small bundles", name) for name in ("gamma/3x/0.9", "ratio/1/0.9", "classes/r1/n1/0.5")),
        of_table("admission", "overload/3"),
        of_table("admission", "classes/r1/n1/1.5", *weight),
        of_table("fill", "classes/r1/n1/0.5", *weight),
        of_table("fill", "classes/r1/n1/0.5"),
        of_table("fill", "models/20/own"),
        Trial("cap on lower classes", "tight high beside a flood of low", _blocking(lab), *high),
        *(
            of_table(part, name, *what)
            for part in ("cap on lower classes", "cap on filled rows")
            for name in ("classes/r1/n1/0.8", "classes/r2/n1/0.8")
            for what in (high, weight, ("in time", attained))
        ),
        Trial("cap on lower classes", "two members of a pool", host, *high),
        Trial("cap on lower classes", "two members, one too long", harsh, *high),
        *(of_table("ties", name) for name in ("replicas/poisson/4x/r2/n4", "replicas/gamma/5x/r2/n4")),
        of_table("ties", "classes/r2/n2/0.8", *high),
        of_table("ties", "classes/r2/n2/0.8", *weight),
        *(of_table("ways to replicas", name) for name in ("poisson/4x/0.8", "gamma/3x/0.9", "curves/minilm/5x/0.7")),
        Trial("holding back", "two members of a pool", host, *high),
        Trial("holding back", "two members, one too long", harsh, *high),
        Trial("holding back", "two members, one too long", harsh, "low in time", of_class("low")),
        Trial("guaranteed share", "saturating high, load 2", _saturated(lab), "low's part of server time", low_share),
        of_table("guaranteed share", "classes/r2/n1/0.8", "low in time", of_class("low")),
        of_table("guaranteed share", "classes/r2/n1/0.8", *weight),
        of_table("fairness inside a class", "tenants/same", "calm in time", of_tenant("calm")),
        of_table("fairness inside a class", "tenants/same"),
        of_table("fairness over sizes", "mixed/2", "8 rows of 8192 in time", of_size("8x8192")),
        of_table("fairness over sizes", "mixed/2"),
        of_table("sizes only where free", "mixed/2"),
        *(of_table("passing over", name) for name in ("mixed/0.9", "mixed/1.3", "mixed/2")),
        of_table("latency target", "classes/r1/n1/0.8"),
        of_table("probes", "noise/stalls/0.8"),
        of_table("probes", "noise/stalls/1.1"),
        Trial(
            "learned overhead",
            "15 ms each way, default allowance",
            _distant(lab),
            "in time",
            attained,
            (("network_s", 0.002),),
        ),
        Trial("fallbacks", "load 1.6, a variant at half the cost", _with_variant(lab), "in time", attained),
        Trial("newest frame wins", "24 streams, 100 ms", _video(lab, 24, 0.1), "in time", attained),
        Trial("newest frame wins", "24 streams, 100 ms", _video(lab, 24, 0.1), "freshness", fresh),
        Trial("newest frame wins", "16 streams, 33 ms", _video(lab, 16, 1 / 30), "in time", attained),
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


def _distant(lab: Laboratory) -> Scenario:
    model = one_model(10.0 * L1_S)
    stream = Stream("poisson", MODEL, rate=rate_at(0.9, model), timeout_s=10.0 * L1_S)
    far = scenario("distant", model, [stream], lab.seconds(45))
    return replace(far, overheads=Overheads(0.0016, 0.015, 0.017))


def _host(lab: Laboratory, rate: float, heavy: Affine, rows: int, per_s: float) -> Scenario:
    """A host of a pool that has both of its members: a tight one of class `high` and a heavy one of class `low`."""
    return Scenario(
        "two members",
        (
            SimulatedModel(ModelScheduling("tight", 32, 0.1, resident_bytes=1), Affine(0.015, 0.0015), 0),
            SimulatedModel(ModelScheduling("heavy", rows, 2.0, resident_bytes=1), heavy, 0),
        ),
        (
            Stream("poisson", "tight", Priority.HIGH, rate, timeout_s=0.1),
            Stream("poisson", "heavy", Priority.LOW, per_s, timeout_s=10.0),
        ),
        lab.seconds(45) + 1.0,
        classes(),
        pools=(SimulatedPool(Pool("pool", ("tight", "heavy"), memory_bytes=2)),),
        overheads=OVERHEADS,
        noise=NOISE,
        warm_up_s=1.0,
    )


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
