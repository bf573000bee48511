"""How a benchmark runs at the command line: ended in order, and warned of a busy machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, MappingProxyType

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.failure import BenchmarkError
from benchmarks.machine import Machine, describe, watched_load
from benchmarks.server import ROOT
from serve_app.config.files import HOME_VARIABLE
from serve_app.errors import ConfigError

_BUSY_PER_CORE = 0.5


@contextmanager
def ending_in_order(console: Console) -> Iterator[None]:
    """Let SIGTERM unwind like Ctrl-C, so that servers are ended, and say in a line what went wrong."""
    os.environ[HOME_VARIABLE] = str(ROOT)

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except BenchmarkError as error:
        _say(console, str(error))
        raise typer.Exit(1) from None
    except ConfigError as error:
        for problem in error.problems:
            _say(console, problem)
        raise typer.Exit(1) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def measuring(console: Console, tools: Mapping[str, str] = MappingProxyType({})) -> Iterator[Machine]:
    """Yields what is measured on, whose load is noted while the context lasts. Warns of a busy machine.

    Args:
        console: For the warning.
        tools: Versions of programs that are not Python packages.
    """
    machine = describe(tools)
    quiet_machine(console)
    with watched_load(machine):
        yield machine


def quiet_machine(console: Console) -> None:
    """Warn when others keep the cores busy."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > _BUSY_PER_CORE * cores:
        console.print(
            f"[yellow]warning:[/] this machine is busy (load average {load:.1f} on {cores} cores);"
            " the figures will be worse than they should be",
            highlight=False,
            soft_wrap=True,
        )


def steps(console: Console) -> Progress:
    """Shows how many steps of each task are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def _say(console: Console, message: str) -> None:
    console.print("[red]error:[/] ", end="")
    console.print(message, highlight=False, markup=False, soft_wrap=True)
