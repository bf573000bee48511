"""``serve-app simulate``: tables, JSON, a folder with a report, and what it says about wrong input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serve_app.cli import app
from serve_app_simulator.scenarios import scenario_schema

SCENARIO = """\
name: tiny
description: A small one.
duration_s: 2
warm_up_s: 0.5
seeds: [1, 2]
models:
  - name: model
    latency: {alpha_ms: 5, beta_ms: 1}
    batching: {max_rows: 16, slo_ms: 50}
workload:
  - {kind: poisson, model: model, load: 0.4, timeout_ms: 60, share: {high: 0.3, low: 0.7}}
  - {kind: flash_crowd, model: model, rate: 30, surge: 4, surge_at_s: 1, surge_s: 0.5, timeout_ms: 60}
systems: [serve-app, {policy: eager, label: eager}]
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A small scenario file."""
    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


def run(*args: object) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    found = CliRunner().invoke(app, ["simulate", *map(str, args)])
    assert found.exception is None or isinstance(found.exception, SystemExit)
    return found.exit_code, found.stdout, found.stderr


def test_a_table_compares_the_systems(scenario: Path) -> None:
    """One line per system, with the classes' attainment."""
    code, out, _ = run(scenario)
    assert code == 0
    for part in ("tiny", "serve-app", "eager", "goodput /s", "high in time", "low in time", "recovery s", "2 seeds"):
        assert part in out


def test_the_schema_is_printed_without_a_scenario() -> None:
    """For editors, and for the file that is committed."""
    assert json.loads(run("--schema")[1]) == scenario_schema()


def test_the_same_scenario_gives_the_same_figures(scenario: Path) -> None:
    """Nothing but the time that it took differs."""
    first, second = (json.loads(run(scenario, "--json")[1])["cases"][0] for _ in range(2))
    assert first["rows"] == second["rows"]


def test_json_holds_every_result(scenario: Path) -> None:
    """Nothing but JSON goes to standard output, and every request ended in one way."""
    code, out, _ = run(scenario, "--json", "--seeds", 3, "--systems", "eager,serve-app")
    assert code == 0
    (case,) = json.loads(out)["cases"]
    assert {system: [each["seed"] for each in results] for system, results in case["results"].items()} == {
        "eager": [1, 2, 3],
        "serve-app": [1, 2, 3],
    }
    for results in case["results"].values():
        for each in results:
            total = each["total"]
            ends = (total[end] for end in ("in_time", "late", "dropped", "replaced", "unfinished"))
            assert total["offered"] == sum(ends) > 0


def test_a_sweep_has_a_table_per_value(scenario: Path) -> None:
    """And no figures of other values in it."""
    scenario.write_text(SCENARIO + "sweep: {load: [0.2, 0.6]}\n", encoding="utf-8")
    code, out, _ = run(scenario, "--seeds", 1, "--systems", "eager")
    assert code == 0
    assert "tiny, load 0.2" in out
    assert "tiny, load 0.6" in out
    assert "One seed" in out


def test_output_is_a_folder_with_a_report(scenario: Path, tmp_path: Path) -> None:
    """Markdown that shows the pictures beside it, and the figures as JSON."""
    folder = tmp_path / "deep" / "folder"
    code, _, errors = run(scenario, "--output", folder)
    assert (code, errors) == (0, f"wrote {folder / 'report.md'}\n")
    report = (folder / "report.md").read_text("utf-8")
    assert report.startswith("# tiny\n\nA small one.\n\n- Written by `serve-app simulate tiny.yaml`")
    for name in ("systems", "latency", "time"):
        assert f"({name}.svg)" in report
        assert (folder / f"{name}.svg").stat().st_size > 1000
        assert (folder / f"{name}.png").stat().st_size > 1000
    assert json.loads((folder / "results.json").read_text("utf-8"))["name"] == "tiny"


def test_wrong_scenarios_are_named_by_file_line_and_place(scenario: Path) -> None:
    """Exit code 2, one line per fault, nothing simulated."""
    scenario.write_text(SCENARIO.replace("load: 0.4", "load: -1"), encoding="utf-8")
    assert run(scenario) == (2, "", f"{scenario}: line 11: workload[0].load: must be more than 0, got -1\n")
    assert run("nowhere.yaml") == (2, "", "nowhere.yaml: cannot be read: No such file or directory\n")


def test_wrong_options_are_named(scenario: Path, tmp_path: Path) -> None:
    """An unknown system and a folder that cannot be one."""
    assert run(scenario, "--systems", "serve-ap") == (
        2,
        "",
        f"{scenario}: --systems: unknown system 'serve-ap'; did you mean serve-app?\n",
    )
    assert run(scenario, "--output", scenario) == (2, "", f"{scenario}: --output: {scenario}: File exists\n")
    assert run(scenario, "--seeds", 0)[0] == 2


@pytest.mark.parametrize("option", ["tiny.yaml", "--schema"])
def test_without_the_simulator_the_command_says_how_to_install_it(option: str) -> None:
    """In one line, with exit code 1; the other commands do not need it."""
    program = f"""
import sys
sys.modules["serve_app_simulator"] = None
from serve_app.cli import app
app(["simulate", {option!r}])
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    install = "pip install 'serve-app[simulate]', or ./simulator in a checkout"
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"serve-app simulate needs the simulator: {install}\n"
