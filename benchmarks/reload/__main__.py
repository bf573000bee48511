"""``python -m benchmarks.reload`` measures loads under load, for each backend and other servers.

Writes ``reload.json``, ``reload.md`` and ``reload.svg``.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from benchmarks.failure import BenchmarkError
from benchmarks.peers.cases import MLSERVER, TRITON
from benchmarks.peers.systems import versions
from benchmarks.publishing import PUBLISHED, now, publish_report
from benchmarks.reload.members import measure_members
from benchmarks.reload.models import KINDS, SIZE
from benchmarks.reload.report import draw, figures, render
from benchmarks.reload.swapping import Swapping, Swaps
from benchmarks.reload.systems import LABELS, PEERS, SYSTEMS, System, memory, ready
from benchmarks.server import DIRECT
from benchmarks.session import ending_in_order, measuring

_START_WITHIN_S = 400.0
_POOL = "pool"
_HOW_POOL = (
    "six members at a host that has room for one, asked in turns by one connection: a swap is a request whose"
    " member is loaded for it"
)


def measure(name: str, swaps: int, pauses: int, connections: int, within_s: float, say: Callable[[str], None]) -> Swaps:
    """Start a server and measure.

    Raises:
        BenchmarkError: It did not start, a load failed, or this environment cannot make its model.
    """
    with tempfile.TemporaryDirectory(prefix="serve-app-") as path:
        folder = Path(path)
        if name == _POOL:
            return measure_members(folder, swaps, within_s, _START_WITHIN_S, say)
        system = SYSTEMS[name]
        if not system.kind.usable:
            raise BenchmarkError(f"this environment has no {system.kind.needs}")
        system.write(folder, 1)
        return _measure(system, folder, swaps, pauses, connections, within_s, say)


def _measure(
    system: System,
    folder: Path,
    swaps: int,
    pauses: int,
    connections: int,
    within_s: float,
    say: Callable[[str], None],
) -> Swaps:
    with system.make(folder) as server:
        server.wait_until(partial(ready, server), _START_WITHIN_S)
        say("swapping")
        swapping = Swapping(
            server.urls[DIRECT],
            partial(system.write, folder),
            partial(memory, server),
            partial(system.load, server),
            system.ask,
            system.wire,
            SIZE,
            pauses,
        )
        return asyncio.run(swapping.run(swaps, connections, within_s))


def main(
    backend: Annotated[
        list[str], typer.Option(help=f"What is measured: {', '.join(LABELS)}, or all. May be given several times.")
    ] = ["all"],  # noqa: B006 - typer's way
    swaps: Annotated[int, typer.Option(min=2, help="How many of each.")] = 1000,
    pauses: Annotated[int, typer.Option(min=1, help="How many of the first ones a pause follows.")] = 100,
    seconds: Annotated[float, typer.Option(min=1, help="For how long at most, of each.")] = 1500.0,
    connections: Annotated[int, typer.Option(min=1, help="That ask meanwhile.")] = 64,
    publish: Annotated[
        bool, typer.Option(help="Write the report into docs/benchmarks too; others keep their figures.")
    ] = False,
    note: Annotated[str, typer.Option(help="What a reader must know of these measurements.")] = "",
) -> None:
    """Measure loads under load, and print what was found."""
    console = Console()
    chosen = list(LABELS) if "all" in backend else list(dict.fromkeys(backend))
    if unknown := [name for name in chosen if name not in LABELS]:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; there are {', '.join(LABELS)}, and all")
    measured: dict[str, Swaps] = {}
    missing: dict[str, str] = {}
    tools = {"torch": version("torch")} if KINDS["torch-export"].usable else {}
    date = now()
    with ending_in_order(console), measuring(console, tools) as machine:
        for name in chosen:
            say = partial(_say, console, LABELS[name])
            try:
                measured[name] = measure(name, swaps, pauses, connections, seconds, say)
            except BenchmarkError as error:
                if len(chosen) == 1:
                    raise
                missing[name] = _in_a_line(error)
                say(f"not measured: {error}")
        if not measured:
            raise BenchmarkError("nothing was measured")
    how = {**{name: system.how for name, system in SYSTEMS.items()}, _POOL: _HOW_POOL}
    servers = {name: server for name, server in zip(PEERS, (TRITON, MLSERVER), strict=True) if name in measured}
    pinned = {name: versions([server])[server] for name, server in servers.items()}
    systems = {
        name: figures(name, found, ", ".join(filter(None, (date, machine.commit, note))), pinned.get(name, ""))
        for name, found in measured.items()
    }
    if publish:
        systems = _published() | systems
    systems = {name: systems[name] for name in LABELS if name in systems}
    missing = {name: why for name, why in missing.items() if name not in systems}
    text = render(systems, missing, how, connections, machine, date)
    kept = {"date": date, "connections": connections, "machine": machine, "systems": systems, "missing": missing}
    publish_report(console, "reload", kept, text, partial(draw, systems), publish=publish)


def _published() -> dict[str, dict[str, Any]]:
    """The figures of every system as they were published last; each tells when it was measured."""
    file = PUBLISHED / "reload.json"
    return orjson.loads(file.read_bytes())["systems"] if file.exists() else {}


def _in_a_line(error: BenchmarkError) -> str:
    """What went wrong; of a log, its last line."""
    lines = str(error).replace("|", "/").strip().splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"


def _say(console: Console, label: str, what: str) -> None:
    console.print(f"{label}: {what}", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
