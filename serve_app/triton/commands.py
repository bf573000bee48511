"""``serve-app import``: converts configurations of other servers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from serve_app.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Write a configuration for what another server serves.")

_INVALID = 2


def add_to(commands: typer.Typer) -> None:
    """Add the command."""
    commands.add_typer(app, name="import")


@app.callback()
def _import() -> None:
    """Write a configuration for what another server serves."""


@app.command()
def triton(
    path: Annotated[str, typer.Argument(metavar="REPOSITORY", help="The model repository's folder.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write; by default it is printed.", show_default=False)
    ] = None,
) -> None:
    """Write a configuration for Triton's REPOSITORY, with a comment for each thing that is done otherwise here."""
    from serve_app.triton.import_file import triton_file  # noqa: PLC0415 - brings backends

    try:
        text = triton_file(path, os.environ)
    except ConfigError as error:
        for problem in error.problems:
            typer.echo(problem, err=True)
        raise typer.Exit(_INVALID) from None
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        typer.echo(f"{out}: cannot be written: {error.strerror}", err=True)
        raise typer.Exit(_INVALID) from None
    typer.echo(f"wrote {out}")
