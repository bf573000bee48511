"""The argument CONFIG of commands, and how they end with one that is invalid."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from serve_app.errors import ConfigError

INVALID: Final = 2
"""Exit code for an invalid configuration."""

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A Serve file, e.g. configs/demo.yaml.")]


def invalid(config: Path, error: ConfigError) -> typer.Exit:
    """Print each problem of a file on standard error."""
    for problem in error.problems:
        typer.echo(f"{config}: {problem}", err=True)
    return typer.Exit(INVALID)
