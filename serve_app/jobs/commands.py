"""``serve-app jobs``: submits files to a running server as jobs, and shows their progress."""

from __future__ import annotations

import base64
import json
import mimetypes
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from serve_app.cli.ask import URL, URL_VARIABLE, ask, failed

_ENDED: Final = frozenset({"COMPLETED", "ERROR", "CANCELLED"})
_WAIT_S: Final = 2
_WIDE: Final = 200
_LINES: Final = frozenset({".jsonl", ".ndjson"})

app = typer.Typer(
    help="Hand requests to a running server as jobs, which it keeps and answers later. The API key is that of"
    " $SERVE_APP_API_KEY.",
    no_args_is_help=True,
)


def add_to(commands: typer.Typer) -> None:
    """Add the commands."""
    commands.add_typer(app, name="jobs")


Url = Annotated[str | None, typer.Option(help=f"Address of the server; default: ${URL_VARIABLE}, {URL}.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.", show_default=False)]


@app.command()
def submit(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.", show_default=False)],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Pictures, sounds and other media, an item each; or files .jsonl, an item for each line: a body of a"
            ' request, or an item of /v1/jobs ({"body": ...}).',
            show_default=False,
        ),
    ],
    path: Annotated[
        str | None,
        typer.Option(help="Path of the route that takes the items, e.g. /v1/embeddings.", show_default=False),
    ] = None,
    priority: Annotated[str | None, typer.Option(help="high, normal or low; default: low.", show_default=False)] = None,
    timeout_s: Annotated[
        float | None, typer.Option(help="Seconds that the job may take as a whole.", show_default=False)
    ] = None,
    callback: Annotated[str | None, typer.Option(help="URL that is told of its end.", show_default=False)] = None,
    key: Annotated[
        str | None,
        typer.Option("--idempotency-key", help="Submitted twice, the job is made once.", show_default=False),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show its progress until it has ended.")] = False,
    url: Url = None,
) -> None:
    """Make one job of FILEs for MODEL, and print its id."""
    asked: dict[str, Any] = {"model": model, "items": [item for file in files for item in _items(file)]}
    given = {"url": path, "priority": priority, "timeout_s": timeout_s, "callback": callback}
    asked |= {name: value for name, value in given.items() if value is not None}
    headers = {} if key is None else {"Idempotency-Key": key}
    job = ask(url, "/v1/jobs", json.dumps(asked).encode(), headers)
    typer.echo(job["id"])
    if watch:
        _follow(job["id"], url)


@app.command("list")
def list_jobs(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Most jobs.")] = 20,
    after: Annotated[str, typer.Option(help="Only those before the job of this id.", show_default=False)] = "",
    url: Url = None,
) -> None:
    """Show the newest jobs."""
    table = Table("job", "state", "items", "failed", "made", box=None, pad_edge=False)
    for job in ask(url, f"/v1/jobs?limit={limit}&after={quote(after, safe='')}")["data"]:
        items = job["items"]
        made = datetime.fromtimestamp(job["created_at"], UTC).isoformat(timespec="seconds")
        done = items["completed"] + items["failed"]
        table.add_row(job["id"], job["state"], f"{done}/{items['total']}", str(items["failed"]), made)
    Console(width=_WIDE).print(table)  # nothing is cut at the edge of the terminal: ids are there to be copied


@app.command()
def show(job: JobId, url: Url = None) -> None:
    """Print what the server says of JOB."""
    typer.echo(json.dumps(ask(url, _path(job)), indent=2))


@app.command()
def watch(job: JobId, url: Url = None) -> None:
    """Show the progress of JOB until it has ended; exit code 1 unless all its items were answered."""
    _follow(job, url)


@app.command()
def cancel(job: JobId, url: Url = None) -> None:
    """End JOB: what has not run yet never will."""
    typer.echo(ask(url, f"{_path(job)}/cancel", b"{}")["state"])


@app.command()
def results(
    job: JobId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; by default standard output.")
    ] = None,
    state: Annotated[str, typer.Option(help="Only items in this state, e.g. ERROR.", show_default=False)] = "",
    url: Url = None,
) -> None:
    """Write what became of the items of JOB, a line of JSON each."""
    pages = _pages(job, state, url)
    first = next(pages)  # an existing file is left as it is where there is nothing to be had
    with nullcontext(sys.stdout) if output is None else output.open("w", encoding="utf-8") as file:
        for page in chain([first], pages):
            file.writelines(json.dumps(result) + "\n" for result in page)


def _items(file: Path) -> Iterator[Mapping[str, Any]]:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise failed(f"{file}: {error.strerror or error}") from None
    if file.suffix.lower() not in _LINES:
        kind = mimetypes.guess_type(file.name)[0] or ""
        yield {"body_base64": base64.b64encode(content).decode(), "content_type": kind, "custom_id": file.name}
        return
    for place, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError:
            raise failed(f"{file}:{place}: is not JSON") from None
        of_api = isinstance(item, Mapping) and ("body" in item or "body_base64" in item)
        yield {name: value for name, value in item.items() if name != "method"} if of_api else {"body": item}


def _path(job: str) -> str:
    return f"/v1/jobs/{quote(job, safe='')}"


def _pages(job: str, state: str, url: str | None) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Pages of results, at least one."""
    after: int | None = -1
    while after is not None:
        page = ask(url, f"{_path(job)}/results?after={after}&limit=1000&state={quote(state, safe='')}")
        yield page["data"]
        after = page["next"]


def _follow(job: str, url: str | None) -> None:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=None)
        found = ask(url, _path(job))
        while True:
            items = found["items"]
            done = items["total"] - items["waiting"]
            progress.update(task, description=found["state"], total=items["total"], completed=done)
            if found["state"] in _ENDED:
                break
            found = ask(url, f"{_path(job)}?wait={_WAIT_S}")
    if found["state"] != "COMPLETED":
        why = found["error"]
        raise failed(f"{job}: {found['state']}" + ("" if why is None else f": {why['message']}"))
