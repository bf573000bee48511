"""``serve-app graph`` and ``serve-app validate`` for pipelines."""

from __future__ import annotations

from pathlib import Path

import yaml
from serve_process import ROOT
from typer.testing import CliRunner

from serve_app.cli.commands import app

DEMO = ROOT / "configs" / "demo.yaml"


def run(*args: str) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    result = CliRunner().invoke(app, args)
    return result.exit_code, result.stdout, result.stderr


def test_it_draws_the_only_pipeline(tmp_path: Path) -> None:
    """To standard output, or into a file."""
    code, chart, _ = run("graph", str(DEMO))
    assert (code, chart.startswith("flowchart LR\n")) == (0, True)
    assert run("graph", str(DEMO), "-o", str(tmp_path / "p.mmd")) == (0, f"wrote {tmp_path}/p.mmd\n", "")
    assert (tmp_path / "p.mmd").read_text("utf-8") == chart
    assert f"```mermaid\n{chart}```" in (ROOT / "docs" / "pipelines.md").read_text("utf-8")


def test_what_cannot_be_drawn_is_told(tmp_path: Path) -> None:
    """No pipeline, another name, or several of them."""
    document = yaml.safe_load(DEMO.read_text("utf-8"))
    args = document["applications"][0]["args"]
    file = tmp_path / "several.yaml"
    args["pipelines"].append({**args["pipelines"][0], "name": "again"})
    file.write_text(yaml.safe_dump(document), "utf-8")
    several = "args.pipelines: say which one, by --pipeline: same-digit, again"
    assert run("graph", str(file)) == (2, "", f"{file}: {several}\n")
    unknown = "args.pipelines: there is no 'none'; there is same-digit, again"
    assert run("graph", str(file), "--pipeline", "none") == (2, "", f"{file}: {unknown}\n")
    assert run("graph", str(file), "--pipeline", "again")[0] == 0
    del args["pipelines"]
    file.write_text(yaml.safe_dump(document), "utf-8")
    assert run("graph", str(file)) == (2, "", f"{file}: args.pipelines: there is none to draw\n")


def test_validate_names_pipelines_and_finds_what_does_not_fit(tmp_path: Path) -> None:
    """With the models' files, and only their structure without them."""
    assert run("validate", str(DEMO))[1].endswith(
        "valid; models: digits, spoken-digits, minilm; pipelines: same-digit\n"
    )
    document = yaml.safe_load(DEMO.read_text("utf-8"))
    steps = document["applications"][0]["args"]["pipelines"][0]["steps"]
    steps[0]["input"] = "sound"
    steps[1]["input"] = "picture"
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(document), "utf-8")
    code, _, errors = run("validate", str(file))
    assert (code, errors.splitlines()[-2:]) == (
        2,
        [
            f"{file}: args.pipelines[0].steps[0]: input: digits takes a picture, and sound is a sound",
            f"{file}: args.pipelines[0].steps[1]: input: spoken-digits takes a sound, and picture is a picture",
        ],
    )
    assert run("validate", str(file), "--no-models")[0] == 0
