"""``serve-app profile``: measures real models as replicas run them, and writes what server and simulator read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import edge_case_models
import onnx_models
import pytest
from typer.testing import CliRunner

from serve_app.cli import app
from serve_app.composition.profile import sha256
from serve_app.config.profile import read_profile

ROOT = Path(__file__).parents[2]

MODELS = """
        - {name: first, path: models/first, batching: {max_rows: 4}}
        - name: second
          path: models/second
          batching: {max_rows: 2}
          variants: [{name: light, path: models/first}]
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Serve file with two models, one with a variant, at home in the test's own folder."""
    monkeypatch.setenv("SERVE_APP_HOME", str(tmp_path))
    for name in ("first", "second"):
        onnx_models.make(tmp_path / "models" / name / "1" / "model.onnx", "add_one")
    return write(tmp_path, MODELS)


def write(folder: Path, models: str) -> Path:
    """A Serve file with these models."""
    path = folder / "serve.yaml"
    path.write_text(
        "http_options: {host: 127.0.0.1}\n"
        f"applications:\n  - name: serve-app\n    import_path: serve_app.app:build\n    args:\n      models:{models}",
        "utf-8",
    )
    return path


def profile(*arguments: object) -> tuple[int, str]:
    """Exit code and output of a short measurement."""
    result = CliRunner().invoke(app, ["profile", *(str(argument) for argument in arguments), "--seconds", "0.01"])
    return result.exit_code, result.output


def test_a_model_is_measured_at_all_its_sizes(config: Path, tmp_path: Path) -> None:
    """The profile lies where the server looks for it, and says what was measured on what."""
    code, output = profile(config, "--model", "first")
    assert code == 0, output
    assert f"written: {tmp_path}/profiles/first.json" in output
    found = read_profile("profiles/first.json")
    assert [(point.rows, point.bucket, point.variant) for point in found.shapes] == [
        (1, 0, ""), (2, 0, ""), (3, 0, ""), (4, 0, ""),
    ]  # fmt: skip
    assert (found.model, found.task, found.version) == ("first", "tensors", "1")
    assert (found.device, found.threads, found.machine.gpu) == ("cpu", 1, None)
    assert found.files == {"": sha256(tmp_path / "models" / "first" / "1" / "model.onnx")}
    assert (found.memory.after_load_bytes or 0) >= (found.memory.before_load_bytes or 1) > 0
    for point in found.shapes:
        assert point.runs >= 5
        assert list(point.quantiles_s) == ["p5", "p50", "p95", "p99"]
        assert (point.peak_rss_bytes or 0) > 0


def test_variants_are_measured_too(config: Path, tmp_path: Path) -> None:
    """They live in the same replicas."""
    code, output = profile(config, "--model", "second")
    assert code == 0, output
    found = read_profile("profiles/second.json")
    assert [(point.variant, point.rows) for point in found.shapes] == [("", 1), ("", 2), ("light", 1), ("light", 2)]
    assert [(fit.variant, fit.bucket) for fit in found.fits] == [("", 0), ("light", 0)]
    assert found.variants == ("light",)


def test_the_measurement_can_be_chosen(config: Path, tmp_path: Path) -> None:
    """Rows, percentiles, threads, and where it goes."""
    output = tmp_path / "own.json"
    code, said = profile(
        config, "--model", "first", "--rows", "8,1,8", "--quantiles", "99.9,25", "--threads", 2, "--output", output
    )
    assert code == 0, said
    found = read_profile(output)
    assert ([point.rows for point in found.shapes], found.threads) == ([1, 8], 2)
    assert list(found.shapes[0].quantiles_s) == ["p5", "p25", "p50", "p95", "p99.9"]


def test_every_model_can_be_measured_and_drawn(config: Path, tmp_path: Path) -> None:
    """A profile and a picture each."""
    code, output = profile(config, "--all", "--rows", "1,2", "--plot", "svg")
    assert code == 0, output
    assert sorted(path.name for path in (tmp_path / "profiles").iterdir()) == [
        "first.json", "first.svg", "second.json", "second.svg",
    ]  # fmt: skip
    assert "<svg" in (tmp_path / "profiles" / "second.svg").read_text("utf-8")


def test_the_configured_profile_is_renewed(config: Path, tmp_path: Path) -> None:
    """Without --output it goes where the configuration expects it, even if that is not there yet or out of date."""
    path = write(tmp_path, "\n        - {name: first, path: models/first, profile: here/it.json}\n")
    code, output = profile(path, "--rows", "1")
    assert code == 0, output
    assert read_profile("here/it.json").model == "first"


