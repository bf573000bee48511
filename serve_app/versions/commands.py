"""``serve-app traffic``: shows and changes how a running server splits requests over a model's versions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer
from rich.console import Console
from rich.table import Table

from serve_app.cli.ask import URL, URL_VARIABLE, ask


def add_to(commands: typer.Typer) -> None:
    """Add the command."""
    commands.command()(traffic)


Action = Literal["show", "set", "promote", "rollback"]


def traffic(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.", show_default=False)],
    action: Annotated[
        Action,
        typer.Argument(
            help="set weights, aliases or the shadow; promote a version to stable; rollback the last change."
        ),
    ] = "show",
    weights: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=WEIGHT]...", help="With set: parts of the requests, by version or alias."),
    ] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VERSION", help="With set: another name of a version.", show_default=False),
    ] = None,
    shadow: Annotated[
        str | None,
        typer.Option(metavar="NAME=PERCENT", help="With set: what runs copies; none for nothing.", show_default=False),
    ] = None,
    sticky: Annotated[
        Literal["key", "request_id", "none"] | None,
        typer.Option(help="With set: what always leads to the same version.", show_default=False),
    ] = None,
    to: Annotated[str, typer.Option(help="With promote: the version or alias.")] = "candidate",
    url: Annotated[str | None, typer.Option(help=f"Address of the server; default: ${URL_VARIABLE}, {URL}.")] = None,
) -> None:
    """Show or change which versions of MODEL answer, at a running server. The API key is that of $SERVE_APP_API_KEY."""
    body: dict[str, Any] | None = None
    if action == "set":
        body = _change(weights or (), alias or (), shadow, sticky)
    elif weights or alias or shadow or sticky:
        raise typer.BadParameter("weights, --alias, --shadow and --sticky are for set")
    elif action == "promote":
        body = {"to": to}
    path = f"/v2/models/{quote(model, safe='')}/traffic"
    if action in {"promote", "rollback"}:
        path += f"/{action}"
    _print(ask(url, path, None if action == "show" else json.dumps(body or {}).encode()))


def _change(weights: Sequence[str], aliases: Sequence[str], shadow: str | None, sticky: str | None) -> dict[str, Any]:
    """The body of a change."""
    body: dict[str, Any] = {}
    if weights:
        body["traffic"] = {name: _number(number, "NAME=WEIGHT") for name, number in map(_pair, weights)}
    if aliases:
        body["aliases"] = dict(map(_pair, aliases))
    if shadow == "none":
        body["shadow"] = None
    elif shadow is not None:
        name, share = _pair(shadow)
        body["shadow"] = {"to": name, "share": _number(share, "--shadow")}
    if sticky is not None:
        body["sticky"] = sticky
    if not body:
        raise typer.BadParameter("nothing to set: name weights, --alias, --shadow or --sticky")
    return body


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise typer.BadParameter(f"must be NAME=VALUE, got {text!r}")
    return name, value


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"must be a number, got {text!r}", param_hint=what) from None


def _print(told: dict[str, Any]) -> None:
    console = Console(soft_wrap=True)
    console.print(
        f"{told['model']}, revision {told['revision']}, sticky: {told['sticky']}", markup=False, highlight=False
    )
    table = Table("version", "aliases", "share", "shadow", box=None, pad_edge=False)
    shadow = told["shadow"]
    for version in told["versions"]:
        aliases = [alias for alias, of in told["aliases"].items() if of == version]
        copies = "" if shadow is None or shadow["to"] not in {version, *aliases} else f"{shadow['share']:g}%"
        table.add_row(version, ", ".join(aliases), f"{100 * told['shares'].get(version, 0.0):g}%", copies)
    console.print(table)
