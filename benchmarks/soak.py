"""Endurance: ``python -m benchmarks.soak``. Mixed load, redeploys, replicas that come and go; nothing may grow.

Every answer is compared with ONNX Runtime's. Memory (proportional set size), file descriptors and threads of every
process, and the tasks of the router's event loop, are read every few seconds. Writes ``soak.json``, ``.md`` and
``.svg``; the exit code is 1 where an aim was not met.
"""

from __future__ import annotations

import asyncio
import datetime
from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import httpx
import numpy as np
import typer
import uvloop
from matplotlib.figure import Figure
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.chaos.kills import ours, require_right
from benchmarks.chaos.play import served
from benchmarks.chaos.questions import TOLERANCE
from benchmarks.chaos.records import LATE, End, Summary, summarize
from benchmarks.chaos.scenario import Scenario
from benchmarks.chaos.server import LOG_MONITOR, ROUTER, FaultyServer, Reading, Setup
from benchmarks.chaos.setups import demo
from benchmarks.chaos.stage import Aim, Stage, mix_of
from benchmarks.failure import BenchmarkError
from benchmarks.machine import Machine
from benchmarks.niceness import go_first
from benchmarks.process import OUT
from benchmarks.publishing import folders, measured_on, picture_style, save_svg, table, write_report
from benchmarks.session import ending_in_order, measuring

_READ_EVERY_S = 5.0
_BASE, _WAVE_CONNECTIONS, _WAVE_S = 0.25, 24, 40.0
_WAVE_EVERY_S = 100.0
_REDEPLOYS_UNTIL = 0.5
"""Part of the run after which nothing is redeployed, so that the last processes live long enough to show growth."""

_LEAST_LIFE_S = 420.0
"""What lives shorter is still filling its caches, pools and the allocator's arenas."""

_WARM_UP = 0.25
"""Part of a process's life that does not count, for the same reason."""

_LEVEL_S = 60.0
"""What a process has at some time is the median over so long before, seconds."""

_MOST_SLOPE = 1.0
_MOST_DESCRIPTORS, _MOST_THREADS, _MOST_TASKS = 16, 8, 48
_MOST_LOG_FILES = 250
_MOST_POINTS = 1000
"""Between which slopes are taken: there are half as many as their square."""
_WAVING = "minilm"


@dataclass(frozen=True, slots=True)
class Sample(Reading):
    """One process at one moment of the run.

    Attributes:
        at_s: Seconds from the start.
    """

    at_s: float


@dataclass(frozen=True, slots=True)
class Life:
    """How one process changed after its warm-up.

    Attributes:
        role: What it is there for.
        minutes: How long it was watched, the warm-up included.
        mib: Its memory at the end, MiB.
        slope: Growth of its memory, MiB per minute, as `slope` says.
        steps: Growth from before the second redeploy to the end, MiB per minute: a median slope does not see the step
            that every redeploy may add. ``None`` for what does not outlive redeploys.
        descriptors: Growth of open file descriptors: the last quarter's median less that of the quarter after warm-up.
        threads: The same of threads.
    """

    role: str
    minutes: float
    mib: float
    slope: float
    steps: float | None
    descriptors: float
    threads: float


@dataclass(frozen=True, slots=True)
class Soaked:
    """What a run gave.

    Attributes:
        minutes: How long it took.
        capacity: Right answers per second at 64 connections flat out, before.
        summary: Requests, counted.
        aims: What had to hold.
        notes: What else is worth telling.
        redeploys: When the configuration was replaced, seconds from the start.
        replicas: Processes that were seen, by role.
        lives: How the long-lived processes changed.
        tasks: Tasks of the router's event loop: (seconds, number).
        samples: Every reading.
    """

    minutes: float
    capacity: float
    summary: Summary
    aims: list[Aim]
    notes: list[str]
    redeploys: list[float]
    replicas: dict[str, int]
    lives: list[Life]
    tasks: list[tuple[float, int]]
    samples: list[Sample]


