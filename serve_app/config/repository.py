"""Settings of model repositories, and of loading models at run time."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from serve_app.config.values import Seconds, Section


class RepositoryConfig(Section):
    """A Triton model repository, and how models are loaded while the server runs. A text means `{path: TEXT}`."""

    path: Annotated[str, Field(min_length=1)] | None = None
    """A folder in which each folder is a model, as Triton serves it: on this machine, relative to `SERVE_APP_HOME`, or
    absolute. An entry of `models` counts in place of a folder of its name."""

    strict: bool = False
    """Refuse the configuration if a model of `path` cannot be served. By default the others are served."""

    watch: bool = False
    """Load a model by itself when its files have changed: a file that was replaced, or a new version in its folder.

    Files that look the same in two looks count, so that none is taken that is being written.
    """

    interval_s: Seconds = 5.0
    """How often `watch` looks at the files. One router does it for all."""

    load_timeout_s: Seconds = 300.0
    """How long all replicas of a model may take to load it. If one takes longer, the model is served as before."""

    @model_validator(mode="before")
    @classmethod
    def _read_path(cls, given: Any) -> Any:
        return {"path": given} if isinstance(given, str) else given
