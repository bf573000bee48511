"""``serve-app plan``: hands over to the simulator, a distribution of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from serve_app.cli.config_file import ConfigFile, invalid
from serve_app.cli.simulate import needing_the_simulator
from serve_app.errors import ConfigError

_PERCENT = 100.0


def plan(
    config: ConfigFile,
    demand: Annotated[
        Path | None, typer.Option(help="YAML file with `workload`, as a scenario has it.", show_default=False)
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=RATE", help="Requests per second; may be given several times.", show_default=False),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(help="A router's log of requests; may be given several times.", show_default=False),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="CSV file: arrival, model, class, rows, deadline.", show_default=False)
    ] = None,
    cpus: Annotated[
        str | None, typer.Option(help="Cores, or nodes x cores: 3x8. By default this machine's.", show_default=False)
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help="GPUs x memory: 2x80GiB. By default this machine's.", show_default=False)
    ] = None,
    target: Annotated[float, typer.Option(min=1, max=99.99, help="Percent of each class that is to be in time.")] = 99,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1, help="How long the demand lasts; by default 60, or less for many requests.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="File for CONFIG with the plan's settings.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Say how many replicas CONFIG needs for a demand, and what to expect; exit code 2 if the target cannot be held."""
    with needing_the_simulator("plan"):
        from serve_app_simulator.plan import command, devices  # noqa: PLC0415 - an extra
        from serve_app_simulator.plan import demand as sources  # noqa: PLC0415
    from serve_app.cli.gpus import gpu_memories  # noqa: PLC0415 - keeps the other commands quick
    from serve_app.composition import read_args  # noqa: PLC0415
    from serve_app.config.file import load_file  # noqa: PLC0415

    try:
        file = load_file(config, read_args)
        nodes, cores = (1, len(os.sched_getaffinity(0))) if cpus is None else devices.read_cpus(cpus)
        memories = gpu_memories(os.environ) if gpus is None else devices.read_gpus(gpus)
    except ConfigError as error:
        raise invalid(config, error) from None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    raise typer.Exit(
        command.run(
            config,
            file,
            sources.Sources(demand, rate or (), log or (), trace),
            devices.Devices(cores, memory, nodes, memories),
            target=target / _PERCENT,
            seconds=seconds,
            output=output,
            as_json=as_json,
        )
    )
