"""``serve-app simulate``: hands over to the simulator, a distribution of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

_FAILED = 1
_MISSING = "needs the simulator: pip install 'serve-app[simulate]', or ./simulator in a checkout"


@contextmanager
def needing_the_simulator(command: str) -> Iterator[None]:
    """End the command, and name how to install it, where the simulator is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "serve_app_simulator":
            raise
        typer.echo(f"serve-app {command} {_MISSING}", err=True)
        raise typer.Exit(_FAILED) from None


def _schema(wanted: bool) -> None:
    if wanted:
        with needing_the_simulator("simulate"):
            from serve_app_simulator import command  # noqa: PLC0415 - an extra
        sys.stdout.write(command.schema())
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
    with needing_the_simulator("simulate"):
        from serve_app_simulator import command  # noqa: PLC0415 - an extra
    raise typer.Exit(
        command.run(scenario, seeds=seeds, systems=systems, output=output, as_json=as_json, processes=processes)
    )
