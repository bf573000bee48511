"""The command ``serve-app simulate``: run a scenario file and report how the systems in it compare."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from serve_app import __version__
from serve_app.errors import ConfigError
from serve_app_simulator.report import CaseResults, legend, markdown, surges, swept, table, to_json
from serve_app_simulator.results import Result
from serve_app_simulator.run import simulate_many
from serve_app_simulator.scenario import Scenario
from serve_app_simulator.scenarios import Experiment, load_scenario, scenario_schema
from serve_app_simulator.scenarios.systems import SystemConfig, system_config

_STEPS = 12
_FAILED = 1
_INVALID = 2
_TABLE_WIDTH = 250
"""Columns of tables that do not go to a terminal, so that no cell is cut."""


def schema() -> str:
    """The JSON Schema of scenario files, as text."""
    return json.dumps(scenario_schema(), indent=2) + "\n"


def run(
    scenario: Path,
    *,
    seeds: int | None = None,
    systems: str | None = None,
    output: Path | None = None,
    as_json: bool = False,
    processes: int = 1,
) -> int:
    """Simulate a scenario file, print tables or JSON, and write a report into ``output`` if given.

    Args:
        scenario: The file.
        seeds: Number of seeds; by default those in the file.
        systems: Labels of the systems to compare, separated by commas; by default all in the file.
        output: Folder of the report.
        as_json: Print JSON instead of tables.
        processes: Number of simulations that run at once.

    Returns:
        The exit status: 0, 1 if the report cannot be written, 2 for a scenario or an option that is not valid.
    """
    errors = Console(stderr=True)
    try:
        if output is not None:
            _prepare(output)
        experiment = load_scenario(scenario)
        compared = _choose_systems(experiment, systems)
        chosen = _choose_seeds(experiment, seeds)
        cases = _run_experiment(experiment, compared, chosen, processes, errors)
    except ConfigError as error:
        for problem in error.problems:
            print(f"{scenario}: {problem}", file=sys.stderr)
        return _INVALID
    if as_json:
        found = to_json(experiment.file.name, cases, sweep=experiment.sweep)
        sys.stdout.write(json.dumps(found, indent=1, allow_nan=False) + "\n")
    else:
        _print_tables(experiment, cases)
    if output is not None:
        try:
            _write(experiment, cases, scenario, output)
        except OSError as error:
            print(f"{output}: cannot be written: {error.strerror}", file=sys.stderr)
            return _FAILED
        print(f"wrote {output / 'report.md'}", file=sys.stderr)
    return 0


def _choose_systems(experiment: Experiment, names: str | None) -> tuple[SystemConfig, ...]:
    """The systems of these names, separated by commas. A name or label in the file means all that have it there."""
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


def _choose_seeds(experiment: Experiment, count: int | None) -> tuple[int, ...]:
    """So many seeds: those in the file first, then the smallest that are not among them."""
    listed = experiment.file.seeds
    if count is None:
        return listed
    further = (seed for seed in range(1, count + len(listed) + 1) if seed not in listed)
    return (*listed, *further)[:count]


def _run_experiment(
    experiment: Experiment, systems: Sequence[SystemConfig], seeds: Sequence[int], processes: int, console: Console
) -> list[CaseResults]:
    """Simulate every system in every case with every seed. A console that is a terminal shows the progress."""
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


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def _print_tables(experiment: Experiment, cases: Sequence[CaseResults]) -> None:
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
    for line in _scaling(cases):
        out.print(escape(line), highlight=False)


def _prepare(folder: Path) -> None:
    """Make the folder, so that nothing is simulated in vain."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError((f"--output: {folder}: {error.strerror}",)) from None


def _write(experiment: Experiment, cases: Sequence[CaseResults], path: Path, folder: Path) -> None:
    from serve_app_simulator.plots import write_plots  # noqa: PLC0415 - matplotlib takes long to import

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
    return [*notes, *_scaling(cases)]


def _scaling(cases: Sequence[CaseResults]) -> Iterator[str]:
    """How the first run of the first case changed its numbers of replicas, and what decided."""
    result = next(iter(cases[0].results.values()))[0]
    for model, steps in result.scaling.items():
        shown = [f"{step.replicas} at {step.at_s:.0f} s ({step.because})" for step in steps[:_STEPS]]
        more = f" and {len(steps) - _STEPS} more changes" if len(steps) > _STEPS else ""
        yield f"Replicas of {model} in the first run of {result.system}: {_listed(shown)}{more}."


def _durations(scenarios: Sequence[Scenario]) -> str:
    shortest, longest = (pick(scenario.duration_s for scenario in scenarios) for pick in (min, max))
    return f"{longest:.4g} s" if shortest == longest else f"{shortest:.4g} to {longest:.4g} s"


def _listed(words: Iterable[object]) -> str:
    return ", ".join(str(word) for word in words)
