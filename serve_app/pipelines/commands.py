"""``serve-app graph``: a pipeline of a configuration as a flowchart."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serve_app.cli.config_file import ConfigFile, invalid
from serve_app.errors import ConfigError


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(graph)


def graph(
    config: ConfigFile,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; by default standard output.", show_default=False),
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(help="Which pipeline, where CONFIG has several.", show_default=False)
    ] = None,
) -> None:
    """Draw a pipeline of CONFIG as a Mermaid flowchart."""
    try:
        picture = drawn_pipeline(config, pipeline)
    except ConfigError as error:
        raise invalid(config, error) from None
    if output is None:
        typer.echo(picture, nl=False)
    else:
        output.write_text(picture, encoding="utf-8")
        typer.echo(f"wrote {output}")


def drawn_pipeline(path: Path, name: str | None = None) -> str:
    """Draw a pipeline as a Mermaid flowchart.

    Args:
        name: ``None``: the only one.

    Raises:
        ConfigError: The file is invalid, or the pipeline is unknown or ambiguous.
    """
    # These bring backends, which other commands do without.
    from serve_app.api.openapi.pipeline_chart import draw  # noqa: PLC0415
    from serve_app.composition import describe_models, expand_models, read_args, with_versions  # noqa: PLC0415
    from serve_app.config.file import load_file  # noqa: PLC0415
    from serve_app.pipelines.composition import pipeline_infos  # noqa: PLC0415

    args = expand_models(load_file(path, read_args).args)
    if not args.pipelines:
        raise ConfigError(("args.pipelines: there is none to draw",))
    names = [pipeline.name for pipeline in args.pipelines]
    if name is None and len(names) > 1:
        raise ConfigError((f"args.pipelines: say which one, by --pipeline: {', '.join(names)}",))
    if name is not None and name not in names:
        raise ConfigError((f"args.pipelines: there is no {name!r}; there is {', '.join(names)}",))
    config = with_versions(args)
    infos = {info.name: info for info in pipeline_infos(config, describe_models(config))}
    plan = infos[name or names[0]].pipeline
    assert plan is not None
    return draw(plan)
