"""The simulator beside the real server, under the same arrivals: ``python -m benchmarks.calibration``.

Writes ``calibration.json``, ``calibration.md`` and ``calibration.svg``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from benchmarks.calibration_cases import Case, Load, cases, routed_cases
from benchmarks.calibration_measure import Around, measure_around, measure_profile, observe
from benchmarks.calibration_predict import predict, scenario_of
from benchmarks.calibration_report import draw, render
from benchmarks.calibration_results import Measured, Report, Run, disturbed
from benchmarks.calibration_server import Cores, PinnedServer, with_routers
from benchmarks.failure import BenchmarkError
from benchmarks.machine import Machine
from benchmarks.niceness import go_first
from benchmarks.open_loop_workload import Workload
from benchmarks.publishing import folders, write_report
from benchmarks.server import ROOT
from benchmarks.session import ending_in_order, measuring, steps
from serve_app.config.file import ServeFile, load_file
from serve_app.config.profile import Profile
from serve_app_simulator.measured_curve import MeasuredCurve
from serve_app_simulator.workloads import generate

_CONFIG = ROOT / "benchmarks" / "calibration.yaml"
_ROWS = {"wide": 32, "minilm": 8}
_BUCKETS = {"minilm": 16}
_ROUTERS = (1, 2)
_MOST_AGAIN = 2


def calibrate(
    seconds: float,
    repetitions: int,
    models: Sequence[str],
    machine: Machine,
    progress: Progress,
    *,
    routers_only: bool = False,
) -> Report:
    """Measure, serve and simulate.

    Every repetition measures every model's profile and overheads again, and then serves every workload once, with
    arrivals of its own. Servers with one and with two routers take turns, with the workloads for routers of the last
    model: its requests are small, so that a router, which shares a core with the generator, is not what is measured.

    Args:
        seconds: Length of a workload.
        repetitions: How often.
        models: Which of the configuration's.
        machine: For the report.
        progress: Shows how far it is.
        routers_only: Leave out the workloads behind Serve's proxy.

    Raises:
        BenchmarkError: The server or the load generator failed.
        ConfigError: The configuration is not valid or a model is not there.
    """
    file, cores = load_file(_CONFIG), Cores.choose()
    os.sched_setaffinity(0, {cores.rest})  # the models' core is for the models
    loads = [
        Load(name, _ROWS[name], _BUCKETS.get(name, 0), file.args.model_scheduling()[name].max_rows) for name in models
    ]
    shape_s, around_s = min(1.0, seconds / 30), max(3.0, seconds / 5)
    task = progress.add_task("starting the server", total=None)
    plan: dict[tuple[int, str], list[Case]] = {}
    runs: list[Run] = []
    measured: list[Measured] = []

    def serve(server: PinnedServer, repetition: int, routers: int, asked: Sequence[Load]) -> None:
        server.wait_ready()
        for load in asked:
            progress.update(task, description=f"measuring {load.model}")
            profile = measure_profile(_CONFIG, load, cores, shape_s)
            around = measure_around(server, load, profile, cores, around_s)
            measured.append(Measured.of(load, repetition, profile, around, routers))
            progress.console.print(measured[-1].line(), highlight=False, soft_wrap=True)
            curve = MeasuredCurve.of(profile)
            # The first repetition's profile sets the rates of all, and of all numbers of routers.
            if (routers, load.model) not in plan:
                plan[0, load.model] = plan.get((0, load.model)) or cases(load, curve, seconds)
                for count in _ROUTERS:
                    plan[count, load.model] = routed_cases(load, curve, seconds, count)
            for case in plan[routers, load.model]:
                progress.update(task, description=case.title)
                run = _run(server, case, file, profile, around, repetition, cores)
                runs.append(run)
                progress.console.print(run.line(), highlight=False, soft_wrap=True)

    for repetition in range(repetitions):
        if not routers_only:
            with PinnedServer("calibration", file.document, cores) as server:
                serve(server, repetition, 0, loads)
        for routers in _ROUTERS:
            with PinnedServer("calibration", with_routers(file.document, routers), cores) as server:
                serve(server, repetition, routers, loads[-1:])
    return Report(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine,
        seconds=seconds,
        repetitions=repetitions,
        network_s=file.args.process_limits().network_s,
        measured=tuple(measured),
        runs=tuple(runs),
    )


def _run(
    server: PinnedServer,
    case: Case,
    file: ServeFile,
    profile: Profile,
    around: Around,
    repetition: int,
    cores: Cores,
) -> Run:
    arrivals = generate(scenario_of(case, file, profile, around), repetition)
    again = 0
    while disturbed(observed := observe(server, case, Workload.of(arrivals), MeasuredCurve.of(profile), cores), case):
        if again == _MOST_AGAIN:
            break
        again += 1
    # The server is idle again; a simulation takes less time than what it simulates.
    predicted = predict(case, file, profile, around, arrivals, repetition, observed.slowdown)
    return Run(case, repetition, observed, predicted, again)


def main(
    seconds: Annotated[float, typer.Option(min=5, help="Length of each workload.")] = 30.0,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs of each workload, each with its own arrivals.")] = 3,
    model: Annotated[list[str] | None, typer.Option(help="Only this model; may be given several times.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One repetition of 10 s; published nowhere.")] = False,
    routers_only: Annotated[bool, typer.Option("--routers-only", help="Only one router beside two.")] = False,
    publish: Annotated[bool, typer.Option(help="Write the report into docs/benchmarks too.")] = True,
) -> None:
    """Put the same arrivals to the real server and to the simulator, and compare what becomes of them."""
    console = Console()
    if unknown := sorted(set(model or ()) - set(_ROWS)):
        raise typer.BadParameter(f"no model {unknown[0]!r}; there are: {', '.join(_ROWS)}")
    with ending_in_order(console), measuring(console) as machine:
        go_first()
        with steps(console) as progress:
            chosen = (10.0, 1) if quick else (seconds, repetitions)
            report = calibrate(
                *chosen, list(dict.fromkeys(model or _ROWS)), machine, progress, routers_only=routers_only
            )
        unsound = report.unsound()
        published = publish and not quick and not model and not routers_only and not unsound
        for folder in folders(publish=published):
            write_report(folder, "calibration", report, render(report, "calibration.svg"))
            draw(report, folder / "calibration.svg")
        console.print(f"report: {folder.relative_to(ROOT)}/calibration.md")
        if unsound:
            raise BenchmarkError(f"these figures are worth nothing, and are not published: {unsound}")


if __name__ == "__main__":
    typer.run(main)
