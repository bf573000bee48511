"""``serve-app simulate``: run a scenario file and report how the systems in it compare."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from serve_app import __version__
from serve_app.errors import ConfigError

if TYPE_CHECKING:
    from serve_app_simulator.report import CaseResults
    from serve_app_simulator.results import Result
    from serve_app_simulator.scenario import Scenario
    from serve_app_simulator.scenarios import Experiment
    from serve_app_simulator.scenarios.systems import SystemConfig

_FAILED = 1
_INVALID = 2
_TABLE_WIDTH = 250
"""Columns of tables that do not go to a terminal, so that no cell is cut."""


def _schema(wanted: bool) -> None:
    if wanted:
        from serve_app_simulator.scenarios import scenario_schema  # noqa: PLC0415 - keeps the other commands quick

        sys.stdout.write(json.dumps(scenario_schema(), indent=2) + "\n")
        raise typer.Exit


def simulate(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="For example configs/scenarios/poisson.yaml.")],
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds, instead of those in the file.", show_default=False)
    ] = None,
    systems: Annotated[
        str | None, typer.Option(help="Only these of the systems in the file, by their labels.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for report.md, results.json and plots.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    processes: Annotated[int, typer.Option(min=1, help="Simulations that run at once.")] = 1,
    schema: Annotated[  # noqa: ARG001 - its callback does it
        bool,
        typer.Option(
            "--schema", help="Print the JSON Schema of scenario files, for editors.", is_eager=True, callback=_schema
        ),
    ] = False,
) -> None:
    """Simulate SCENARIO and compare the systems in it, with the code that serves; exit code 2 if it is not valid."""
    from serve_app_simulator.report import to_json  # noqa: PLC0415
    from serve_app_simulator.scenarios import load_scenario  # noqa: PLC0415 - keeps the other commands quick

    errors = Console(stderr=True)
    try:
        if output is not None:
            _prepare(output)
        experiment = load_scenario(scenario)
        compared = choose_systems(experiment, systems)
        chosen = choose_seeds(experiment, seeds)
        cases = run_experiment(experiment, compared, chosen, processes=processes, console=errors)
    except ConfigError as error:
        for problem in error.problems:
            typer.echo(f"{scenario}: {problem}", err=True)
        raise typer.Exit(_INVALID) from None
    if as_json:
        found = to_json(experiment.file.name, cases, sweep=experiment.sweep)
        sys.stdout.write(json.dumps(found, indent=1, allow_nan=False) + "\n")
    else:
        _print_tables(experiment, cases)
    if output is not None:
        try:
            _write(experiment, cases, scenario, output)
        except OSError as error:
            typer.echo(f"{output}: cannot be written: {error.strerror}", err=True)
            raise typer.Exit(_FAILED) from None
        typer.echo(f"wrote {output / 'report.md'}", err=True)


def choose_systems(experiment: Experiment, names: str | None) -> tuple[SystemConfig, ...]:
    """The systems to compare.

    Args:
        experiment: The scenario file.
        names: Instead of those in the file, names separated by commas. A name that stands in the file, as a name or as
            a label, means all it stands for there; ``serve-app``, that without options.

    Raises:
        ConfigError: There is no such system.
    """
    from serve_app_simulator.scenarios.systems import system_config  # noqa: PLC0415 - keeps the other commands quick

    listed = experiment.file.systems
    if names is None:
        return listed
    chosen: list[SystemConfig] = []
    for name in (part.strip() for part in names.split(",")):
        found = [system for system in listed if name in {system.name, system.title}]
        try:
            chosen += found or [system_config(name)]
        except ValueError as error:
            raise ConfigError((f"--systems: {error}",)) from None
    return tuple({system.title: system for system in chosen}.values())


def choose_seeds(experiment: Experiment, count: int | None) -> tuple[int, ...]:
    """So many seeds: those in the file first, then the smallest that are not among them."""
    listed = experiment.file.seeds
    if count is None:
        return listed
    further = (seed for seed in range(1, count + len(listed) + 1) if seed not in listed)
    return (*listed, *further)[:count]


def run_experiment(
    experiment: Experiment,
    systems: Sequence[SystemConfig],
    seeds: Sequence[int],
    *,
    processes: int = 1,
    console: Console | None = None,
) -> list[CaseResults]:
    """Simulate every system in every case with every seed.

    Args:
        experiment: The scenario file.
        systems: What is compared.
        seeds: One run each.
        processes: Simulations that run at once.
        console: Where progress is shown, if it is a terminal; by default nowhere.

    Raises:
        ConfigError: The simulator refuses the scenario.
    """
    from serve_app_simulator.report import CaseResults, surges, swept  # noqa: PLC0415 - keeps the other commands quick
    from serve_app_simulator.run import simulate_many  # noqa: PLC0415

    made = {system.title: system.make() for system in systems}
    found: list[CaseResults] = []
    with _progress(console) as progress:
        for case in experiment.cases:
            name = swept(experiment.sweep, case.value) or experiment.file.name
            task = progress.add_task(escape(name), total=len(systems) * len(seeds))
            results = simulate_many(case.scenario, made, seeds, processes, partial(_advance, progress, task))
            found.append(CaseResults(results, case.value, surges(case.scenario)))
    return found


def _advance(progress: Progress, task: TaskID, _: Result) -> None:
    progress.advance(task)


def _progress(console: Console | None) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=console is None or not console.is_terminal,
        transient=True,
    )


def _print_tables(experiment: Experiment, cases: Sequence[CaseResults]) -> None:
    from serve_app_simulator.report import legend, swept, table  # noqa: PLC0415 - keeps the other commands quick

    out = Console()
    if not out.is_terminal:
        out = Console(width=_TABLE_WIDTH)
    for case in cases:
        header, rows = table(case)
        title = ", ".join(part for part in (experiment.file.name, swept(experiment.sweep, case.value)) if part)
        shown = Table(title=escape(title), title_justify="left")
        for number, name in enumerate(header):
            shown.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
        for row in rows:
            shown.add_row(*(escape(cell) for cell in row))
        out.print(shown)
    out.print(legend(cases), highlight=False)


def _prepare(folder: Path) -> None:
    """Make the folder, before anything is simulated in vain."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError((f"--output: {folder}: {error.strerror}",)) from None
    try:
        import serve_app_simulator.plots  # noqa: F401, PLC0415 - only to see whether it can be
    except ImportError as error:
        raise ConfigError((f"--output: {error}",)) from None


