"""The commands of ``serve-app``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer
from rich.console import Console

from serve_app import __version__, wings
from serve_app.cli import keys
from serve_app.cli.config_file import ConfigFile, invalid
from serve_app.cli.plan import plan
from serve_app.cli.simulate import simulate
from serve_app.errors import ConfigError, ServeAppError

if TYPE_CHECKING:
    from serve_app.config.model import ModelConfig
    from serve_app.domain.service import ModelInfo

app = typer.Typer(
    help="A multi-model inference server on Ray Serve that schedules every request by priority and deadline.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
_out = Console()
_err = Console(stderr=True)

_Number = TypeVar("_Number", int, float)


def main() -> None:
    """Run the command line."""
    app()


@app.command()
def run(
    config: ConfigFile,
    dashboard: Annotated[
        bool, typer.Option(help="Start Ray's dashboard too, which `serve status` and `serve deploy` ask.")
    ] = True,
    fork: Annotated[
        bool, typer.Option(help="Fork worker processes from one that has imported everything: quicker, less memory.")
    ] = True,
) -> None:
    """Check CONFIG and serve it in the foreground; Ctrl-C, or `serve-app stop` elsewhere, ends it."""
    from serve_app.cli.run import environment, run_file  # noqa: PLC0415 - keeps the other commands quick
    from serve_app.cli.run_folder import run_folder  # noqa: PLC0415

    with run_folder(os.environ) as private:
        # Ray reads its environment when it is imported, so everything has to be in it by then.
        os.environ.update(environment(os.environ) | private)
        from serve_app.cli.check import check_file  # noqa: PLC0415
        from serve_app.composition.locate import looking_once  # noqa: PLC0415
        from serve_app.composition.revision import model_files  # noqa: PLC0415

        try:
            with looking_once():
                file = check_file(config)
                read = [*model_files(model for model in file.args.models if not model.remote)]
        except ConfigError as error:
            raise invalid(config, error) from None
        raise typer.Exit(run_file(config, file, _err, read=read, dashboard=dashboard, fork=fork))


@app.command()
def stop() -> None:
    """End what `serve-app run` started from this folder."""
    from serve_app.cli.run import stop as stop_runs  # noqa: PLC0415 - keeps the other commands quick

    raise typer.Exit(stop_runs(os.environ, _err))


@app.command()
def reload(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Names of models; by default all that are not unloaded."),
    ] = None,
    url: Annotated[str, typer.Option(help="Where the server listens.")] = "http://127.0.0.1:8000",
) -> None:
    """Serve models from their files as they are now; exit code 1 if one could not be loaded.

    The key of an administrator, where the server has API keys, is read from SERVE_APP_API_KEY.
    """
    from serve_app.cli.reload import reload_models  # noqa: PLC0415 - keeps the other commands quick

    failed = False
    for line, ok in reload_models(url, models or (), os.environ.get("SERVE_APP_API_KEY", "")):
        failed = failed or not ok
        typer.echo(line, err=not ok)
    raise typer.Exit(1 if failed else 0)


@app.command()
def validate(
    config: ConfigFile,
    models: Annotated[
        bool, typer.Option(help="Also look for the models, certificates and API keys that should be on this machine.")
    ] = True,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Also print what was understood of each model's folder, and of which file."),
    ] = False,
) -> None:
    """Check CONFIG without starting anything: one line per fault, exit code 2 if there is any."""
    from serve_app.cli.check import check_file  # noqa: PLC0415 - brings Ray, which takes a second to import
    from serve_app.cli.gpus import (  # noqa: PLC0415
        gpu_memories,
        gpu_memory_problems,
        gpu_problem,
        has_gpu,
        unchecked_memory,
        without_cuda,
    )
    from serve_app.cli.joinable import described_lines, explained_lines, noted_lines  # noqa: PLC0415
    from serve_app.cli.limits import cluster_notes  # noqa: PLC0415

    infos: dict[str, ModelInfo] = {}
    try:
        file = check_file(config, look_for_models=models, tell=infos.update)
    except ConfigError as error:
        raise invalid(config, error) from None
    warnings, notes = [*file.open_ports(), *file.unscaled()], [*noted_lines(infos), *described_lines(infos)]
    if models:  # otherwise the file is for another machine
        memories = gpu_memories(os.environ)
        if problems := gpu_memory_problems(file.args, memories):
            raise invalid(config, ConfigError(problems))
        if (problem := gpu_problem(file.args, has_gpu=has_gpu())) is not None:
            warnings.append(problem)
        warnings += without_cuda((model for model in file.args.models if not model.remote), "auto") if has_gpu() else ()
        notes += unchecked_memory(file.args, memories)
    for line in warnings:
        _err.print("[yellow]warning:[/] ", end="")
        _err.print(line, highlight=False, markup=False, soft_wrap=True)
    for line in (*notes, *cluster_notes(file, len(os.sched_getaffinity(0)))):
        _err.print("note: ", end="")
        _err.print(line, highlight=False, markup=False, soft_wrap=True)
    for line in explained_lines(infos) if explain else ():
        typer.echo(line)
    found = [_named(model) for model in file.args.models if model.pool is None]
    found += [_counted(*each) for served in wings.hooks("config", "served") for each in served(file.args)]
    pipelines = ", ".join(pipeline.name for pipeline in file.args.pipelines)
    typer.echo(f"{config}: valid; models: {', '.join(found)}" + (f"; pipelines: {pipelines}" if pipelines else ""))


def _counted(kind: str, name: str, models: int) -> str:
    return f"{kind} {name}" + (f" ({models} members)" if models else "")


def _named(model: ModelConfig) -> str:
    return model.name if model.deployment == model.name else f"{model.name} (deployment {model.deployment})"


@app.command()
def doctor(
    config: Annotated[
        Path | None, typer.Option(help="Also look at the ports and models of this file.", show_default=False)
    ] = None,
) -> None:
    """Look at versions, devices, ports and models, and say what is wrong; exit code 1 if anything is."""
    from serve_app.cli.doctor import examine  # noqa: PLC0415 - brings backends and Ray

    findings = examine(config)
    for finding in findings:
        _out.print(finding.line(), highlight=False, soft_wrap=True)
    raise typer.Exit(1 if any(finding.level == "error" for finding in findings) else 0)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a configuration file, for editors."""
    from serve_app.cli.check import file_schema  # noqa: PLC0415 - brings Ray, which takes a second to import

    sys.stdout.write(json.dumps(file_schema(), indent=2) + "\n")


