"""Which scenarios are possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from math import isfinite

from serve_app.domain.priority import Priority
from serve_app.errors import ConfigError
from serve_app_simulator.scenario import Scenario, SimulatedModel, SimulatedPool, Stream


def check(scenario: Scenario) -> None:
    """Raise ConfigError, with one line per fault that names the field, for a scenario that cannot be simulated."""
    problems = tuple(f"scenario {scenario.name}: {problem}" for problem in _problems(scenario))
    if problems:
        raise ConfigError(problems)


def _problems(scenario: Scenario) -> Iterator[str]:
    names = [model.scheduling.name for model in scenario.models]
    members = [name for pool in scenario.pools for name in pool.scheduling.models]
    devices = [device.name for device in scenario.devices]
    if not scenario.models:
        yield "models: there must be at least one"
    for kind, listed in (("models", names), ("devices", devices)):
        for twice in sorted({name for name in listed if listed.count(name) > 1}):
            yield f"{kind}: {twice!r} is there more than once"
    if not (isfinite(scenario.duration_s) and scenario.duration_s > 0.0):
        yield f"duration_s: must be above 0, got {scenario.duration_s:g}"
    if not 0.0 <= scenario.warm_up_s < scenario.duration_s:
        yield f"warm_up_s: must be from 0 to below the duration, got {scenario.warm_up_s:g}"
    if scenario.routers < 1:
        yield f"routers: must be at least 1, got {scenario.routers}"
    for priority in Priority:
        if priority not in scenario.classes:
            yield f"classes: {priority.label} is missing"
        if priority not in scenario.weights:
            yield f"weights: {priority.label} is missing"
    for device in scenario.devices:
        if device.concurrency < 1:
            yield f"devices.{device.name}.concurrency: must be at least 1, got {device.concurrency}"
        if not 0.0 <= device.interference < 1.0:
            yield f"devices.{device.name}.interference: must be from 0 to below 1, got {device.interference:g}"
    yield from _room_problems(scenario)
    for model in scenario.models:
        yield from _model_problems(model, devices, in_pool=model.scheduling.name in set(members))
    for pool in scenario.pools:
        yield from _pool_problems(pool, scenario)
    for twice in sorted({name for name in members if members.count(name) > 1} if len(scenario.pools) > 1 else ()):
        yield f"pools: {twice!r} is in more than one"
    if scenario.pools and scenario.routers > 1:
        yield f"routers: pools need a single router, which decides what is loaded; got {scenario.routers}"
    pools = [pool.scheduling.name for pool in scenario.pools]
    for place, stream in enumerate(scenario.workload):
        for problem in _stream_problems(stream, names, pools):
            yield f"workload[{place}].{problem}"
    for place, failure in enumerate(scenario.failures):
        if failure.model in members:
            yield f"failures[{place}].model: {failure.model!r} is in a pool, whose hosts do not fail"
        elif failure.model not in names:
            yield f"failures[{place}].model: unknown model {failure.model!r}; there are: {', '.join(names)}"
        if not 0.0 < failure.share <= 1.0:
            yield f"failures[{place}].share: must be over 0 and at most 1, got {failure.share:g}"
        for field in ("replica", "at_s", "down_s", "noticed_s", "lasts_s"):
            if not getattr(failure, field) >= 0:
                yield f"failures[{place}].{field}: must be at least 0, got {getattr(failure, field)}"
    noise = scenario.noise
    stalls = ("stall_every_s", "stall_s", "router_stall_every_s", "router_stall_s")
    for field in ("spread", *stalls, "drift_every_s", "drift_s"):
        if not getattr(noise, field) >= 0.0:
            yield f"noise.{field}: must be at least 0, got {getattr(noise, field):g}"
    if noise.kind == "uniform" and noise.spread >= 1.0:
        yield f"noise.spread: must be below 1 for uniform noise, got {noise.spread:g}"
    if noise.drift_every_s > 0.0 and not noise.drift > 0.0:
        yield f"noise.drift: must be above 0, got {noise.drift:g}"
    for each in fields(scenario.overheads):
        if not getattr(scenario.overheads, each.name) >= 0.0:
            yield f"overheads.{each.name}: must be at least 0, got {getattr(scenario.overheads, each.name):g}"


def _pool_problems(pool: SimulatedPool, scenario: Scenario) -> Iterator[str]:
    where, members = f"pools.{pool.scheduling.name}", set(pool.scheduling.models)
    if not members:
        yield f"{where}.models: there must be at least one"
    if pool.hosts < 1:
        yield f"{where}.hosts: must be at least 1, got {pool.hosts}"
    if not pool.load_s > 0.0:
        yield f"{where}.load_s: must be above 0, got {pool.load_s:g}"
    if not pool.load_spread >= 0.0:
        yield f"{where}.load_spread: must be at least 0, got {pool.load_spread:g}"
    if not pool.slowdown >= 1.0:
        yield f"{where}.slowdown: must be at least 1, got {pool.slowdown:g}"
    found = [model for model in scenario.models if model.scheduling.name in members]
    for name in sorted(members - {model.scheduling.name for model in found}):
        yield f"{where}.models: unknown model {name!r}"
    for model in found:
        if not 0 < model.scheduling.resident_bytes <= pool.scheduling.memory_bytes:
            yield (
                f"models.{model.scheduling.name}.resident_bytes: must be above 0 and at most the memory of a host, got"
                f" {model.scheduling.resident_bytes}"
            )
        if model.replicas or model.device is not None or model.autoscaling is not None:
            yield f"models.{model.scheduling.name}: a member of a pool has no replicas, device or autoscaling"


def _model_problems(model: SimulatedModel, devices: list[str], *, in_pool: bool) -> Iterator[str]:
    where = f"models.{model.scheduling.name}"
    if model.device is not None and model.device not in devices:
        yield f"{where}.device: unknown device {model.device!r}; there are: {', '.join(devices) or 'none'}"
    if model.replicas < 0 or (model.replicas == 0 and model.autoscaling is None and not in_pool):
        yield f"{where}.replicas: must be at least 1, or 0 with autoscaling; got {model.replicas}"
    if not model.startup_s >= 0.0:
        yield f"{where}.startup_s: must be at least 0, got {model.startup_s:g}"
    if model.scheduling.max_rows < 1:
        yield f"{where}.max_rows: must be at least 1, got {model.scheduling.max_rows}"
    for rows in (1, max(1, model.scheduling.max_rows)):
        seconds = model.curve(rows, 0)
        if not (isfinite(seconds) and seconds > 0.0):
            yield f"{where}.curve: a batch of {rows} rows must take more than 0 s, got {seconds:g}"
    scaling = model.autoscaling
    if scaling is not None:
        if not 0 <= scaling.min_replicas <= scaling.max_replicas or scaling.max_replicas < 1:
            yield f"{where}.autoscaling: needs 0 <= min_replicas <= max_replicas, and 1 <= max_replicas"
        if scaling.target_rows is not None and not scaling.target_rows > 0.0:
            yield f"{where}.autoscaling.target_rows: must be above 0, got {scaling.target_rows:g}"
        if not scaling.interval_s > 0.0:
            yield f"{where}.autoscaling.interval_s: must be above 0, got {scaling.interval_s:g}"
    for resource, amount in model.needs.items():
        if not amount > 0.0:
            yield f"{where}.needs.{resource}: must be above 0, got {amount:g}"


def _room_problems(scenario: Scenario) -> Iterator[str]:
    for resource, amount in scenario.room.items():
        fewest = sum(
            [
                model.needs.get(resource, 0.0)
                * (model.replicas if model.autoscaling is None else max(model.replicas, model.autoscaling.min_replicas))
                for model in scenario.models
            ]
        )
        if not fewest <= amount:
            yield f"room.{resource}: the first replicas of all models need {fewest:g}, and there are {amount:g}"
    intervals = {model.autoscaling.interval_s for model in scenario.models if model.autoscaling is not None}
    if scenario.room and len(intervals) > 1:
        yield "models.autoscaling.interval_s: must be the same for all models that share room"


def _stream_problems(stream: Stream, models: list[str], pools: list[str]) -> Iterator[str]:
    if stream.kind in {"trace", "long_tail"}:
        if stream.kind == "trace" and not stream.path:
            yield "path: a trace needs a file"
    elif stream.model not in models and stream.model not in pools:
        yield f"model: unknown model {stream.model!r}; there are: {', '.join(models)}"
    if stream.kind == "video" and stream.model in pools:
        yield f"model: frames are of one model, and {stream.model!r} is a pool"
    if stream.kind == "trace":
        return
    positive = ["timeout_s", "rows"]
    positive += {
        "video": ["streams", "fps"],
        "gamma": ["rate", "cv"],
        "flash_crowd": ["rate", "surge"],
        "mmpp": ["rate", "surge", "surge_s", "quiet_s"],
    }.get(stream.kind, ["rate"])
    for field in positive:
        value = getattr(stream, field)
        if not (isfinite(value) and value > 0):
            yield f"{field}: must be above 0, got {value}"
    if not 0.0 <= stream.jitter <= 1.0:
        yield f"jitter: must be from 0 to 1, got {stream.jitter:g}"
    if not stream.start_s >= 0.0:
        yield f"start_s: must be at least 0, got {stream.start_s:g}"
    if stream.share and abs(sum(stream.share.values()) - 1.0) > 1e-6:
        yield f"share: must be 1 in sum, got {sum(stream.share.values()):g}"
    for field in ("share", "timeouts_s"):
        for priority, value in getattr(stream, field).items():
            if not value >= 0.0 or (field == "timeouts_s" and value == 0.0):
                yield f"{field}.{priority.label}: must be above 0, got {value:g}"
