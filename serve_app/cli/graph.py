"""``serve-app graph``: a pipeline of a configuration as a flowchart."""

from __future__ import annotations

from pathlib import Path

from serve_app.api.pipeline_chart import draw
from serve_app.composition import describe_models, expand_pools, read_args, with_versions
from serve_app.composition.pipelines import pipeline_infos
from serve_app.config.file import load_file
from serve_app.errors import ConfigError


def drawn_pipeline(path: Path, name: str | None = None) -> str:
    """Draw a pipeline as a Mermaid flowchart.

    Args:
        name: ``None``: the only one.

    Raises:
        ConfigError: The file is invalid, or the pipeline is unknown or ambiguous.
    """
    args = expand_pools(load_file(path, read_args).args)
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