@app.command()
def profile(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A Serve file.")] = Path("configs/demo.yaml"),
    model: Annotated[
        list[str] | None, typer.Option(help="Model to measure; may be given several times.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Measure every model.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="File to write; by default profiles/<deployment>.json.", show_default=False),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            help="Rows to measure, e.g. 1,2,4; by default powers of two up to max_rows, and values between.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.01, max=3600, help="Time to spend running each shape.")] = 2.0,
    quantiles: Annotated[str, typer.Option(help="Percentiles to keep, besides 5, 50 and 95.")] = "50,95,99",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of a session; by default as configured.", show_default=False)
    ] = None,
    plot: Annotated[
        Literal["svg", "png"] | None, typer.Option(help="Also draw it, beside the profile.", show_default=False)
    ] = None,
) -> None:
    """Measure what batches of models of CONFIG cost on this machine, and write it for the server and the simulator."""
    from serve_app.cli.profile import ProfileOptions, profile_file  # noqa: PLC0415 - brings backends

    options = ProfileOptions(
        seconds=seconds,
        quantiles=tuple(
            value / 100 for value in _numbers(quantiles, "--quantiles", float, lambda value: 0 < value < 100)
        ),
        rows=() if rows is None else tuple(_numbers(rows, "--rows", int, lambda value: value >= 1)),
        threads=threads,
    )
    try:
        profile_file(config, model or (), options, _out, everything=everything, output=output, plot=plot)
    except ConfigError as error:
        raise invalid(config, error) from None
    except ServeAppError as error:
        typer.echo(f"{config}: {error.message}", err=True)
        raise typer.Exit(1) from None


@app.command()
def convert(
    path: Annotated[str, typer.Argument(metavar="MODEL", help="A model's path, as in a configuration.")],
    precision: Annotated[
        Literal["int8"] | None, typer.Option(help="What to compute in: int8, which is for CPUs.", show_default=False)
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="The same as --precision int8.")] = False,
    samples: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.npz",
            help="Inputs of the model: one array per input, rows first. May be given several times.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder to write; by default MODEL-int8.", show_default=False)
    ] = None,
) -> None:
    """Write another build of MODEL, for its `path` or a variant. Its inputs and outputs stay as they are."""
    from serve_app.cli.convert import convert_model  # noqa: PLC0415 - brings ONNX Runtime

    if not int8 and precision is None:
        # Without it this command wrote FP16 once, which brought nothing on a CPU.
        raise typer.BadParameter("missing option: --precision int8, or --int8", param_hint="--int8")
    try:
        folder, lines = convert_model(path, output, os.environ, samples or ())
    except ConfigError as error:
        raise invalid(Path(path), error) from None
    for line in (f"wrote {folder}", *lines):
        typer.echo(line)


app.command()(simulate)
app.command()(plan)
app.add_typer(keys.app, name="key")
for _add_to in wings.hooks("commands", "add_to"):
    _add_to(app)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _numbers(text: str, option: str, kind: Callable[[str], _Number], fits: Callable[[_Number], bool]) -> list[_Number]:
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(fits(number) for number in numbers):
        example = "1,2,4" if kind is int else "more than 0 and less than 100, e.g. 50,95,99"
        raise typer.BadParameter(f"must be numbers {example}, got {text!r}", param_hint=option)
    return numbers
