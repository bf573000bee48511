"""Scenario files for ``serve-app simulate``: read, checked, and turned into values for the simulator.

Every fault is one line that names the line of the file, the place and what is wrong there. A load of 1 is what a
model's replicas can answer within their latency target; see `serve_app_simulator.scenarios.costs.capacity`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from serve_app.config.file import read_document
from serve_app.config.lines import Lines
from serve_app.config.problems import problems_of
from serve_app.errors import ConfigError
from serve_app_simulator.scenarios.cases import Case, make_cases
from serve_app_simulator.scenarios.costs import read_costs
from serve_app_simulator.scenarios.file import ScenarioFile


@dataclass(frozen=True, slots=True)
class Experiment:
    """A checked scenario file.

    Attributes:
        cases: The scenarios: one, or one per value of the sweep.
    """

    file: ScenarioFile
    cases: tuple[Case, ...]

    @property
    def sweep(self) -> str:
        """Name of the number that is swept, or empty."""
        return "" if self.file.sweep is None else self.file.sweep.key


def load_scenario(path: Path) -> Experiment:
    """Read and check a scenario file, with its profiles and traces. Raises ConfigError, a line per fault."""
    lines = _lines(path)
    if lines.is_other:
        raise ConfigError(("must hold a mapping with the keys name, models and workload",))
    document = read_document(path)
    try:
        return parse_scenario(document, path.parent)
    except ConfigError as error:
        raise ConfigError(tuple(lines.mark(problem) for problem in error.problems)) from None


def parse_scenario(document: Mapping[str, Any], folder: Path) -> Experiment:
    """Check a scenario file's content; paths in it are relative to ``folder``. Raises ConfigError, a line per fault."""
    try:
        file = ScenarioFile.model_validate(document)
    except ValidationError as error:
        raise ConfigError(problems_of(error, document, ScenarioFile.model_json_schema())) from None
    models, noise = read_costs(file, folder)
    members = tuple(member for pool in file.pools for member in pool.models())
    return Experiment(file, make_cases(file, (*models, *members), noise, folder))


def scenario_schema() -> dict[str, Any]:
    """JSON Schema of a scenario file, for editors."""
    schema = ScenarioFile.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Scenario for serve-app simulate",
        "$defs": dict(sorted(schema["$defs"].items())),
    }


def _lines(path: Path) -> Lines:
    """The lines of a file; none where it cannot be read, which `read_document` reports."""
    try:
        return Lines(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return Lines("{}")
