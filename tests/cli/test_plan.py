"""``serve-app plan``: tables, JSON, the configuration it writes, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from plan_builders import profile, write_config
from typer.testing import CliRunner

from serve_app.cli import app
from serve_app.config.file import load_file


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A server with one model and its profile."""
    return write_config(tmp_path, {"images": profile()})


def run(*args: object) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    found = CliRunner().invoke(app, ["plan", *map(str, args)])
    assert found.exception is None or isinstance(found.exception, SystemExit)
    return found.exit_code, found.stdout, found.stderr


def test_tables_say_settings_and_expectation(config: Path) -> None:
    """With reasons and intervals."""
    code, out, _ = run(config, "--rate", "images=20", "--seconds", 2, "--cpus", "4")
    assert code == 0
    for part in ("autoscaling.min_replicas", "because", "in time, %", "Target 99.0%", "held", "node 1: 1 images"):
        assert part in out


def test_json_holds_everything(config: Path) -> None:
    """Nothing but JSON goes to standard output."""
    code, out, _ = run(config, "--rate", "images=20", "--seconds", 2, "--cpus", "4", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["replicas"] == {"images": 1}
    assert found["problems"] == []
    (of_class,) = found["classes"]
    assert of_class["in_time"]["low"] <= of_class["in_time"]["value"] <= of_class["in_time"]["high"]


def test_the_written_configuration_is_valid_and_says_why(config: Path, tmp_path: Path) -> None:
    """Its comments are the reasons."""
    path = tmp_path / "plan.yaml"
    code, _, errors = run(config, "--rate", "images=250", "--seconds", 1, "--cpus", "8", "--output", path)
    assert code == 0
    assert f"wrote {path}" in errors
    (model,) = load_file(path).args.models
    assert (model.autoscaling.min_replicas, model.autoscaling.max_replicas) == (2, 2)
    assert "# images: autoscaling.min_replicas: 2: the demand keeps 1." in path.read_text(encoding="utf-8")


def test_what_cannot_be_held_ends_with_code_2_and_still_says_what_to_expect(config: Path, tmp_path: Path) -> None:
    """One line on standard error."""
    demand = tmp_path / "demand.yaml"
    demand.write_text("workload:\n- {kind: poisson, model: images, rate: 5, timeout_ms: 12}\n", encoding="utf-8")
    code, out, errors = run(config, "--demand", demand, "--seconds", 1, "--cpus", "4")
    assert code == 2
    assert "not held" in out
    assert errors.startswith("images: no number of replicas holds class normal: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "no demand is given: add --demand FILE"),
        (("--rate", "images=1", "--cpus", "none"), "--cpus none: must be cores"),
        (("--rate", "images=1", "--gpus", "2"), "--gpus 2: must be GPUs x memory of each"),
    ],
)
def test_bad_options_are_one_line(config: Path, options: tuple[str, ...], expected: str) -> None:
    """Code 2, with the file before the fault."""
    code, out, errors = run(config, *options)
    assert (code, out) == (2, "")
    assert errors.startswith(f"{config}: {expected}")
    assert errors.count("\n") == 1


def test_without_the_simulator_the_command_says_how_to_install_it(config: Path) -> None:
    """It is a distribution of its own."""
    code = f"""
import sys
sys.modules["serve_app_simulator"] = None
from serve_app.cli import app
app(["plan", {str(config)!r}])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    install = "pip install 'serve-app[simulate]', or ./simulator in a checkout"
    assert ended.returncode == 1
    assert ended.stderr == f"serve-app plan needs the simulator: {install}\n"