def _write(experiment: Experiment, cases: Sequence[CaseResults], path: Path, folder: Path) -> None:
    from serve_app_simulator.plots import write_plots  # noqa: PLC0415 - brings matplotlib
    from serve_app_simulator.report import markdown, to_json  # noqa: PLC0415

    file = experiment.file
    plots = write_plots(cases, folder, experiment.sweep)
    report = markdown(
        file.name,
        file.description,
        cases,
        sweep=experiment.sweep,
        notes=_notes(experiment, cases, path),
        plots=plots,
    )
    (folder / "report.md").write_text(report, encoding="utf-8")
    found = to_json(file.name, cases, sweep=experiment.sweep)
    (folder / "results.json").write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _notes(experiment: Experiment, cases: Sequence[CaseResults], path: Path) -> list[str]:
    seeds = [result.seed for result in next(iter(cases[0].results.values()))]
    duration = _durations([case.scenario for case in experiment.cases])
    command = f"Written by `serve-app simulate {path.name}` of serve_app {__version__}, seeds {_listed(seeds)}"
    notes = [
        f"{command}; the same seeds give the same numbers.",
        f"{duration} of virtual time; the first {experiment.file.warm_up_s:g} s do not count.",
    ]
    loads = [f"{model} {load:.2f}" for model, load in experiment.cases[0].loads.items() if load > 0]
    if loads and not experiment.sweep:
        notes.append(f"Load without surges, where 1 is all the replicas can do within the SLO: {_listed(loads)}.")
        capacities = experiment.cases[0].capacities
        rates = [f"{model} {capacities[model]:,.0f}" for model, load in experiment.cases[0].loads.items() if load > 0]
        notes.append(f"All the replicas can do within the SLO, rows per second: {_listed(rates)}.")
    return notes


def _durations(scenarios: Sequence[Scenario]) -> str:
    shortest, longest = (pick(scenario.duration_s for scenario in scenarios) for pick in (min, max))
    return f"{longest:.4g} s" if shortest == longest else f"{shortest:.4g} to {longest:.4g} s"


def _listed(words: Iterable[object]) -> str:
    return ", ".join(str(word) for word in words)
