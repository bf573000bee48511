"""Scenario documents for tests: a valid one, and ways to change it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_app.errors import ConfigError
from serve_app_simulator.scenarios import Experiment, parse_scenario

VALID = """\
name: test
duration_s: 10
models:
  - name: images
    latency: {alpha_ms: 5, beta_ms: 1}
    batching: {max_rows: 16, slo_ms: 50}
  - name: speech
    latency: {points: [[1, 20], [4, 50]]}
workload:
  - kind: poisson
    model: images
    rate: 100
    timeout_ms: 50
"""


def document(**keys: Any) -> dict[str, Any]:
    """A valid scenario with some keys changed."""
    found: dict[str, Any] = yaml.safe_load(VALID)
    return found | keys


def stream(**keys: Any) -> dict[str, Any]:
    """A valid scenario with one stream, Poisson with some keys changed."""
    return document(workload=[{"kind": "poisson", "model": "images", "rate": 100, "timeout_ms": 50} | keys])


def model(**keys: Any) -> dict[str, Any]:
    """A valid scenario with one model, with some keys changed; ``None`` leaves one out."""
    found = {"name": "images", "latency": {"alpha_ms": 5, "beta_ms": 1}} | keys
    return document(models=[{key: value for key, value in found.items() if value is not None}])


INT8 = {"name": "int8", "latency": {"alpha_ms": 2, "beta_ms": 1}}


def parsed(data: Any, folder: Path = Path()) -> Experiment:
    """What a document means."""
    return parse_scenario(data, folder)


def problems(data: Any, folder: Path = Path()) -> tuple[str, ...]:
    """The faults of a document."""
    with pytest.raises(ConfigError) as caught:
        parse_scenario(data, folder)
    return caught.value.problems


def write(folder: Path, text: str) -> Path:
    """A file with that text."""
    path = folder / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    return path
