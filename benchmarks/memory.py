"""Whether the server's memory stays flat over millions of requests: ``python -m benchmarks.memory``.

Small requests to ``tiny`` and, now and then, large tensors to ``pool``, whose bodies go through the router's arena.
Writes ``memory.json``, ``memory.md`` and ``memory.svg``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks import wrk
from benchmarks.failure import BenchmarkError
from benchmarks.machine import Machine
from benchmarks.publishing import measured_on, now, picture_style, publish_report, save_svg, table
from benchmarks.requests import write_requests
from benchmarks.server import DIRECT, OUT, ROOT, SERVE_APP_RUN, Server, is_ready
from benchmarks.session import ending_in_order, measuring
from benchmarks.wires import Binary, Json
from serve_app.config.file import IMPORT_PATH, load_file, read_document

_CONFIG = ROOT / "configs" / "bench.yaml"
_SETTLED = 0.2  # of the run: caches, pools and the allocator's arenas are filled by then
_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Reading:
    """Memory at one moment.

    Attributes:
        requests: Answered so far.
        seconds: Since the start.
        mib: Proportional set size by role, MiB.
    """

    requests: int
    seconds: float
    mib: dict[str, float]


def slopes(readings: Sequence[Reading]) -> dict[str, float]:
    """Growth by role after the start, MiB per million requests: the least-squares line's."""
    settled = [each for each in readings if each.requests >= _SETTLED * readings[-1].requests]
    millions = [each.requests / 1e6 for each in settled]
    roles = sorted(set.intersection(*(set(each.mib) for each in settled)))
    return {role: float(np.polyfit(millions, [each.mib[role] for each in settled], 1)[0]) for role in roles}


def _document() -> dict[str, Any]:
    document = read_document(_CONFIG)
    application = next(each for each in document["applications"] if each["import_path"] == IMPORT_PATH)
    application["args"]["models"] = [
        model for model in application["args"]["models"] if model["name"] in {"tiny", "pool"}
    ]
    return document


def _traffic() -> dict[str, Path]:
    random = np.random.default_rng(1)
    files = {"tiny": OUT / "memory-tiny.requests", "pool": OUT / "memory-pool.requests"}
    rows = [random.standard_normal((1, 64), np.float32) for _ in range(256)]
    write_requests(files["tiny"], [Json().request({"x": row}) for row in rows])
    pictures = [random.standard_normal((1, 3, 224, 224), np.float32) for _ in range(8)]
    write_requests(files["pool"], [Binary().request({"x": picture}) for picture in pictures])
    return files


def _run(server: Server, millions: float, connections: int, progress: Progress) -> list[Reading]:
    OUT.mkdir(parents=True, exist_ok=True)
    files = _traffic()
    task = progress.add_task("starting", total=round(millions * 1e6))
    with server:
        base = server.urls[DIRECT]
        server.wait_until(lambda: is_ready(base))
        urls = {model: f"{base}/v2/models/{model}/infer" for model in files}
        started, answered, readings = time.monotonic(), 0, []
        while answered < millions * 1e6:
            for model, seconds, at_once in (("tiny", 20.0, connections), ("pool", 2.0, 16)):
                load, _ = wrk.run(urls[model], files[model], at_once, seconds)
                if load.failures:
                    raise BenchmarkError(f"{load.failures} requests to {model} failed")
                answered += load.requests
            server.check_alive()
            mib = {role: nbytes / _MIB for role, nbytes in server.memory().items()}
            readings.append(Reading(answered, time.monotonic() - started, mib))
            progress.update(task, completed=answered, description=f"{sum(mib.values()):,.0f} MiB")
    return readings


def render(readings: Sequence[Reading], machine: Machine, date: str, arena_mib: float) -> str:
    """The report as Markdown."""
    growth = slopes(readings)
    settled = next(each for each in readings if each.requests >= _SETTLED * readings[-1].requests)
    last = readings[-1]
    header = (
        "processes",
        f"after {settled.requests / 1e6:.1f} million, MiB",
        "at the end, MiB",
        "MiB per million requests",
    )
    rows = [(role, f"{settled.mib[role]:,.0f}", f"{last.mib[role]:,.0f}", f"{growth[role]:+.2f}") for role in growth]
    sums = [sum(each.values()) for each in (settled.mib, last.mib, growth)]
    rows.append(("**in all**", f"{sums[0]:,.0f}", f"{sums[1]:,.0f}", f"{sums[2]:+.2f}"))
    lines = [
        "# Memory over millions of requests",
        "",
        f"Written by `make bench-memory`: {last.requests:,} requests in {last.seconds / 60:.0f} minutes, by the",
        "router's own port, none failed: one row of `tiny` as V2 JSON, and for 2 s of every 22 s tensors of 602 KB",
        f"to `pool`, which go by the router's arena ({arena_mib:,.0f} MiB at most). Proportional set sizes; growth",
        "is that of a line after the first fifth. Most of it is Ray's own.",
        "",
        table(header, rows),
        "",
        "![Memory over requests](memory.svg)",
        "",
        measured_on(date, machine),
        "",
    ]
    return "\n".join(lines)


def draw(readings: Sequence[Reading], path: Path) -> None:
    """Draw memory over requests."""
    with picture_style():
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        axes = figure.subplots()
        for role in slopes(readings):
            axes.plot([each.requests / 1e6 for each in readings], [each.mib[role] for each in readings], label=role)
        axes.set_xlabel("requests, millions")
        axes.set_ylabel("MiB")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
        save_svg(figure, path)


def main(
    millions: Annotated[float, typer.Option(min=0.1, help="Requests to send, millions.")] = 10.0,
    connections: Annotated[int, typer.Option(min=1, help="Connections of the small requests.")] = 64,
    publish: Annotated[bool, typer.Option(help="Write the report into docs/benchmarks too.")] = True,
) -> None:
    """Watch the server's memory over millions of requests."""
    console = Console()
    date = now()
    with ending_in_order(console), measuring(console, {"wrk": wrk.version()}) as machine:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as progress:
            readings = _run(Server("serve_app", _document(), SERVE_APP_RUN), millions, connections, progress)
    text = render(readings, machine, date, load_file(_CONFIG).args.router.transport.shared_memory / _MIB)
    figures = {"date": date, "machine": machine, "readings": readings}
    publish_report(console, "memory", figures, text, partial(draw, readings), publish=publish)


if __name__ == "__main__":
    typer.run(main)
