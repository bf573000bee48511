"""The scenarios that a file stands for: one, or one per value of its sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from serve_app.config.problems import place
from serve_app.domain.priority import Priority
from serve_app.errors import ConfigError
from serve_app_simulator.scenario import Noise, Scenario, SimulatedModel, Stream
from serve_app_simulator.scenarios.costs import capacity, loads, unit_rate
from serve_app_simulator.scenarios.file import ScenarioFile
from serve_app_simulator.scenarios.workload import expected_requests
from serve_app_simulator.trace import read_trace

_MOST_REQUESTS = 20_000_000
_LONGEST_S = 7 * 86_400.0
_TOLERANCE_S = 1e-9


@dataclass(frozen=True, slots=True)
class Case:
    """One scenario of a file.

    Attributes:
        scenario: What is simulated.
        value: Value of the number that is swept; ``None`` without a sweep.
        loads: Load of each model outside pools, without surges and traces.
        capacities: Rows per second of each model that are a load of 1. Members of pools have none.
    """

    scenario: Scenario
    value: float | None
    loads: dict[str, float]
    capacities: dict[str, float]


def make_cases(file: ScenarioFile, models: tuple[SimulatedModel, ...], noise: Noise, folder: Path) -> tuple[Case, ...]:
    """The scenarios of a file, with the curves and the noise of its models.

    Raises:
        ConfigError: A deadline is shorter than an execution, or the workload is empty or too large to simulate.
    """
    streams = _streams(file, models, folder)
    problems = list(_trace_problems(file, models, streams))
    values = (None,) if file.sweep is None else file.sweep.values
    cases: list[Case] = []
    for value in values:
        scenario = _swept(_scenario(file, models, noise, streams), "" if file.sweep is None else file.sweep.key, value)
        problems += _deadline_problems(file, scenario)
        problems += _size_problems(file, scenario)
        if not problems and file.requests is not None:
            scenario = replace(scenario, duration_s=_duration_s(scenario.workload, file.requests))
            problems += _warm_up_problems(scenario)
        if problems:
            raise ConfigError(tuple(problems))
        capacities = {model.scheduling.name: capacity(model) for model in scenario.models if model.replicas}
        cases.append(Case(scenario, value, loads(scenario.models, scenario.workload), capacities))
    return tuple(cases)


def _streams(file: ScenarioFile, models: Sequence[SimulatedModel], folder: Path) -> tuple[Stream, ...]:
    timeouts = {priority: limits.timeout_ms / 1000 for priority, limits in file.classes.by_priority().items()}
    single = {model.name for model in file.models}
    streams: list[Stream] = []
    for config in file.workload:
        asked, exponent = config.model_name, getattr(config, "exponent", None) or 0.0
        in_pool = bool(file.pools) and asked not in single  # its rate is told
        rate = 0.0 if in_pool else unit_rate(models, asked, exponent, getattr(config, "rows", 1))
        streams.append(config.stream(folder, timeouts, rate))
    return tuple(streams)


def _scenario(
    file: ScenarioFile, models: tuple[SimulatedModel, ...], noise: Noise, streams: tuple[Stream, ...]
) -> Scenario:
    return Scenario(
        name=file.name,
        models=models,
        workload=streams,
        duration_s=0.0 if file.duration_s is None else file.duration_s,
        classes={priority: limits.settings() for priority, limits in file.classes.by_priority().items()},
        pools=tuple(pool.simulated() for pool in file.pools),
        devices=tuple(device.simulated() for device in file.devices),
        room=file.room.amounts(),
        routers=file.routers,
        overheads=file.overheads.simulated(),
        noise=noise,
        failures=tuple(failure.simulated() for failure in file.failures),
        warm_up_s=file.warm_up_s,
        weights=file.weights.by_priority(),
    )


def _swept(scenario: Scenario, key: str, value: float | None) -> Scenario:
    """The scenario with one number changed."""
    if value is None:
        return scenario
    match key:
        case "load" | "rate":
            rates = [each.rate for each in scenario.workload]
            unit = max(loads(scenario.models, scenario.workload).values()) if key == "load" else sum(rates)
            factor = value / unit
            return replace(
                scenario, workload=tuple(replace(each, rate=each.rate * factor) for each in scenario.workload)
            )
        case "streams":
            return replace(
                scenario,
                workload=tuple(
                    replace(each, streams=int(value)) if each.kind == "video" else each for each in scenario.workload
                ),
            )
        case "noise":
            return replace(scenario, noise=replace(scenario.noise, spread=value))
        case "memory":
            return replace(
                scenario,
                pools=tuple(
                    replace(pool, scheduling=replace(pool.scheduling, memory_bytes=int(value)))
                    for pool in scenario.pools
                ),
            )
        case _:
            return _with_slo_scale(scenario, value)


def _with_slo_scale(scenario: Scenario, scale: float) -> Scenario:
    curves = {model.scheduling.name: model.curve for model in scenario.models}
    slowest = max(curves.values(), key=lambda curve: curve(1, 0))

    def scaled(stream: Stream) -> Stream:
        timeout_s = scale * curves.get(stream.model, slowest)(stream.rows, stream.bucket)
        return replace(stream, timeout_s=timeout_s, timeouts_s=dict.fromkeys(stream.timeouts_s, timeout_s))

    models = tuple(
        replace(model, scheduling=replace(model.scheduling, slo_s=scale * model.curve(1, 0)))
        for model in scenario.models
    )
    return replace(scenario, models=models, workload=tuple(scaled(each) for each in scenario.workload))


def _trace_problems(file: ScenarioFile, models: Sequence[SimulatedModel], streams: Sequence[Stream]) -> Iterator[str]:
    names = [model.scheduling.name for model in models]
    for number, stream in enumerate(streams):
        if stream.kind != "trace":
            continue
        where = place(("workload", number, "path"))
        try:
            trace = read_trace(stream.path, names)
        except ConfigError as error:
            yield from (f"{where}: {problem}" for problem in error.problems)
            continue
        first_s = stream.start_s + float(trace.arrival[0])
        if file.duration_s is not None and first_s >= file.duration_s:
            yield f"{where}: its first request arrives at {first_s:g} s, after duration_s {file.duration_s:g}"


def _deadline_problems(file: ScenarioFile, scenario: Scenario) -> Iterator[str]:
    """Deadlines that not even an idle system could meet."""
    pools = {pool.scheduling.name: set(pool.scheduling.models) for pool in scenario.pools}
    overhead_s = scenario.overheads.request_s + scenario.overheads.send_s + scenario.overheads.answer_s
    for number, stream in enumerate(scenario.workload):
        where = place(("workload", number, "timeout_ms"))
        if file.sweep is not None and file.sweep.key == "slo_scale":
            where = "sweep.slo_scale"
        names = pools.get(stream.model, {stream.model})
        asked = [model for model in scenario.models if not stream.model or model.scheduling.name in names]
        if stream.model in pools:  # for all of them together
            asked = [max(asked, key=lambda model: model.curve(stream.rows, stream.bucket))]
        if stream.kind == "trace":
            continue
        timeouts: dict[Priority, float] = dict(stream.timeouts_s) or {stream.priority: stream.timeout_s}
        for model in asked:
            best_s = overhead_s + model.curve(stream.rows, stream.bucket)
            for priority, timeout_s in timeouts.items():
                if timeout_s < best_s:
                    yield (
                        f"{where}: {timeout_s * 1000:.4g} ms for class"
                        f" {priority.label} is less than one request of {model.scheduling.name!r} takes alone,"
                        f" {best_s * 1000:.4g} ms with overheads"
                    )


def _size_problems(file: ScenarioFile, scenario: Scenario) -> Iterator[str]:
    if file.requests is not None:
        if any(stream.kind == "trace" for stream in scenario.workload):
            yield "requests: a trace has no rate; use duration_s"
        elif expected_requests(scenario.workload, _LONGEST_S) < file.requests:
            yield f"requests: the streams end before {file.requests} requests have arrived"
        expected = float(file.requests)
    else:
        expected = expected_requests(scenario.workload, scenario.duration_s)
    if expected > _MOST_REQUESTS:
        key = "duration_s" if file.requests is None else "requests"
        yield (
            f"{key}: about {expected:,.0f} requests would arrive, more than the {_MOST_REQUESTS:,} that are simulated:"
            f" shorten it or lower the rates"
        )


def _duration_s(streams: Sequence[Stream], requests: int) -> float:
    """When that many requests have arrived on average, by bisection: the mean count never falls."""
    low, high = 0.0, _LONGEST_S
    while high - low > _TOLERANCE_S * max(1.0, high):
        middle = (low + high) / 2
        low, high = (low, middle) if expected_requests(streams, middle) >= requests else (middle, high)
    return high


def _warm_up_problems(scenario: Scenario) -> Iterator[str]:
    if scenario.warm_up_s >= scenario.duration_s:
        yield f"warm_up_s: must be less than the {scenario.duration_s:.4g} s that the requests take to arrive"
