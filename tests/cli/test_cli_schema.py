"""The JSON Schema of a configuration file, as editors use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from serve_app.cli import app

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    """Checks documents against the committed schema."""
    schema = json.loads((CONFIGS / "schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def document(**model: Any) -> dict[str, Any]:
    """A Serve file with one model."""
    args = {"models": [{"name": "a", "path": "a"} | model]}
    return {"applications": [{"name": "serve-app", "import_path": "serve_app.app:build", "args": args}]}


def faults(validator: jsonschema.Draft202012Validator, instance: Any) -> list[str]:
    """The places of faults."""
    return sorted(error.json_path for error in validator.iter_errors(instance))


def test_the_committed_schema_is_up_to_date() -> None:
    """`make schema` has been run since the configuration last changed."""
    assert CliRunner().invoke(app, ["schema"]).stdout == (CONFIGS / "schema.json").read_text("utf-8")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_files_name_the_schema_and_fit_it(path: Path, validator: jsonschema.Draft202012Validator) -> None:
    """Editors find the schema by the first line, and see no faults in what is shipped."""
    text = path.read_text("utf-8")
    assert text.splitlines()[0] == "# yaml-language-server: $schema=schema.json"
    assert faults(validator, yaml.safe_load(text)) == []


def test_the_schema_knows_the_options_of_each_task(validator: jsonschema.Draft202012Validator) -> None:
    """Which keys `processor` has depends on the task beside it."""
    assert faults(validator, document(task="image-classification", processor={"size": 28})) == []
    assert faults(validator, document(task="audio-classification", processor={"size": 28})) == [
        "$.applications[0].args.models[0].processor"
    ]


def test_the_schema_refuses_unknown_keys_of_both_parts(validator: jsonschema.Draft202012Validator) -> None:
    """Serve's own schema would let them pass."""
    assert faults(validator, document(batchng={})) == ["$.applications[0].args.models[0]"]
    assert faults(validator, document() | {"http_option": {}}) == ["$"]
    assert faults(validator, document() | {"http_options": {"prt": 1}}) == ["$.http_options"]


def test_sizes_may_be_text_or_numbers(validator: jsonschema.Draft202012Validator) -> None:
    """The schema takes what the parser takes."""
    for size in ("2GiB", 1024):
        assert faults(validator, document(resources={"gpus": 0.5, "gpu_memory": size})) == []


def test_args_of_other_applications_are_their_own(validator: jsonschema.Draft202012Validator) -> None:
    """Only our application's args are described."""
    other = {"name": "other", "import_path": "other:app", "args": {"anything": 1}}
    assert faults(validator, {"applications": [other]}) == []