def test_media_models_are_measured_in_buckets_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the many lengths of the demo's audio model those at least twice as long as the one before, and the last."""
    monkeypatch.setenv("SERVE_APP_HOME", str(ROOT))
    output = tmp_path / "audio.json"
    code, said = profile(
        ROOT / "configs" / "demo.yaml", "--model", "spoken-digits", "--rows", "1", "--output", output
    )  # fmt: skip
    assert code == 0, said
    found = read_profile(output)
    assert [point.bucket for point in found.shapes] == [8000, 16000, 32000, 64000, 128000, 160000]
    assert found.shapes[-1].mean_s > found.shapes[0].mean_s


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "holds several models; choose with --model (first, second) or --all"),
        (["--model", "frist"], "has no model 'frist'; did you mean first?"),
        (["--model", "xyz"], "has no model 'xyz'; there is first, second"),
        (["--all", "--model", "first"], "--all and --model exclude each other"),
        (["--all", "--output", "x.json"], "--output names one file, and several models are to be measured"),
    ],
)
def test_a_wrong_choice_is_one_line(config: Path, arguments: list[str], expected: str) -> None:
    """Exit code 2, as for every fault of a configuration."""
    assert profile(config, *arguments) == (2, f"{config}: {expected}\n")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--rows", "1,x"), ("--rows", "0"), ("--rows", ""), ("--quantiles", "0"), ("--quantiles", "100,50")],
)
def test_wrong_numbers_are_refused(config: Path, option: str, value: str) -> None:
    """The message names the option."""
    code, output = profile(config, "--model", "first", option, value)
    assert code == 2
    assert option in output
    assert "must be numbers" in re.sub(r"\s+", " ", output)


def test_a_missing_model_is_one_line(config: Path, tmp_path: Path) -> None:
    """As everywhere."""
    path = write(tmp_path, "\n        - {name: a, path: models/a}\n")
    assert profile(path) == (2, f"{path}: models/a: no such folder (looked for {tmp_path}/models/a)\n")


def test_a_model_that_fails_is_named_by_its_shape(config: Path, tmp_path: Path) -> None:
    """A model that takes three rows only when they are four wide cannot be measured with one."""
    from onnx import TensorProto, helper

    file = tmp_path / "models" / "odd" / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    onnx_models.write(
        file,
        [helper.make_node("MatMul", ["x", "x"], ["y"])],
        [("x", TensorProto.FLOAT, ["rows", 1])],
        [("y", TensorProto.FLOAT, ["rows", 1])],
    )
    path = write(tmp_path, "\n        - {name: odd, path: models/odd, batching: {unverified: allow}}\n")
    code, output = profile(path)
    assert code == 1
    assert output.startswith(f"{path}: profile with 2 rows: the model failed on this input: ")


def test_a_model_that_refuses_our_values_wants_samples(config: Path, tmp_path: Path) -> None:
    """One line that says so; with a range it is measured."""
    edge_case_models.ids(tmp_path / "models" / "ids" / "1" / "model.onnx")
    code, output = profile(write(tmp_path, "\n        - {name: ids, path: models/ids}\n"))
    assert (code, output.count("\n")) == (1, 1)
    assert f"{tmp_path}/serve.yaml: model 'ids' runs on no known input: the model failed on this input: " in output
    assert "; give inputs that it takes in the model's warm_up: samples, or a range or values for each input" in output

    ranged = "{name: ids, path: models/ids, batching: {max_rows: 2}, warm_up: {inputs: {ids: {range: [1000, 1007]}}}}"
    assert profile(write(tmp_path, f"\n        - {ranged}\n"))[0] == 0
    assert {point.rows for point in read_profile("profiles/ids.json").shapes} == {1, 2}


def test_the_server_is_told_of_another_models_profile(config: Path, tmp_path: Path) -> None:
    """`validate` finds a profile that was measured before the model changed."""
    assert profile(config, "--model", "first", "--rows", "1,4")[0] == 0
    path = write(
        tmp_path,
        "\n        - {name: first, path: models/first, batching: {max_rows: 4}, profile: profiles/first.json}\n",
    )
    runner = CliRunner()
    valid = runner.invoke(app, ["validate", str(path)])
    assert (valid.exit_code, valid.stdout) == (0, f"{path}: valid; models: first\n")
    assert "tried at the start: first" in valid.stderr

    onnx_models.make(tmp_path / "models" / "first" / "1" / "model.onnx", "sum_diff")
    changed = runner.invoke(app, ["validate", str(path)])
    assert changed.exit_code == 2
    assert changed.output.startswith(
        f"{path}: model 'first': profile: profiles/first.json: files['']: it was measured with another model.onnx"
    )


def test_measuring_imports_no_ray(config: Path, tmp_path: Path) -> None:
    """It would be in the figures of memory."""
    program = (
        "import sys\n"
        "from serve_app.cli import app\n"
        "try:\n"
        "    app()\n"
        "except SystemExit as ended:\n"
        "    print(ended.code, 'ray' in sys.modules)\n"
    )
    arguments = ["profile", str(config), "--model", "first", "--seconds", "0.01", "--rows", "1"]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"
    assert json.loads((tmp_path / "profiles" / "first.json").read_text("utf-8"))["model"] == "first"


def test_a_file_with_a_free_name_is_measured_and_found_again(config: Path, tmp_path: Path) -> None:
    """The profile is called as the model's deployment is, and knows the model by its name."""
    model = "{name: ResNet50 v2.1, path: models/first/1/model.onnx, batching: {max_rows: 1}"
    code, output = profile(write(tmp_path, f"\n        - {model}}}\n"))
    assert code == 0, output
    name = "profiles/ResNet50-v2.1~d6b4332903.json"
    found = read_profile(name)
    assert (found.model, found.version) == ("ResNet50 v2.1", "1")
    checked = CliRunner().invoke(app, ["validate", str(write(tmp_path, f"\n        - {model}, profile: {name}}}\n"))])
    assert checked.output.endswith("serve.yaml: valid; models: ResNet50 v2.1 (deployment ResNet50-v2.1~d6b4332903)\n")
