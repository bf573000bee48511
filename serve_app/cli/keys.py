"""``serve-app key``: makes, lists and revokes API keys in a file. Keys are shown once and kept nowhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from serve_app.errors import ConfigError

app = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True)

File = Annotated[Path, typer.Option("--file", help="The file of keys (router.access.keys_file).", show_default=False)]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the key.", show_default=False)]

_INVALID = 2


@app.command()
def new(
    name: Name,
    file: File,
    models: Annotated[
        str | None, typer.Option(help="Models that it may use, separated by commas; default: all.", show_default=False)
    ] = None,
    highest_class: Annotated[
        Literal["high", "normal", "low"] | None,
        typer.Option(help="The most urgent class that it may use; default: high.", show_default=False),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="How often it may be used: 100/s, 600/min, 1000/h.", show_default=False)
    ] = None,
    burst: Annotated[
        int | None, typer.Option(help="Requests that may come at once after a pause.", show_default=False)
    ] = None,
    weight: Annotated[
        float | None, typer.Option(help="Its part of its class, relative to other keys'; default: 1.")
    ] = None,
    expires_at: Annotated[
        str | None, typer.Option(help="Date or time from when on it is not valid.", show_default=False)
    ] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="It may change the server, and see metrics and status.")
    ] = False,
    note: Annotated[str | None, typer.Option(help="Whatever is worth knowing.", show_default=False)] = None,
) -> None:
    """Make a key, add it to the file, and print it: once, since only its SHA-256 is kept."""
    from serve_app.cli.key_file import add  # noqa: PLC0415 - brings pydantic, which takes its time to import

    fields = {
        "models": None if models is None else [model.strip() for model in models.split(",")],
        "highest_class": highest_class,
        "rate": rate,
        "burst": burst,
        "weight": weight,
        "expires_at": expires_at,
        "admin": admin or None,
        "note": note,
    }
    try:
        key = add(file, name, fields)
    except ConfigError as error:
        raise _fault(file, error) from None
    typer.echo(f"{file}: added {name}. This is the key; it is shown only now:", err=True)
    sys.stdout.write(f"{key}\n")


@app.command(name="list")
def list_keys(file: File) -> None:
    """List the keys of the file and what they may do."""
    from serve_app.cli.key_file import is_open_to_others, read  # noqa: PLC0415 - as above

    try:
        keys = read(file)
    except ConfigError as error:
        raise _fault(file, error) from None
    if is_open_to_others(file):
        typer.echo(f"{file}: every user of this machine can read or write it; chmod 600 {file}", err=True)
    table = Table("name", "models", "class", "rate", "more", box=None, pad_edge=False)
    for key in keys:
        more = [
            "admin" if key.admin else "",
            "disabled" if key.disabled else "",
            "" if key.expires_at is None else f"until {key.expires_at:%Y-%m-%d %H:%M}",
            key.note,
        ]
        shown = (key.name, ", ".join(key.models), key.highest_class, key.rate or "", ", ".join(filter(None, more)))
        table.add_row(*map(escape, shown))
    Console(soft_wrap=True).print(table)


@app.command()
def revoke(name: Name, file: File) -> None:
    """Remove a key from the file. Running servers notice within `router.access.keys_check_s`."""
    from serve_app.cli.key_file import remove  # noqa: PLC0415 - as above

    try:
        remove(file, name)
    except ConfigError as error:
        raise _fault(file, error) from None
    typer.echo(f"{file}: removed {name}", err=True)


def _fault(file: Path, error: ConfigError) -> typer.Exit:
    for problem in error.problems:
        typer.echo(f"{file}: {problem}", err=True)
    return typer.Exit(_INVALID)
