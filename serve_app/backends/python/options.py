"""Configuration of a model that is a Python class."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from serve_app.backends.kind import BackendOptions
from serve_app.config.problems import validation_error
from serve_app.config.values import Seconds, Section


class EnvironmentOptions(Section):
    """The interpreter and packages of a model in a process of its own."""

    requirements: str | None = Field(default=None, min_length=1)
    """Requirements file, relative to the folder of the model's file. Its packages are installed once, and numpy must be
    one of them."""

    python: str | None = Field(default=None, min_length=1)
    """Interpreter: a path, or a name that is looked for on the `PATH`. With `requirements`, a virtual environment is
    made with it; without, it must have numpy. By default the server's."""

    wheels: str | None = Field(default=None, min_length=1)
    """Folder of wheels, relative to that of the model's file: `requirements` are installed from there, without a
    network."""

    @model_validator(mode="after")
    def _check(self) -> EnvironmentOptions:
        if self.requirements is None and self.python is None:
            raise validation_error([((), "must say requirements, python, or both")])
        if self.requirements is None and self.wheels is not None:
            raise validation_error([(("wheels",), "does nothing without requirements")])
        return self


class PythonOptions(BackendOptions):
    """How a Python class runs."""

    class_: str | None = Field(default=None, alias="class", min_length=1)
    """The class in the model's file; by default the only one that has a method `predict`."""

    parameters: dict[str, Any] = Field(default_factory=dict)
    """What `setup` finds in `context.parameters`."""

    setup_timeout_s: Seconds = 600.0
    """For how long the import of the file and `setup` may take in all. A model that takes longer is not served."""

    environment: EnvironmentOptions | None = None
    """Run the class in a process of its own, with this interpreter and these packages; by default it runs in the
    server's."""

    def files(self) -> tuple[str, ...]:
        """The requirements."""
        environment = self.environment
        return () if environment is None or environment.requirements is None else (environment.requirements,)
