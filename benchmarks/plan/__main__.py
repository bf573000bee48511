"""What ``serve-app plan`` expects, beside the real server, in random cases: ``python -m benchmarks.plan``.

Writes ``plan.json``, ``plan.md`` and ``plan.svg``. The planner is asked before each run, and is given no more than a
user has: the configuration, profiles measured before the configuration's server started, and the demand.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console

from benchmarks.calibration_cases import Load
from benchmarks.calibration_measure import measure_profile, slowdown
from benchmarks.calibration_server import Cores, PinnedServer
from benchmarks.groups import observed_groups
from benchmarks.niceness import go_first
from benchmarks.open_loop import send_apart
from benchmarks.open_loop_workload import Workload
from benchmarks.plan.cases import BUCKETS, CONFIGURATIONS, Case, Configuration, draw_cases
from benchmarks.plan.fit import fitted
from benchmarks.plan.report import Figure, Report, Run, draw, render
from benchmarks.publishing import now, publish_report
from benchmarks.server import OUT, ROOT
from benchmarks.session import ending_in_order, measuring
from serve_app.config.file import ServeFile, load_file, read_document
from serve_app.config.profile import Profile
from serve_app_simulator.measured_curve import MeasuredCurve
from serve_app_simulator.plan.command import make_setup
from serve_app_simulator.plan.demand import Demanded, Sources, read_demand
from serve_app_simulator.plan.devices import Devices
from serve_app_simulator.plan.expectation import Expectation, expect
from serve_app_simulator.plan.uncertainty import DRAWS
from serve_app_simulator.scenario import Curve
from serve_app_simulator.workloads import Arrivals

_FILE = Path(__file__).parent / "server.yaml"
_FOLDER = OUT / "plan"
_DEVICES = Devices(cores=2, memory=8 << 30)
"""One of two cores is for the models, as the server is tied."""
_SHAPE_S = 0.5
_LATE = 0.5
"""Of the tightest deadline: a run in which the generator was later (99th percentile) is made once again."""


def measure(
    configuration: Configuration,
    numbers: Sequence[int],
    seed: int,
    seconds: float,
    cores: Cores,
    tell: Callable[[str], None],
) -> list[Run]:
    """Profile the models, start the server, and run the cases of a configuration.

    Raises:
        BenchmarkError: The server or the load generator failed.
        ConfigError: The configuration is not valid or a model is not there.
    """
    document = configuration.document(read_document(_FILE))
    path = _FOLDER / f"{CONFIGURATIONS.index(configuration)}.yaml"
    profiles: dict[str, Profile] = {}
    for model in document["applications"][0]["args"]["models"]:
        load = Load(model["name"], 1, BUCKETS.get(model["name"], 0), model["batching"]["max_rows"])
        tell(f"profile of {load.model}")
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        profiles[load.model] = measure_profile(path, load, cores, _SHAPE_S)
        profile = _FOLDER / f"{path.stem}-{load.model}.json"
        profiles[load.model].write(profile)
        model["profile"] = str(profile)
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    file = load_file(path)
    curves: dict[str, Curve] = {name: MeasuredCurve.of(profile) for name, profile in profiles.items()}
    rows = {name: settings.max_rows for name, settings in file.args.model_scheduling().items()}
    runs = []
    with PinnedServer("plan", document, cores) as server:
        server.wait_ready()
        for case in draw_cases(configuration, numbers, seed, curves, rows):
            arrivals, expected = ask_planner(case, path, file, seconds)
            runs.append(_run(server, case, curves, arrivals, expected, seconds, cores))
            tell(runs[-1].line())
    return runs


def ask_planner(case: Case, path: Path, file: ServeFile, seconds: float) -> tuple[Arrivals, Expectation]:
    """The arrivals of a case, and what the planner expects of it."""
    models = tuple(stream.model for stream in case.streams)
    setup = make_setup(path, file, Demanded(case.streams, models), _DEVICES, seconds)
    arrivals = setup.arrivals(case.streams, case.seed)
    streams = case.streams
    if case.as_trace:
        trace = _FOLDER / "trace.csv"
        Workload.of(arrivals).write(trace)
        streams = read_demand(Sources(trace=trace), file, _FOLDER).streams
    draws = [setup.arrivals(streams, draw) for draw in range(DRAWS)]
    return arrivals, expect(setup, dict.fromkeys(models, 1), draws, _DEVICES)


def _run(
    server: PinnedServer,
    case: Case,
    curves: Mapping[str, Curve],
    arrivals: Arrivals,
    expected: Expectation,
    seconds: float,
    cores: Cores,
) -> Run:
    workload, models = Workload.of(arrivals), [stream.model for stream in case.streams]
    runs = 0
    while True:
        runs += 1
        before = {model: server.counters(model) for model in models}
        result = send_apart(server.asked_at, workload, _FOLDER, cores.rest_command)
        server.check_alive()
        counted = {model: server.counters(model).since(before[model]) for model in models}
        if runs > 1 or result.late_p99_s <= _LATE * case.tightest_s:
            break
    figures = []
    for model in models:
        groups = observed_groups(workload, result, workload.model == model)
        of_model = [each for each in expected.classes if each.model == model]
        for each in (each for each in of_model if each.label in groups):
            real = groups[each.label]
            figures.append(Figure(model, each.label, real.offered, real.attainment, real.p50_s, real.p99_s, each))
    busy = {model: min(1.0, counted[model].execution_s / seconds) for model in models}
    slower = {
        stream.model: slowdown(counted[stream.model], Load(stream.model, 1, stream.bucket, 1), curves[stream.model])
        for stream in case.streams
    }
    return Run(case, tuple(figures), busy, dict(expected.utilisation), slower, result.late_p99_s, runs > 1)


def main(
    cases: Annotated[int, typer.Option(min=1, help="How many.")] = 40,
    seed: Annotated[
        int, typer.Option(min=1, help="Draws the cases. The constants are fitted to those of seeds 1, 2, 3 and 5.")
    ] = 7,
    seconds: Annotated[float, typer.Option(min=5, help="Length of a run.")] = 16.0,
    only: Annotated[list[int] | None, typer.Option(help="Only this case; may be given several times.")] = None,
    publish: Annotated[bool, typer.Option("--publish", help="Write the report into docs/benchmarks too.")] = False,
) -> None:
    """Ask the planner what becomes of random cases, and put them to the real server."""
    console = Console()

    def tell(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    with ending_in_order(console), measuring(console) as machine:
        go_first()
        _FOLDER.mkdir(parents=True, exist_ok=True)
        cores = Cores.choose()
        os.sched_setaffinity(0, {cores.rest})  # the models' core is for the models
        runs: list[Run] = []
        for place, configuration in enumerate(CONFIGURATIONS):
            numbers = [
                number
                for number in range(1, cases + 1)
                if number % len(CONFIGURATIONS) == place and (not only or number in only)
            ]
            if numbers:
                runs += measure(configuration, numbers, seed, seconds, cores, tell)
        runs.sort(key=lambda run: run.case.number)
        report = Report(now(), machine, seed, seconds, tuple(runs))
        publish_report(
            console, "plan", report, render(report), lambda path: draw(report, path), publish=publish and not only
        )
        for line in fitted(report):
            tell(line)
        tell(f"report: {OUT.relative_to(ROOT)}/plan.md")


if __name__ == "__main__":
    typer.run(main)
