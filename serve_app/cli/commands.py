"""The commands of ``serve-app``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from serve_app import __version__
from serve_app.errors import ConfigError

app = typer.Typer(
    help="A multi-model inference server on Ray Serve that schedules every request by priority and deadline.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
_out = Console()
_err = Console(stderr=True)

INVALID = 2
"""Exit code for an invalid configuration."""

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A Serve file, e.g. configs/demo.yaml.")]


def main() -> None:
    """Run the command line."""
    app()


@app.command()
def run(config: ConfigFile) -> None:
    """Check CONFIG and serve it in the foreground; Ctrl-C, or `serve-app stop` elsewhere, ends it."""
    from serve_app.cli.run import environment, run_file  # noqa: PLC0415 - keeps the other commands quick

    # Ray reads its environment when it is imported, so everything has to be in it by then.
    os.environ.update(environment(os.environ))
    from serve_app.cli.check import check_file  # noqa: PLC0415

    try:
        file = check_file(config)
    except ConfigError as error:
        raise _invalid(config, error) from None
    raise typer.Exit(run_file(config, file, _err))


@app.command()
def stop() -> None:
    """End what `serve-app run` started from this folder."""
    from serve_app.cli.run import stop as stop_runs  # noqa: PLC0415 - keeps the other commands quick

    raise typer.Exit(stop_runs(os.environ, _err))


@app.command()
def validate(
    config: ConfigFile,
    models: Annotated[bool, typer.Option(help="Also look for the models that should be on this machine.")] = True,
) -> None:
    """Check CONFIG without starting anything: one line per fault, exit code 2 if there is any."""
    from serve_app.cli.check import check_file  # noqa: PLC0415 - brings Ray, which takes a second to import

    try:
        file = check_file(config, look_for_models=models)
    except ConfigError as error:
        raise _invalid(config, error) from None
    names = ", ".join(model.name for model in file.args.models)
    typer.echo(f"{config}: valid; models: {names}")


@app.command()
def doctor(
    config: Annotated[
        Path | None, typer.Option(help="Also look at the ports and models of this file.", show_default=False)
    ] = None,
) -> None:
    """Look at versions, devices, ports and models, and say what is wrong; exit code 1 if anything is."""
    from serve_app.cli.doctor import examine  # noqa: PLC0415 - brings ONNX Runtime and Ray

    findings = examine(config)
    for finding in findings:
        _out.print(finding.line(), highlight=False, soft_wrap=True)
    raise typer.Exit(1 if any(finding.level == "error" for finding in findings) else 0)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a configuration file, for editors."""
    from serve_app.cli.check import file_schema  # noqa: PLC0415 - brings Ray, which takes a second to import

    sys.stdout.write(json.dumps(file_schema(), indent=2) + "\n")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _invalid(config: Path, error: ConfigError) -> typer.Exit:
    for problem in error.problems:
        typer.echo(f"{config}: {problem}", err=True)
    return typer.Exit(INVALID)
