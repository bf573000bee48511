"""The systems that a scenario compares: serve_app itself, each time with other options.

What options there are follows from the constructor of `ServeApp`, so that a file knows exactly what the code knows.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, WithJsonSchema, create_model

from serve_app.config.problems import nearest, short_repr, validation_error
from serve_app.config.values import Delay, Section
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.run import MakeSystem

OURS: Final = "serve-app"
"""Name of the system."""

_ELSEWHERE: Final = ("ray-serve", "triton", "sliding", "clipper", "clockwork", "nexus", "symphony")
"""Other servers' policies, which files could name once."""


class SystemConfig(Section):
    """A system under test. Further keys are its options."""

    name: Literal["serve-app"] = OURS
    """There is no other."""

    label: str = ""
    """Its name in the report; by default made of its name and options."""

    @property
    def title(self) -> str:
        """Its name in the report."""
        if self.label:
            return self.label
        options = sorted(self.options().items())
        said = [f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in options]
        return f"{self.name} ({', '.join(said)})" if said else self.name

    def options(self) -> dict[str, Any]:
        """The options given."""
        return {key: getattr(self, key) for key in self.model_fields_set if key not in SystemConfig.model_fields}

    def make(self) -> MakeSystem:
        """What makes the system for one run; can be sent to another process."""
        return partial(ServeApp, **self.options())


_OPTIONS: Final[dict[str, Any]] = {
    key: (parameter.annotation, parameter.default)
    for key, parameter in inspect.signature(ServeApp, eval_str=True).parameters.items()
}
_OPTIONS["policy"] = (Literal["auto", "eager"] | None, None)
_OPTIONS["network_s"] = (Delay | None, None)
_Section: type[SystemConfig] = create_model(f"{OURS}-config", __base__=SystemConfig, **_OPTIONS)


def _read(given: Any) -> SystemConfig:
    if isinstance(given, SystemConfig):
        return given
    if isinstance(given, str):
        return system_config(given)
    if not isinstance(given, Mapping):
        raise ValueError(f"must be {OURS} or a mapping with its options, got {short_repr(given)}")  # noqa: TRY004 - pydantic's way
    name = given.get("name", OURS)
    if name != OURS:
        raise validation_error([(("name",), unknown_system(name))])
    if "tuned" in given:
        raise validation_error([(("tuned",), f"{OURS} has nothing to tune; leave it out")])
    return _Section.model_validate(given)


def system_config(name: str) -> SystemConfig:
    """The system without options. Raises ValueError for another name, with where that one is."""
    if name != OURS:
        raise ValueError(unknown_system(name))
    return _Section()


def unknown_system(name: object) -> str:
    """The message for a name that is not serve_app's."""
    if name in _ELSEWHERE:
        return f"{name} is simulated in benchmarks/scheduling now (make bench-scheduling); here there is {OURS} only"
    guess = nearest(str(name), (OURS,))
    return f"unknown system {short_repr(name)}; " + (f"did you mean {guess}?" if guess else f"there is {OURS} only")


AnySystem = Annotated[
    SerializeAsAny[SystemConfig],
    Field(strict=False),
    BeforeValidator(_read),
    WithJsonSchema({"anyOf": [{"const": OURS}, _Section.model_json_schema()]}),
]
"""serve_app with options; its name alone stands for it without any."""
