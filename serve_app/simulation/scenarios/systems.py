"""The systems that a scenario compares: serve_app itself and the baselines, each with its own options.

What options there are follows from the systems' own constructors, so that a file knows exactly what the code knows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, WithJsonSchema, create_model, model_validator

from serve_app.config.faults import misfit, nearest, shown
from serve_app.config.former import with_new_names
from serve_app.config.values import Section
from benchmarks.scheduling.baselines import BASELINES
from serve_app.simulation.ours import ServeApp
from serve_app.simulation.run import MakeSystem
from serve_app.simulation.system import System

OURS = "serve-app"
"""Name of the system that is this product."""

SYSTEMS: Mapping[str, Callable[..., System]] = {OURS: ServeApp, **BASELINES}
"""Every system by its name in files and reports."""


class SystemConfig(Section):
    """A system under test. Further keys are options of that system."""

    name: str
    """Which one."""

    label: str = ""
    """Its name in the report; by default made of its name and options."""

    tuned: bool = False
    """Whether its options are chosen by trying what its users can set, for the scenario at hand."""

    @model_validator(mode="after")
    def _check(self) -> SystemConfig:
        options = self.options()
        if self.tuned and self.name == OURS:
            raise misfit([(("tuned",), f"{OURS} has nothing to tune; leave it out")])
        if self.tuned and options:
            raise misfit([(("tuned",), f"cannot stand beside {', '.join(options)}; leave one of them out")])
        self.make()()  # its constructor knows which values fit together and says so with a ValueError
        return self

    @property
    def title(self) -> str:
        """Its name in the report."""
        if self.label:
            return self.label
        said = [f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in self._said()]
        return " ".join([self.name, *(["tuned"] if self.tuned else []), *([f"({', '.join(said)})"] if said else [])])

    def options(self) -> dict[str, Any]:
        """The options given."""
        return {key: getattr(self, key) for key in self.model_fields_set if key not in SystemConfig.model_fields}

    def make(self) -> MakeSystem:
        """What makes the system for one run; can be sent to another process."""
        return partial(SYSTEMS[self.name], **self.options())

    def _said(self) -> list[tuple[str, Any]]:
        return sorted(self.options().items())


def _section(name: str, system: Callable[..., System]) -> type[SystemConfig]:
    """A section with the options that the constructor of a system takes."""
    fields: dict[str, Any] = {
        key: (parameter.annotation, parameter.default)
        for key, parameter in inspect.signature(system, eval_str=True).parameters.items()
        if parameter.kind in {parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD}
    }
    fields["name"] = (Literal[name], ...)
    return create_model(f"{name}-config", __base__=SystemConfig, **fields)


_SECTIONS = {name: _section(name, system) for name, system in SYSTEMS.items()}


def _read(given: Any) -> SystemConfig:
    if isinstance(given, SystemConfig):
        return given
    if isinstance(given, str):
        return system_config(given)
    if not isinstance(given, Mapping):
        raise ValueError(f"must be the name of a system or a mapping, got {shown(given)}")  # noqa: TRY004 - pydantic's way
    name = given.get("name")
    if not isinstance(name, str) or name not in _SECTIONS:
        message = unknown_system(name) if "name" in given else f"required, one of {', '.join(SYSTEMS)}"
        raise misfit([(("name",), message)])
    return _SECTIONS[name].model_validate(with_new_names(given, name, {"rescue_share": "hedge_share"}))


def system_config(name: str) -> SystemConfig:
    """A system without options.

    Raises:
        ValueError: There is none of that name; names the nearest.
    """
    if name not in _SECTIONS:
        raise ValueError(unknown_system(name))
    return _SECTIONS[name].model_validate({"name": name})


def unknown_system(name: object) -> str:
    """What to say about a name that no system has."""
    guess = nearest(str(name), SYSTEMS)
    return f"unknown system {shown(name)}; " + (f"did you mean {guess}?" if guess else f"known: {', '.join(SYSTEMS)}")


def _schema() -> dict[str, Any]:
    """One condition per system, so that the keys known at a system are its own."""
    options: dict[str, Any] = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"enum": list(SYSTEMS)}},
        "allOf": [
            {
                "if": {"properties": {"name": {"const": name}}, "required": ["name"]},
                "then": section.model_json_schema(),
            }
            for name, section in _SECTIONS.items()
        ],
    }
    return {"anyOf": [{"enum": list(SYSTEMS)}, options]}


AnySystem = Annotated[
    SerializeAsAny[SystemConfig], Field(strict=False), BeforeValidator(_read), WithJsonSchema(_schema())
]
"""A system with its options; a name alone stands for one without any."""
