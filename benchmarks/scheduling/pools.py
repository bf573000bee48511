"""Many models in little memory: pools against other servers of many models, and against what could be done at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from benchmarks.scheduling.baselines.pools import ModelMesh, Multiplexed, Swapping
from benchmarks.scheduling.bounds.loading import loading_bound
from benchmarks.scheduling.conditions import NOISE, OVERHEADS, classes
from benchmarks.scheduling.drawing import lines
from benchmarks.scheduling.experiment import Experiment, Finding, Table, as_values, percent, plain, times
from benchmarks.scheduling.laboratory import Laboratory
from serve_app.domain.priority import Priority
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.settings import ModelScheduling
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.report import Estimate, estimate
from serve_app_simulator.results import Result
from serve_app_simulator.run import MakeSystem, simulate
from serve_app_simulator.scenario import Affine, Scenario, SimulatedModel, SimulatedPool, Stream
from serve_app_simulator.workloads import generate

OURS, RESIDENT, BOUND = "serve-app", "all resident", "bound"
_POOL = "pool"
_MEMBERS, _PART, _HOSTS, _BYTES = 1000, 0.12, 2, 8 << 20
_COST = Affine(0.004, 0.001)
_WARM_UP_S = 5.0
_SHARE = {Priority.HIGH: 0.1, Priority.NORMAL: 0.6, Priority.LOW: 0.3}
_TIMEOUTS_S = {Priority.HIGH: 0.2, Priority.NORMAL: 0.5, Priority.LOW: 2.0}
_URGENT = 20
"""The members with requests of class `high` in the second part: the most popular ones, which stay resident."""
_URGENT_PER_S = 30.0
_TUNED_S = 4.0


@dataclass(frozen=True, slots=True)
class Setting:
    """A line of the experiment.

    Attributes:
        load: Where members are loaded from.
        load_s: What that takes, seconds.
        rate: Requests per second.
    """

    load: str
    load_s: float
    rate: float


SETTINGS = (
    *(Setting("page cache", 0.015, rate) for rate in (300.0, 450.0)),
    *(Setting("remote", 0.2, rate) for rate in (40.0, 80.0)),
)
_NAMES = {"page cache": "pools", "remote": "pools_remote"}
GRIDS: Mapping[str, Sequence[MakeSystem]] = {
    "modelmesh": [
        partial(ModelMesh, rpm, disconnect=disconnect) for rpm, disconnect in product((300.0, 2000.0), (True, False))
    ],
    "ray-multiplexed": [partial(Multiplexed, most, wait_s) for most, wait_s in product((20, 100), (0.1, 1.0))],
    "llama-swap": [partial(Swapping, places) for places in (0.25, 0.5, 1.0)],
}
"""What each baseline is tuned over, on the very setting with another seed."""


def pool_scenario(setting: Setting, seconds: float, *, resident: bool = False, urgent: bool = False) -> Scenario:
    """A thousand members, with memory for an eighth of them, whose clients come in bursts.

    Args:
        setting: How members are loaded, and how much arrives.
        seconds: That count.
        resident: Whether there is memory for all of them at every host, and loads take no time.
        urgent: Whether class `high` asks the most popular members only, and steadily.
    """
    names = tuple(f"member-{number:04d}" for number in range(1, _MEMBERS + 1))
    models = tuple(
        SimulatedModel(ModelScheduling(name, 16, 0.1, policy="eager", resident_bytes=_BYTES), _COST, 0)
        for name in names
    )
    places = _MEMBERS if resident else int(_PART * _MEMBERS / _HOSTS)
    load_s = 1e-6 if resident else setting.load_s
    pool = SimulatedPool(
        Pool(_POOL, names, memory_bytes=places * _BYTES, load_s=load_s),
        _HOSTS,
        load_s,
        0.0 if resident else 0.15,
        1.0 if resident else 1.3,
    )
    share = {Priority.NORMAL: 0.7, Priority.LOW: 0.3} if urgent else _SHARE
    bursts = Stream(
        "mmpp",
        _POOL,
        rate=setting.rate,
        surge=20.0,
        surge_s=2.0,
        quiet_s=30.0,
        share=share,
        timeouts_s=_TIMEOUTS_S,
        timeout_s=_TIMEOUTS_S[Priority.NORMAL],
    )
    steady = [
        Stream("poisson", name, Priority.HIGH, _URGENT_PER_S / _URGENT, _TIMEOUTS_S[Priority.HIGH])
        for name in names[:_URGENT]
        if urgent
    ]
    return Scenario(
        f"pool, {setting.load}, {setting.rate:g}/s",
        models,
        (bursts, *steady),
        seconds + _WARM_UP_S,
        classes(),
        pools=(pool,),
        overheads=OVERHEADS,
        noise=NOISE,
        warm_up_s=_WARM_UP_S,
    )


def tune(setting: Setting, baseline: str, seconds: float, seed: int) -> int:
    """The place of the settings of a baseline with the most answers in time."""
    scenario = pool_scenario(setting, seconds)
    arrivals = generate(scenario, seed)
    found = [simulate(scenario, make, seed, arrivals=arrivals).goodput for make in GRIDS[baseline]]
    return found.index(max(found))


def measure(setting: Setting, system: str, place: int, seconds: float, seed: int) -> Result:
    """Simulate one system; its models and their series are left out."""
    make_system: MakeSystem = GRIDS[system][place] if system in GRIDS else ServeApp
    scenario = pool_scenario(setting, seconds, resident=system == RESIDENT)
    return replace(simulate(scenario, make_system, seed, name=system), models={})


def bound(setting: Setting, seconds: float, seed: int) -> float:
    """The most requests that anybody could answer in time, as a part of those offered."""
    scenario = pool_scenario(setting, seconds)
    arrivals = generate(scenario, seed)
    offered = int((arrivals.arrival >= scenario.warm_up_s).sum())
    return loading_bound(scenario, arrivals) / offered


def urgent_p99(setting: Setting, resident: bool, seconds: float, seed: int) -> float:
    """The 99th percentile of class `high`, which asks members that stay resident, seconds."""
    result = simulate(pool_scenario(setting, seconds, resident=resident, urgent=True), ServeApp, seed)
    return result.classes["high"].p99_s or 0.0


def run(load: str, lab: Laboratory) -> Experiment:
    """One part of `SETTINGS`: the members that are loaded from there."""
    settings = [setting for setting in SETTINGS if setting.load == load]
    seconds = lab.seconds(8)
    baselines = tuple(GRIDS)
    tuning = [(setting, name, lab.seconds(_TUNED_S), lab.tuning_seeds[0]) for setting in settings for name in baselines]
    chosen = dict(zip([each[:2] for each in tuning], lab.call(tune, tuning, "tuning"), strict=True))
    systems = (OURS, *baselines, RESIDENT)
    keys = [(setting, name) for setting in settings for name in systems]
    runs = [(*key, chosen.get(key, 0), seconds, seed) for key in keys for seed in lab.seeds]
    done = iter(lab.call(measure, runs, "simulating"))
    results = {key: [next(done) for _ in lab.seeds] for key in keys}
    bounds_of = iter(lab.call(bound, [(each, seconds, seed) for each in settings for seed in lab.seeds], "bounds"))
    bounds = {setting: [next(bounds_of) for _ in lab.seeds] for setting in settings}
    urgent_settings = settings[:1]
    pairs = [
        (each, resident, seconds, seed) for each in urgent_settings for resident in (False, True) for seed in lab.seeds
    ]
    p99 = iter(lab.call(urgent_p99, pairs, "class high"))
    tails = {(each, resident): [next(p99) for _ in lab.seeds] for each in urgent_settings for resident in (False, True)}

    def of(setting: Setting, system: str) -> Estimate:
        return estimate([result.attainment for result in results[setting, system]])

    def ratio(setting: Setting, other: Sequence[float]) -> Estimate:
        return estimate([one.attainment / most for one, most in zip(results[setting, OURS], other, strict=True)])

    def gain(setting: Setting, *, weighted: bool) -> Estimate:
        both = zip(results[setting, OURS], results[setting, "modelmesh"], strict=True)
        if weighted:
            return estimate([one.weighted_goodput / other.weighted_goodput for one, other in both])
        return estimate([one.goodput / other.goodput for one, other in both])

    possible = {
        setting: estimate(
            [most / one.attainment for most, one in zip(bounds[setting], results[setting, "modelmesh"], strict=True)]
        )
        for setting in settings
    }
    of_bound = {setting: ratio(setting, bounds[setting]) for setting in settings}
    gains = {setting: gain(setting, weighted=False) for setting in settings}
    weighted = {setting: gain(setting, weighted=True) for setting in settings}
    slower = {
        each: estimate([one / two for one, two in zip(tails[each, False], tails[each, True], strict=True)])
        for each in urgent_settings
    }
    title = f"many models, loaded from {load}"
    worst = min(of_bound.values(), key=_mean)
    largest = max(gains.values(), key=_mean)
    return Experiment(
        _NAMES[load],
        f"Many models, loaded from {load}: {settings[0].load_s * 1e3:g} ms",
        f"{_MEMBERS:,} models of 8 MB at {_HOSTS} hosts that have memory for {_PART:.0%} of them in sum; popularity by "
        "Zipf's law with exponent 1, each with bursts of its own (20 times the rate for 2 s on average, 30 s between); "
        f"classes high, normal and low ({', '.join(f'{part:.0%}' for part in _SHARE.values())}) with deadlines of "
        f"{', '.join(f'{timeout:g}' for timeout in _TIMEOUTS_S.values())} s. A batch takes 4 ms and 1 ms per row. A "
        "host loads one model at a time, and what runs there meanwhile takes 1.3 times as long. The bound is that of "
        "an omniscient planner; `all resident` is this scheduler with memory for all.",
        [
            Finding(title, "goodput at least 0.85 of the bound", f"at least {times(worst)}", worst.mean >= 0.85),
            Finding(
                title,
                "goodput at least 1.5 times that of LRU and FIFO (ModelMesh)",
                f"at most {times(largest)}",
                largest.mean >= 1.5,
            ),
            Finding(
                title,
                "(no aim) weighted goodput over that of LRU and FIFO",
                f"{times(min(weighted.values(), key=_mean))} to {times(max(weighted.values(), key=_mean))}",
                None,
            ),
            *(
                Finding(
                    title,
                    "p99 of `high` for resident members at most 1.2 times that without loads",
                    times(slower[each]),
                    slower[each].mean <= 1.2,
                )
                for each in urgent_settings
            ),
            Finding(
                title,
                "(no aim) the bound over that of LRU and FIFO: what nobody could exceed",
                f"at most {times(max(possible.values(), key=_mean))}",
                None,
            ),
        ],
        [
            Table(
                [
                    *("load", "requests/s", "system", "in time", "of the bound"),
                    *("high", "normal", "low", "hits", "loads/s", "thrash/s"),
                ],
                [
                    [
                        setting.load,
                        f"{setting.rate:g}",
                        system,
                        percent(of(setting, system)),
                        times(of_bound[setting]) if system == OURS else "",
                        *(_of_class(results[setting, system], label) for label in ("high", "normal", "low")),
                        *_usage(results[setting, system]),
                    ]
                    for setting, system in keys
                ],
            ),
            Table(
                ["load", "requests/s", "p99 of high with loads, ms", "without, ms", "ratio"],
                [
                    [
                        each.load,
                        f"{each.rate:g} + {_URGENT_PER_S:g}",
                        *(
                            plain(estimate([1e3 * value for value in tails[each, resident]]))
                            for resident in (False, True)
                        ),
                        times(slower[each]),
                    ]
                    for each in urgent_settings
                ],
            ),
        ],
        {
            "": lines(
                [
                    (
                        f"Loads from {load}: {settings[0].load_s * 1e3:g} ms",
                        "% in time",
                        100.0,
                        {
                            **{system: [(each.rate, of(each, system)) for each in settings] for system in systems},
                            BOUND: [(each.rate, estimate(bounds[each])) for each in settings],
                        },
                    )
                ],
                "requests per second",
            )
        },
        {
            f"{setting.load}, {setting.rate:g}/s": {
                "bound": as_values(estimate(bounds[setting])),
                "of_bound": as_values(of_bound[setting]),
                "possible_over_modelmesh": as_values(possible[setting]),
                "over_modelmesh": as_values(gains[setting]),
                "weighted_over_modelmesh": as_values(weighted[setting]),
                "settings": {name: _told(GRIDS[name][chosen[setting, name]]) for name in baselines},
                **{system: as_values(of(setting, system)) for system in systems},
            }
            for setting in settings
        },
    )


def _mean(value: Estimate) -> float:
    return value.mean


def _of_class(results: Sequence[Result], label: str) -> str:
    return percent(estimate([result.classes[label].attainment for result in results]))


def _usage(results: Sequence[Result]) -> tuple[str, str, str]:
    """Part of requests that found their model resident; loads, and those in vain, per second."""
    used = [(result.pools[_POOL], result.duration_s) for result in results]
    return (
        percent(estimate([usage.hits / max(1, usage.hits + usage.misses) for usage, _ in used])),
        plain(estimate([usage.loads / seconds for usage, seconds in used])),
        plain(estimate([usage.thrash / seconds for usage, seconds in used])),
    )


def _told(make_system: MakeSystem) -> str:
    assert isinstance(make_system, partial)
    given = [f"{value:g}" for value in make_system.args]
    return ", ".join([*given, *(f"{name} {value}" for name, value in make_system.keywords.items())])
