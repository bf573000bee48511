"""The command ``serve-app plan``: reads demand and profiles, and prints and writes a plan."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from serve_app import __version__
from serve_app.config.file import ServeFile
from serve_app.errors import ConfigError
from serve_app_simulator.plan.costs import CUDA, read_costs
from serve_app_simulator.plan.demand import Demanded, Sources, read_demand
from serve_app_simulator.plan.devices import Devices
from serve_app_simulator.plan.document import write_config
from serve_app_simulator.plan.expectation import Setup
from serve_app_simulator.plan.planner import Plan, Tell, make_plan
from serve_app_simulator.plan.search import busiest
from serve_app_simulator.plan.uncertainty import ROUTER_FULL, ROUTER_S, Interval
from serve_app_simulator.scenarios.workload import expected_requests

_INVALID = 2
_USUAL_S = 60.0
_USUAL_REQUESTS = 4000
"""Of a draw, if no time is given: it is shorter where more would arrive."""
_MOST_REQUESTS = 200_000
_LEAST_S, _SHORTEST_S = 1.0, 1e-3
"""Of the time of short traces, and where many requests arrive at once."""
_TABLE_WIDTH = 160


def run(
    config: Path,
    file: ServeFile,
    sources: Sources,
    devices: Devices,
    *,
    target: float = 0.99,
    seconds: float | None = None,
    output: Path | None = None,
    as_json: bool = False,
) -> int:
    """Plan, print tables or JSON, and write a configuration into ``output`` if given.

    Args:
        config: Path of ``file``.
        target: Part of each class that is to be in time, 0 to 1.
        seconds: How long the demand is simulated; see `make_setup`.

    Returns:
        The exit status: 0, or 2 if the input is not valid or the target cannot be held.
    """
    errors = Console(stderr=True)
    if output is not None and not output.parent.is_dir():
        print(f"--output {output}: there is no folder {output.parent}", file=sys.stderr)
        return _INVALID
    try:
        with TemporaryDirectory() as folder:
            demanded = read_demand(sources, file, Path(folder))
            setup = make_setup(config, file, demanded, devices, seconds)
            with _Progress(errors) as tell:
                plan = make_plan(setup, demanded.streams, devices, target, tell)
        if output is not None:
            write_config(output, file, plan, f"Written by `serve-app plan {config.name}` of serve_app {__version__}.")
    except ConfigError as error:
        for problem in error.problems:
            print(f"{config}: {problem}", file=sys.stderr)
        return _INVALID
    if as_json:
        sys.stdout.write(json.dumps(to_json(plan, target), indent=1, allow_nan=False) + "\n")
    else:
        _print_tables(plan, target)
    for problem in plan.problems:
        print(problem, file=sys.stderr)
    if output is not None:
        print(f"wrote {output}", file=sys.stderr)
    return _INVALID if plan.problems else 0


def make_setup(
    config: Path, file: ServeFile, demanded: Demanded, devices: Devices, seconds: float | None = None
) -> Setup:
    """What is simulated: the models that are asked, for some time.

    Args:
        seconds: The time; by default a minute, or less where many requests arrive. Of longer traces it is the busiest
            one, and shorter traces end it if all demand is of them.

    Raises:
        ConfigError: A model has no profile, or one of a device that is not there, or the time does not suit the demand.
    """
    costs = read_costs(file, demanded.models, config)
    if not devices.gpus and (lacking := [model.name for model in costs if model.device == CUDA]):
        message = f"the profile of {', '.join(lacking)} is of a GPU, and there is none"
        raise ConfigError((f"{message}: say --gpus, or profile on the CPU",))
    time_s = _USUAL_S if seconds is None else seconds
    traces = [stream for stream in demanded.streams if stream.kind == "trace"]
    trace_s = demanded.trace_s or 0.0
    if len(traces) == len(demanded.streams):
        time_s = min(time_s, max(_LEAST_S, trace_s * (1 + 1e-9)))
    expected = expected_requests(demanded.streams, time_s)
    if seconds is not None and expected > _MOST_REQUESTS:
        message = f"--seconds {seconds:g}: about {expected:,.0f} requests would arrive"
        raise ConfigError((f"{message}, more than {_MOST_REQUESTS:,}; say less",))
    if seconds is None and expected > _USUAL_REQUESTS:
        time_s *= _USUAL_REQUESTS / expected
    limits = file.args.process_limits()
    setup = Setup(costs, file.args.class_settings(), time_s, limits.network_s, file.args.router.fewest)

    def busiest_time(setup: Setup) -> Setup:
        if trace_s <= setup.duration_s:
            return setup
        whole = replace(setup, duration_s=trace_s * (1 + 1e-9), begin_s=0.0).arrivals(traces, 0)
        return replace(setup, begin_s=busiest(costs, whole, setup.duration_s))

    setup = busiest_time(setup)
    found = setup.arrivals(demanded.streams, 0)
    while seconds is None and len(found) > 2 * _USUAL_REQUESTS and setup.duration_s > _SHORTEST_S:  # of a trace
        shorter_s = max(_SHORTEST_S, setup.duration_s * _USUAL_REQUESTS / len(found))
        setup = busiest_time(replace(setup, duration_s=shorter_s))
        found = setup.arrivals(demanded.streams, 0)
    asked = {found.models[at] for at in set(found.model.tolist())}
    if missing := [name for name in demanded.models if name not in asked]:
        message = f"no request to {', '.join(missing)} arrives within {setup.duration_s:.3g} s"
        raise ConfigError((f"{message}{_from(setup.begin_s)}; say a longer time with --seconds",))
    if file.args.router.replicas == "auto":
        load = len(found) / setup.duration_s * ROUTER_S
        most = devices.nodes * file.args.most_routers(devices.cores)
        setup = replace(setup, routers=max(1, min(most, ceil(load / ROUTER_FULL))))
    for stream in (each for each in demanded.streams if each.kind != "trace"):
        begin_s = max(stream.start_s, stream.surge_at_s if stream.kind == "flash_crowd" else 0.0)
        if begin_s >= setup.duration_s:
            message = f"{setup.duration_s:.3g} s are simulated, and a stream or its surge begins at {begin_s:g} s"
            raise ConfigError((f"{message}; say a longer time with --seconds",))
    return setup


def _from(begin_s: float) -> str:
    return f" from {begin_s:.6g} s of the trace on" if begin_s else ""


def to_json(plan: Plan, target: float) -> dict[str, Any]:
    """A plan as plain values; times in seconds."""

    def interval(given: Interval | None) -> dict[str, float] | None:
        return None if given is None else asdict(given)

    return {
        "target": target,
        "begin_s": plan.begin_s,
        "seconds": plan.duration_s,
        "replicas": dict(plan.replicas),
        "placed": {device: list(models) for device, models in plan.placed.items()},
        "choices": [asdict(choice) for choice in plan.choices],
        "classes": [
            {
                "model": each.model,
                "class": each.label,
                "rate": each.rate,
                "in_time": interval(each.in_time),
                "p50_s": interval(each.p50_s),
                "p99_s": interval(each.p99_s),
            }
            for each in plan.expectation.classes
        ],
        "utilisation": {model: interval(each) for model, each in plan.expectation.utilisation.items()},
        "problems": list(plan.problems),
    }


class _Progress:
    """Shows on a terminal what is simulated, and how often it was."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}, simulation {task.completed}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )

    def __enter__(self) -> Tell:
        self._progress.start()
        task = self._progress.add_task("reading", total=None)

        def tell(what: str) -> None:
            if what:
                self._progress.update(task, description=escape(what), completed=0)
            else:
                self._progress.advance(task)

        return tell

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _print_tables(plan: Plan, target: float) -> None:
    out = Console()
    if not out.is_terminal:
        out = Console(width=_TABLE_WIDTH)
    settings = Table(title="Settings", title_justify="left")
    for name in ("model", "setting", "value", "because"):
        settings.add_column(name, overflow="fold")
    for choice in plan.choices:
        value = "-" if choice.value is None else str(choice.value)
        settings.add_row(escape(choice.model), choice.key, value, escape(choice.because))
    out.print(settings)
    period = f"{plan.duration_s:.3g} s{_from(plan.begin_s)}"
    expected = Table(title=f"Expected over {period}, with 90% intervals", title_justify="left")
    for name in ("model", "class", "requests/s", "in time, %", "p50, ms", "p99, ms", "replicas busy, %"):
        expected.add_column(name, justify="left" if name in {"model", "class"} else "right")
    seen: set[str] = set()
    for each in plan.expectation.classes:
        busy = "" if each.model in seen else _interval(plan.expectation.utilisation[each.model], 100)
        seen.add(each.model)
        cells = (_interval(each.in_time, 100), _interval(each.p50_s, 1000), _interval(each.p99_s, 1000), busy)
        expected.add_row(escape(each.model), each.label, f"{each.rate:.4g}", *cells)
    out.print(expected)
    where = "; ".join(f"{device}: {_counted(names)}" for device, names in plan.placed.items())
    out.print(
        f"Target {target:.1%} of each class in time: {'not held' if plan.problems else 'held'}. {where}.",
        highlight=False,
    )


def _interval(given: Interval | None, unit: float) -> str:
    if given is None:
        return "-"
    low, value, high = (_number(unit * each) for each in (given.low, given.value, given.high))
    return f"{value} ({low} to {high})"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"


def _counted(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
