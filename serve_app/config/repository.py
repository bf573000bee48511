"""Where models are that another server serves: a Triton model repository."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from serve_app.config.values import Section


class RepositoryConfig(Section):
    """A folder in which each folder is a model, as Triton serves it. A text is short for `{path: TEXT}`."""

    path: str = Field(min_length=1)
    """The folder, on this machine: relative to `SERVE_APP_HOME`, or absolute."""

    strict: bool = False
    """Refuse the configuration if a model of the repository cannot be served. By default the others are served."""

    @model_validator(mode="before")
    @classmethod
    def _read_path(cls, given: Any) -> Any:
        return {"path": given} if isinstance(given, str) else given