class Watch:
    """Reads the server's processes until it is cancelled.

    Args:
        stage: Whose server.

    Attributes:
        samples: What was read.
        tasks: Tasks of the router's event loop: (seconds, number).
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.samples: list[Sample] = []
        self.tasks: list[tuple[float, int]] = []

    async def run(self) -> None:
        """Read every few seconds."""
        server = self._stage.server
        while True:
            readings = await asyncio.to_thread(server.readings)
            now = self._stage.now()
            self.samples += [Sample(r.pid, r.role, r.mib, r.descriptors, r.threads, now) for r in readings]
            count = await asyncio.to_thread(_tasks, server)
            if count is not None:
                self.tasks.append((now, count))
            await asyncio.sleep(_READ_EVERY_S)


def lives(samples: Sequence[Sample], least_s: float, redeploys: Sequence[float] = ()) -> list[Life]:
    """How processes changed.

    Args:
        samples: What was read of them.
        least_s: Of those that were watched for so long, seconds.
        redeploys: When the configuration was replaced, seconds from the start.
    """
    by_process: dict[tuple[int, str], list[Sample]] = defaultdict(list)
    for each in samples:
        by_process[each.pid, each.role].append(each)
    return sorted(
        (_life(each, redeploys) for each in by_process.values() if each[-1].at_s - each[0].at_s >= least_s),
        key=lambda life: (life.role, -life.minutes),
    )


def _life(samples: Sequence[Sample], redeploys: Sequence[float]) -> Life:
    began, ended = samples[0].at_s, samples[-1].at_s
    warm = [each for each in samples if each.at_s >= began + _WARM_UP * (ended - began)]
    quarter = max(1, len(warm) // 3)
    minutes = [each.at_s / 60 for each in warm]
    return Life(
        samples[0].role,
        (ended - began) / 60,
        samples[-1].mib,
        slope(minutes, [each.mib for each in warm]),
        _steps(samples, redeploys),
        _growth([each.descriptors for each in warm], quarter),
        _growth([each.threads for each in warm], quarter),
    )


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The median slope between any two points: of what grows all the time, and not of a single step (Theil and Sen)."""
    at, of = (np.asarray(each)[:: len(x) // _MOST_POINTS + 1] for each in (x, y))
    first, second = np.triu_indices(len(at), 1)
    return float(np.median((of[second] - of[first]) / (at[second] - at[first])))


def _steps(samples: Sequence[Sample], redeploys: Sequence[float]) -> float | None:
    if len(redeploys) < 2 or samples[0].at_s > redeploys[0] or samples[-1].at_s < redeploys[-1]:
        return None
    began, ended = redeploys[1], samples[-1].at_s
    early, late = (
        median(each.mib for each in samples if until - _LEVEL_S < each.at_s <= until) for until in (began, ended)
    )
    return (late - early) / ((ended - began) / 60)


def _growth(values: Sequence[float], quarter: int) -> float:
    return float(np.median(values[-quarter:]) - np.median(values[:quarter]))


def _tasks(server: FaultyServer) -> int | None:
    """Tasks of the router's event loop, by its metrics."""
    try:
        page = httpx.get(f"{server.direct}/metrics", timeout=10.0).text
    except httpx.TransportError:
        return None
    for family in text_string_to_metric_families(page):
        if family.name == "serve_app_tasks":
            return int(sum(sample.value for sample in family.samples))
    return None


def _setup() -> Setup:
    scaling = {
        "min_replicas": 1,
        "max_replicas": 2,
        "target_queue": 4,
        "upscale_delay_s": 1.0,
        "downscale_delay_s": 10.0,
    }
    models = demo(1)
    for model in models:
        if model["name"] == _WAVING:
            model["autoscaling"] = scaling
    return Setup("soak", models, dashboard=True)


_SCENARIO = Scenario("soak", "mixed load, redeploys, replicas that come and go", _setup(), lambda _: asyncio.sleep(0))


def _changed(document: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The configuration with another setting, so that what it concerns is replaced."""
    changed = deepcopy(dict(document))
    for model in changed["applications"][0]["args"]["models"]:
        if model["name"] == "digits":
            model["batching"] = {"max_rows": 16 if number % 2 == 0 else 32}
    return changed


async def _redeploys(stage: Stage, seconds: float, count: int, done: list[float]) -> None:
    document = stage.server.served_document()
    every = _REDEPLOYS_UNTIL * seconds / count
    for number in range(count):
        await asyncio.sleep(every / 2 if number == 0 else every)
        done.append(stage.now())
        stage.tell(f"redeploy {number + 1} of {count}")
        await asyncio.to_thread(stage.server.deploy, _changed(document, number))


async def _waves(stage: Stage) -> None:
    """Now and then as much of one model as a few connections can send: a second replica comes, and goes again."""
    while True:
        await asyncio.sleep(_WAVE_EVERY_S - _WAVE_S)
        stage.tell("a wave")
        clients = stage.clients()
        async with stage.load(None, mix=mix_of({_WAVING: 1.0}), connections=_WAVE_CONNECTIONS, clients=clients):
            await asyncio.sleep(_WAVE_S)
        stage.tell("between waves")


async def soak(minutes: float, redeploys: int, progress: Progress) -> Soaked:
    """Run for so many minutes."""
    task = progress.add_task("", total=round(minutes * 60))

    def tell(line: str) -> None:
        progress.update(task, description=line)

    async with served(_SCENARIO, tell) as (server, bank, capacity):
        stage = Stage(server, bank, _SCENARIO.mix, capacity, quick=False, tell=tell)
        watch, done = Watch(stage), list[float]()
        async with stage.load(_BASE):
            beside = [
                asyncio.create_task(each)
                for each in (watch.run(), _waves(stage), _redeploys(stage, minutes * 60, redeploys, done))
            ]
            try:
                while stage.now() < minutes * 60:
                    await stage.hold(2.0)
                    progress.update(task, completed=stage.now())
                    _raise_faults(beside)
            finally:
                for each in beside:
                    each.cancel()
                await asyncio.gather(*beside, return_exceptions=True)
        return _result(stage, watch, done)


def _raise_faults(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done() and (error := task.exception()) is not None:
            raise error


def _result(stage: Stage, watch: Watch, redeploys: list[float]) -> Soaked:
    least_s = min(_LEAST_LIFE_S, 0.3 * stage.now())
    found = lives(watch.samples, least_s, redeploys)
    require_right(stage)
    stage.require_none("no connection is cut", [each for each in stage.records if each.end is End.CUT])
    failed = [each for each in ours(stage.records) if each.code not in LATE]
    stage.require_none("our client, with its retries, sees no error but deadlines", failed)
    if not any(life.role == ROUTER for life in found):
        raise BenchmarkError("no router lived long enough to show whether it grows: run it longer")
    steepest = max(found, key=lambda life: life.slope)
    says = f"memory of each process grows by less than {_MOST_SLOPE:g} MiB a minute"
    stage.require(says, steepest.slope < _MOST_SLOPE, f"at most {steepest.slope:+.2f} ({steepest.role})")
    stepping = [(life.steps, life.role) for life in found if life.steps is not None]
    if stepping:
        most, role = max(stepping)
        stage.require(
            f"{says}, steps at redeploys included, where it outlives them",
            most < _MOST_SLOPE,
            f"at most {most:+.2f} ({role})",
        )
    # Ray's log monitor keeps the files of ended workers open, too, until there are 200 of them.
    most = max(life.descriptors for life in found if life.role != LOG_MONITOR)
    stage.require(
        "file descriptors do not grow, but the log monitor's", most <= _MOST_DESCRIPTORS, f"at most {most:+.0f}"
    )
    monitors = [each.descriptors for each in watch.samples if each.role == LOG_MONITOR]
    stage.require(
        f"the log monitor has at most {_MOST_LOG_FILES}",
        max(monitors, default=0) <= _MOST_LOG_FILES,
        f"{max(monitors, default=0)}",
    )
    most = max(life.threads for life in found)
    stage.require("threads do not grow", most <= _MOST_THREADS, f"at most {most:+.0f}")
    counts = [count for at, count in watch.tasks if at > redeploys[-1] + 30.0] if redeploys else []
    if len(counts) >= 6:
        growth = _growth(counts, len(counts) // 3)
        stage.require("tasks of the router's event loop do not grow", growth <= _MOST_TASKS, f"{growth:+.0f}")
    seen: dict[str, set[int]] = defaultdict(set)
    for each in watch.samples:
        seen[each.role].add(each.pid)
    scaled = len(seen[_WAVING])
    stage.require("replicas came and went", scaled > 1 + len(redeploys), f"{scaled} replicas of {_WAVING} in turn")
    return Soaked(
        minutes=stage.now() / 60,
        capacity=stage.capacity,
        summary=summarize(stage.records),
        aims=stage.aims,
        notes=stage.notes,
        redeploys=redeploys,
        replicas={role: len(pids) for role, pids in sorted(seen.items())},
        lives=found,
        tasks=watch.tasks,
        samples=watch.samples,
    )


def render(found: Soaked, machine: Machine, date: str) -> str:
    """The report as Markdown."""
    counted = found.summary
    refused = ", ".join(f"{code}: {count}" for code, count in counted.refused.items()) or "none"
    lines = [
        "# Endurance",
        "",
        f"Written by `make soak`: {found.minutes:.0f} minutes of mixed load on the demo's models and `tiny`, with",
        f"{len(found.redeploys)} redeploys and waves that bring and take away replicas. {counted.requests:,} requests:",
        f"{counted.right:,} answered as ONNX Runtime answers (difference {TOLERANCE:g} at most), {counted.wrong}",
        f"wrong, {counted.hung} hung, {counted.cut} cut, {counted.unreachable} unreachable, refused: {refused}.",
        "",
        table(("aim", "met", "found"), [[aim.says, "yes" if aim.met else "**no**", aim.found] for aim in found.aims]),
        "",
        "Memory of a process is its proportional set size, and its growth the median slope between any two readings",
        "after the first quarter of its life; every process is in `soak.json`. Nothing needs to be restarted for its",
        "age where every aim is met.",
        "",
        "![Memory of each process over time](soak.svg)",
        "",
        measured_on(date, machine),
        "",
    ]
    return "\n".join(lines)


def draw(found: Soaked, path: Path) -> None:
    """Draw memory per process over time."""
    series: dict[tuple[int, str], list[Sample]] = defaultdict(list)
    for each in found.samples:
        series[each.pid, each.role].append(each)
    roles = sorted({role for _, role in series})
    with picture_style():
        figure = Figure(figsize=(10, 5), layout="constrained")
        axes = figure.subplots()
        for (_, role), samples in series.items():
            axes.plot(
                [each.at_s / 60 for each in samples],
                [each.mib for each in samples],
                color=f"C{roles.index(role) % 10}",
                linestyle="-" if roles.index(role) < 10 else "--",
                linewidth=0.9,
                label=role,
            )
        for at in found.redeploys:
            axes.axvline(at / 60, color="black", linewidth=0.8, linestyle=":")
        handles = {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        axes.legend(handles.values(), handles.keys(), fontsize=7, ncols=2)
        axes.set_xlabel("minutes (dotted: redeploys)")
        axes.set_ylabel("MiB")
        axes.set_ylim(bottom=0)
        save_svg(figure, path)


def main(
    minutes: Annotated[float, typer.Option(min=2.0, help="How long the load runs.")] = 30.0,
    redeploys: Annotated[int, typer.Option(min=1, help="How often the configuration is replaced.")] = 3,
    publish: Annotated[bool, typer.Option(help="Write the report into docs/benchmarks too.")] = False,
) -> None:
    """Keep a server busy for long, and look whether anything grows."""
    console = Console()
    with ending_in_order(console), measuring(console) as machine:
        go_first()
        columns = (TextColumn("{task.description:<24}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        with (
            Progress(*columns, console=console) as progress,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            found = runner.run(soak(minutes, redeploys, progress))
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        text = render(found, machine, date)
        for folder in folders(publish=publish):
            told = found if folder == OUT else replace(found, samples=[])  # thousands, which the picture shows
            write_report(folder, "soak", {"machine": machine, "date": date, "run": told}, text)
            draw(found, folder / "soak.svg")
        console.print(text)
        missed = [aim.says for aim in found.aims if not aim.met]
        if missed:
            raise BenchmarkError(f"aims were missed: {'; '.join(missed)}")


if __name__ == "__main__":
    typer.run(main)
